"""Number formats of weights: one file each, exporting `FORMAT` and its pure numpy arithmetic.

Names are TensorRT-LLM's `quant_algo`. Load one with
`llmc.lookup.load(FORMATS, algo, package="llmc.quant", kind="quantization")`.
"""

__all__ = ["FORMATS"]
FORMATS: dict[str, str] = {"W8A16": "w8a16"}
"""quant_algo → module of this package."""
