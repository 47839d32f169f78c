"""The KV cache update layer: writes new keys or values into a slot's row, in place."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import Inputs, Mode, choose, tensor


def kv_cache_update(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Write update [B, H, S, D] at cache[b, :, write_indices[b] + s] and return the cache.

    The cache [B, H, S_max, D] is written where it lies, as output and input share memory. What
    falls outside it is not written. Source: IKVCacheUpdateLayer in NvInfer.h.
    """
    cache, update, write_indices = (tensor(layer, inputs, index) for index in range(3))
    choose(layer, "cache_mode", {"LINEAR": None})
    choose(layer, "update_form", {"PADDED_BHND": None})
    num_positions = cache.shape[2]
    for row, start in enumerate(write_indices.tolist()):
        places = torch.arange(start, start + update.shape[2])
        inside = (places >= 0) & (places < num_positions)
        cache[row, :, places[inside]] = update[row][:, inside].to(cache.dtype)
    return cache
