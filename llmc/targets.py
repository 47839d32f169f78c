"""The names of what an engine can be built for; each has one file in builders/targets and in runtime/engines."""

TARGETS: dict[str, str] = {"cpu": "cpu"}
"""Public name → module name, in builders.targets and in runtime.engines."""
