"""The target `tensorrt-llm`: engines of TensorRT-LLM, in the dialect of the version one runs.

`versions` says what each supported line is made of, `checkpoint_fields` what its config.json has,
`quantizations` which formats it runs on which GPU, `build_options` what trtllm-build takes.
"""

__all__: list[str] = []
