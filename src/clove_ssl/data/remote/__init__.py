"""Tar shards behind URLs; needs the extra ``stream``."""
