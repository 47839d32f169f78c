"""What an engine can be built for; each has a file in builders/targets and runtime/engines."""

TARGETS: dict[str, str] = {
    "cpu": "cpu",
    "tensorrt-rtx": "tensorrt_rtx",
    "tensorrt": "tensorrt",
    "tensorrt-llm": "tensorrt_llm",
}
"""Public name → module name, in builders.targets and in runtime.engines."""
