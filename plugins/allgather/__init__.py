"""Concatenation of column slices over the ranks of a tensor-parallel group."""
