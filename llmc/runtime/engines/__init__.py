"""Engines the executor can drive: one module per target, named in `llmc.targets.TARGETS`.

Each exports `load(engine_dir, *, rank, kv) -> Engine`; `llmc.runtime.engine.load_engine` picks it.
"""

__all__: list[str] = []
