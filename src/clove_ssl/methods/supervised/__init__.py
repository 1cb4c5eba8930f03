"""Supervised training on class labels: the baseline of all tables."""

CONFIGS = {"supervised": "config:SupervisedConfig"}
