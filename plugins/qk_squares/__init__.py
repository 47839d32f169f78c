"""Sums of squares over all query heads and over all key heads of a token."""
