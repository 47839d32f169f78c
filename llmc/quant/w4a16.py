"""W4A16: INT4 weights, one symmetric scale per output channel, activations as they are."""

from llmc.quant.weight_only import weight_only_format

FORMAT = weight_only_format("W4A16", bits=4)
