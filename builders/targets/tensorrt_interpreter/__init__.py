"""A reference interpreter of TensorRT networks: what an INetworkDefinition computes, on CPU.

`reader` turns the network's layers, attributes and constants into a Graph of plain data; `run`
evaluates graphs in torch. Nothing here knows how our networks are made: it is what TensorRT's
documentation says each layer does, so that a mistake of the lowering shows as different logits.
No TensorRT is imported: the network brings its own classes.
"""

__all__ = ["KINDS"]

KINDS: dict[str, str] = {
    "ACTIVATION": "arithmetic",
    "ATTENTION": "attention",
    "CAST": "arithmetic",
    "CONCATENATION": "shapes",
    "CUMULATIVE": "arithmetic",
    "DEQUANTIZE": "quantization",
    "DYNAMIC_QUANTIZE": "quantization",
    "ELEMENTWISE": "arithmetic",
    "FILL": "shapes",
    "GATHER": "indexing",
    "IDENTITY": "arithmetic",
    "KV_CACHE_UPDATE": "kv_cache",
    "MATRIX_MULTIPLY": "products",
    "NORMALIZATION": "normalization",
    "ONE_HOT": "indexing",
    "QUANTIZE": "quantization",
    "REDUCE": "arithmetic",
    "ROTARY_EMBEDDING": "rotary",
    "SCATTER": "indexing",
    "SELECT": "arithmetic",
    "SHAPE": "shapes",
    "SHUFFLE": "shapes",
    "SLICE": "indexing",
    "SOFTMAX": "products",
    "SQUEEZE": "shapes",
    "TOPK": "indexing",
    "UNARY": "arithmetic",
    "UNSQUEEZE": "shapes",
}
"""Kind of a layer → module with a function of its name in small letters: (layer, inputs, mode).

DIST_COLLECTIVE is missing: it needs the other ranks, and `run` does it.
"""
