"""RoPE, write into the paged KV cache and causal attention over it, as one op."""
