"""What to build and how, as a typed document: schema, loader with file:line errors, presets.

| module | owns |
|---|---|
| schema | `Recipe` and its parts: every field, its default and its description |
| plugins, tensorrt_llm | its parts about fused ops and about the target tensorrt-llm |
| loader | YAML file or preset, `--set` and flags → `Recipe`; the resolved recipe back to YAML |
| migration | flags of TensorRT-LLM's tools, and the fields that say the same |
| commands | old command lines → what a recipe would say |
"""

PRESETS: dict[str, str] = {
    "cpu-w8a16": "cpu-w8a16.yaml",
    "cpu-bf16": "cpu-bf16.yaml",
    "cpu-fp32": "cpu-fp32.yaml",
}
"""Preset name → file of this package. A preset leaves out `model`; the command line gives it."""

__all__ = ["PRESETS"]
