"""The same columns of every group of columns."""
