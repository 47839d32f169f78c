"""The `llmc` command: one module per subcommand; each parses, calls the library and renders.

Command modules import the rooms they drive inside their functions: help and completion stay fast.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("build", "Convert, quantize and compile a model; emit its Triton repository."),
    "inspect": ("inspect", "Say what an artifact holds: mapping, quantization, sizes, digests."),
    "verify": ("verify", "Measure an engine against the unquantized model."),
    "refit": ("refit", "Give plans that were built without weights those of a checkpoint."),
    "serve": ("serve", "Serve a Triton repository with tritonserver."),
    "repo emit": ("repo_emit", "Write the Triton repository of an engine, wherever it was built."),
    "repo lint": ("repo_lint", "Find the mistakes in a Triton repository, one line each."),
    "recipe from-command": (
        "recipe_from_command",
        "Turn command lines of TensorRT-LLM's tools into a recipe.",
    ),
    "deploy": ("deploy", "Write scripts and manifests that serve it on other machines."),
    "generate": ("generate", "Stream one answer from a running server."),
    "chat": ("chat", "Chat with a running server."),
    "import-gguf": ("import_gguf", "Turn a GGUF file into a Hugging Face directory."),
    "families": ("families", "Say which models can be built, for which target, quantized how."),
    "targets": ("targets", "Say what each target is made of and which quantizations it has."),
    "plugins": ("plugins", "Say what each target does with each fused op, and what it may choose."),
    "doctor": ("doctor", "Say what this machine can build and serve, and what is missing."),
}
"""Command → (module in llmc.cli, which exports a function of the same name; one-line help)."""

GROUPS: dict[str, str] = {
    "recipe": "Recipes.",
    "repo": "Triton repositories, llmc's own and others'.",
}
"""First word of the commands that have two → what they are about."""

__all__ = ["COMMANDS", "GROUPS"]
