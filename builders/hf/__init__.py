"""What others wrote: config.json, safetensors shards, GGUF; read and checked, never executed."""

__all__: list[str] = []
