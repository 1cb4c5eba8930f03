"""Run directories: what a run writes and how it is read back."""
