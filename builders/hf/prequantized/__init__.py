"""Hugging Face weights that somebody else has quantized: one file per scheme, exporting `read`.

| part | owns |
|---|---|
| scheme | what a scheme states about itself, and what several schemes read alike |
| fusing | the tensors of one TensorRT-LLM module from those of its parts |
| assembly | rows in the checkpoint's order, and experts stacked |
| model | matching a scheme with a model's tensors, and reading them |
| the others | one `quant_method` each: settings in, a `Scheme` or reasons out |

Numbers are carried over as they are. What no format of TensorRT-LLM's holds is refused; docs/
prequantized.md has the table. Nothing of the libraries that wrote these files is imported.
"""

__all__ = ["SCHEMES"]
SCHEMES: dict[str, str] = {
    "compressed-tensors": "compressed_tensors",
    "gptq": "gptq",
    "awq": "awq",
    "modelopt": "modelopt",
    "fp8": "fp8",
}
"""`quant_method` → module of this package."""
