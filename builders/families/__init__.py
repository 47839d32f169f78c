"""Model families: one file each, exporting `FAMILY`, for all architectures that share its rules.

To add one: write `<model_type>.py` here and name its architectures below.
"""

__all__ = ["FAMILIES"]
FAMILIES: dict[str, str] = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama"}
"""Entry of `architectures` in config.json → module of this package."""
