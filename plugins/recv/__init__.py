"""Takes an activation from another rank."""
