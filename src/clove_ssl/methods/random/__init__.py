"""Random weights: the baseline that every method has to beat."""

CONFIGS = {"random": "config:RandomConfig"}
