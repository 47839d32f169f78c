"""Scaling and soft-capping of logits."""
