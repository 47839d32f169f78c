"""llmc: compile Hugging Face checkpoints into TensorRT-LLM style engines and Triton repositories.

| room | owns |
|---|---|
| errors, log, lookup | what every layer may use |
| dtypes, tensors, mapping, arch, targets, artifacts | shared vocabulary, no I/O but files |
| weights, checkpoint, quant | tensors on disk, the hub format, number formats |
| recipes, plugins, builders, model_repo, cli | links to the top-level rooms |
| runtime | the executor and the engines it drives |
"""

__all__ = ["__version__"]
__version__ = "0.1.0"
