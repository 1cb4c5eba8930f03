"""Compiled networks: which pieces there are, and how they are compiled ahead."""
