"""W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN: one scale for the weight, inputs per token.

Arithmetic, tensors and sources: llmc.quant.smoothquant.
"""

from llmc.quant.smoothquant import smoothquant_format

FORMAT = smoothquant_format(
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", per_channel=False, per_token=True
)
