"""Normalization of each query and key head by itself; values pass."""
