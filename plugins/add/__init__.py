"""Sum of two activations: the residual connection."""
