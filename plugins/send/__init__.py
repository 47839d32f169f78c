"""Hands an activation to another rank."""
