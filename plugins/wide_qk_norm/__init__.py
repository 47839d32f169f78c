"""Root-mean-square normalization of q over all heads, and of k over all KV heads."""
