"""The formula for a calibration's memory: what it depends on, and that it holds."""

from dataclasses import replace

from llmc.arch import ModelArch
from llmc.builders.quantize.memory import peak_bytes
from llmc.builders.quantize.site import load_algorithm
from llmc.checkpoint import CheckpointConfig

LLAMA_70B = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=8192,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_size=128,
    intermediate_size=28672,
    vocab_size=128256,
    max_position_embeddings=131072,
    rotary_embedding_dim=128,
)


def test_every_algorithm_calibrates_70b_in_24_gib() -> None:
    config = CheckpointConfig(arch=LLAMA_70B, dtype="bfloat16")
    for algo in ("FP8", "W8A8_SQ_PER_CHANNEL", "W4A16_AWQ", "W4A16_GPTQ", "NVFP4"):
        peak = peak_bytes(config, load_algorithm(algo), num_tokens=256 * 512, longest=512)
        assert peak.memory < 24 * 2**30, (algo, peak)


def test_neither_layers_nor_samples_matter() -> None:
    config = CheckpointConfig(arch=LLAMA_70B, dtype="bfloat16")
    algorithm = load_algorithm("W4A16_AWQ")
    one = peak_bytes(config, algorithm, num_tokens=2**16, longest=512)
    shallow = replace(config, arch=replace(LLAMA_70B, num_hidden_layers=2))
    assert peak_bytes(shallow, algorithm, num_tokens=2**20, longest=512).memory == one.memory
    assert peak_bytes(config, algorithm, num_tokens=2**20, longest=512).disk == 16 * one.disk
