"""Sum of one activation over the ranks of a tensor-parallel group."""
