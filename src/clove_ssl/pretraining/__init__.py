"""Pre-training runs: from a config to a backbone."""
