"""Rows of q, k and v heads out of what latent attention computes them from."""
