"""Bounds the magnitude of every element."""
