"""Normalization to mean 0 and variance 1 with a learned scale and offset."""
