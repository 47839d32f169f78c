"""Gated experts: each token through a few of many MLPs."""
