"""W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN: a scale per output channel, inputs fixed.

Arithmetic, tensors and sources: llmc.quant.smoothquant.
"""

from llmc.quant.smoothquant import smoothquant_format

FORMAT = smoothquant_format(
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", per_channel=True, per_token=False
)
