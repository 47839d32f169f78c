"""act(first half) * second half of a fused gate-up product."""
