"""The Triton model repository: written, checked, served and asked; no model code runs in here.

| module | owns |
|---|---|
| options | what a repository can be told |
| specs | a model's configuration as plain data |
| pbtxt | its text form, written and read back |
| signatures | the tensors of each model, TensorRT-LLM's names |
| engine_config | what an engine's config.json says |
| template, queues | NVIDIA's parameters filled in; where requests wait |
| configs | one typed configuration per model, from options and the engine |
| emit | a repository on disk |
| llmapi, emit_llmapi, lint_llmapi | the same for TensorRT-LLM's LLM API, 1.3 and later |
| lint | what Triton would only complain of at load time, found before |
| parameters | every parameter of every model: type, default, unit, versions |
| lint_parameters, lint_engine, lint_ensemble | its parts: the table, the engine, the maps |
| lint_backend, lint_warmup | and what only TensorRT-LLM's backend and warm-ups can get wrong |
| tritonserver, backends | finding the server and what it needs; whether it has the backends |
| launchers, mpi | MPI launchers: their flags as data; the one installed |
| guard | a process that leaves nothing behind of what it runs |
| ranks | models of several ranks: what they need before a start |
| orchestrator | a server whose models' ranks TensorRT-LLM's backend starts |
| server | starting, watching and stopping it |
| server_log | what it says, and what of that explains its end |
| model_processes | whether the models it runs are alive |
| metrics | the executor's state, as the server publishes it |
| client | streaming requests over gRPC |
| models/ | the model.py files that are copied; they import llmc.runtime, nothing here does |
"""

__all__ = ["MODELS"]
MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
"""Every model of a repository, in the order a request passes them."""
