"""One module per target: `load(engine_dir, *, rank, kv) -> Engine`. The table is llmc.targets.TARGETS."""
