"""Building blocks that methods, tasks and probes share: norms, transfers, sums over processes."""
