"""x * sigmoid(gate), one gate per token."""
