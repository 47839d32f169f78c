"""How weights get their scales: one algorithm a file, over one input of a decoder layer at a time.

| part | owns |
|---|---|
| site | one activation, the linear modules it feeds, and what was observed of it |
| rounding | scales and their error: shared arithmetic of the algorithms |
| rtn, smoothquant, awq, gptq, fp8, nvfp4 | the algorithms: a site in, checkpoint tensors out |
| texts | calibration data: files in, token ids out |
| decoder | a decoder of which one layer at a time is in memory, and what computes it |
| kernels, stage | it on the CPU target's kernels: some ops as a program in memory |
| observers | what is recorded of an op while tokens pass it |
| state | what survives a kill: hidden states and finished layers |
| walk | layer after layer, in the memory of one |
| memory | how much that is |
| mixed | which format each layer gets, within a budget of bits |
| sensitivity | what each format costs each layer alone |

What the stored numbers mean is llmc.quant's part; algorithms choose them.
"""

__all__ = ["ALGORITHMS"]
ALGORITHMS: dict[str, str] = {
    "W8A16": "rtn",
    "W4A16": "rtn",
    "W4A16_AWQ": "awq",
    "W4A8_AWQ": "awq",
    "W4A16_GPTQ": "gptq",
    "W8A8_SQ_PER_CHANNEL": "smoothquant",
    "W8A8_SQ_PER_TENSOR_PLUGIN": "smoothquant",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": "smoothquant",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": "smoothquant",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "smoothquant",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
}
"""quant_algo → module of this package."""
