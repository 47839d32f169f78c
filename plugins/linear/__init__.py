"""Matrix product with an optionally quantized weight, several weights fused on the output axis."""
