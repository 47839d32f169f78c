"""Row lookup of a (possibly vocabulary-parallel) embedding table."""
