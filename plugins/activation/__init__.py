"""An elementwise activation: the MLP without a gate."""
