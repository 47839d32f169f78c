"""Root-mean-square normalization with a learned scale."""
