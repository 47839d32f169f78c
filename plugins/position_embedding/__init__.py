"""Adds the learned vector of each token's position."""
