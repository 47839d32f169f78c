"""The TensorRT-LLM checkpoint: config.json and rank<N>.safetensors, the hub every target reads.

`config` owns config.json, `schema` the tensors each rank file must hold and how a model is split
into them, `directory` an existing checkpoint on disk. Nothing here knows of Hugging Face.
"""

from llmc.checkpoint.config import CheckpointConfig, Quantization
from llmc.checkpoint.directory import Checkpoint
from llmc.checkpoint.schema import (
    Segment,
    TensorSpec,
    file_mapping,
    tensor_schema,
    tensor_specs,
    unsplittable,
    valid_tp_sizes,
)

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "Quantization",
    "Segment",
    "TensorSpec",
    "file_mapping",
    "tensor_schema",
    "tensor_specs",
    "unsplittable",
    "valid_tp_sizes",
]
