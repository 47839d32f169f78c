"""One half of a fused product, activated, times the other half."""
