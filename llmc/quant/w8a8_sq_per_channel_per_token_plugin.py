"""W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN: a scale per channel and per token.

Arithmetic, tensors and sources: llmc.quant.smoothquant.
"""

from llmc.quant.smoothquant import smoothquant_format

FORMAT = smoothquant_format(
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", per_channel=True, per_token=True
)
