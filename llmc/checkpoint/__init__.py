"""The TensorRT-LLM checkpoint: config.json and rank<N>.safetensors, the hub every target reads.

`config` owns config.json, `arch_json` the architecture in it, `schema` the tensors each rank file
must hold, `linears` those of each linear module in its format, `norms` those of each norm, `mla`
those of latent attention, `mlp` what routes tokens to experts, `split` which part of a tensor a
rank holds, `combinations` what TensorRT-LLM forbids, `directory` an existing checkpoint on disk.
Nothing here knows of Hugging Face.
"""

from llmc.checkpoint.combinations import forbidden
from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.directory import Checkpoint, write_config
from llmc.checkpoint.linears import MLP_MODULES, Linear, layer_linears, linear_specs, lm_head
from llmc.checkpoint.mlp import routing_specs
from llmc.checkpoint.norms import LayerNorms, layer_norms
from llmc.checkpoint.quantization import MIXED_PRECISION, Quantization
from llmc.checkpoint.schema import (
    file_mapping,
    tensor_schema,
    tensor_specs,
    unsplittable,
    valid_tp_sizes,
)
from llmc.checkpoint.split import Segment, TensorSpec

__all__ = [
    "MIXED_PRECISION",
    "MLP_MODULES",
    "Checkpoint",
    "CheckpointConfig",
    "LayerNorms",
    "Linear",
    "Quantization",
    "Segment",
    "TensorSpec",
    "file_mapping",
    "forbidden",
    "layer_linears",
    "layer_norms",
    "linear_specs",
    "lm_head",
    "routing_specs",
    "tensor_schema",
    "tensor_specs",
    "unsplittable",
    "valid_tp_sizes",
    "write_config",
]
