"""W8A8_SQ_PER_TENSOR_PLUGIN: INT8 weights and inputs with one fixed scale each.

Arithmetic, tensors and sources: llmc.quant.smoothquant.
"""

from llmc.quant.smoothquant import smoothquant_format

FORMAT = smoothquant_format("W8A8_SQ_PER_TENSOR_PLUGIN", per_channel=False, per_token=False)
