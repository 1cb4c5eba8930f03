"""What both kinds of run share: the loop, checkpoints, processes, signals, number formats."""
