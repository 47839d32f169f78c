"""Quantizes a model with nvidia-modelopt; benchmarks/modelopt_comparison.py runs it.

    python benchmarks/modelopt_worker.py MODEL ALGO IDS.npz

It knows nothing of llmc, as it runs in modelopt's own environment. IDS.npz has the sequences to
calibrate with (`calibration-0`, ...) and the windows to measure on (`window-0`, ...). The model is
in float32, so that nothing but the quantization is measured. Prints JSON.
"""

import argparse
import copy
import json
import resource
import time
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM

CONFIGS = {
    "FP8": mtq.FP8_DEFAULT_CFG,
    "W8A8_SQ_PER_CHANNEL": mtq.INT8_SMOOTHQUANT_CFG,
    "W4A16_AWQ": mtq.INT4_AWQ_CFG,
}


def config_of(algo: str, group_size: int) -> dict[str, Any]:
    """Return modelopt's own configuration, with our group size where it has groups."""
    config: dict[str, Any] = copy.deepcopy(CONFIGS[algo])
    for entry in config["quant_cfg"]:
        quantizer = entry.get("cfg")
        if isinstance(quantizer, dict) and quantizer.get("block_sizes"):
            quantizer["block_sizes"] = {-1: group_size, "type": "static"}
    return config


def mean_kl(reference: Any, model: Any, windows: list[torch.Tensor]) -> float:
    """Return the mean over all tokens of KL(reference || model), in nats."""
    total, count = 0.0, 0
    for window in windows:
        with torch.inference_mode():
            wanted = torch.log_softmax(reference(window[None]).logits[0].double(), dim=-1)
            found = torch.log_softmax(model(window[None]).logits[0].double(), dim=-1)
        total += float((wanted.exp() * (wanted - found)).sum())
        count += len(window)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("algo", choices=CONFIGS)
    parser.add_argument("ids", type=Path)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--export", type=Path, required=True, help="directory for its checkpoint")
    arguments = parser.parse_args()
    arrays = np.load(arguments.ids)
    ids = {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in arrays.files}
    sequences = [ids[name] for name in ids if name.startswith("calibration")]
    windows = [ids[name] for name in ids if name.startswith("window")]

    def calibrate(model: Any) -> None:
        for sequence in sequences:
            model(sequence[None])

    started = time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    with torch.inference_mode():
        model = mtq.quantize(model, config_of(arguments.algo, arguments.group_size), calibrate)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    reference = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    kl = mean_kl(reference, model, windows)
    model.to(torch.bfloat16)  # what ours is written as
    started = time.monotonic()
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=arguments.export)
    export_seconds = time.monotonic() - started
    found = {"kl": kl, "seconds": seconds, "export_seconds": export_seconds, "peak_bytes": peak}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
