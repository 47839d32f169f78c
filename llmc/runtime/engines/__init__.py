"""Engines the executor can drive: one module per target, named in `llmc.targets.TARGETS`.

Each exports `load(engine_dir, *, rank, kv) -> Engine`; `llmc.runtime.engine.load_engine` picks it.
`lacking(engine_dir)` says what this machine lacks to run it, None for nothing.
"""

__all__: list[str] = []
