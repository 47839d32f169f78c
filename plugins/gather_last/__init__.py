"""Picks the rows whose logits are wanted."""
