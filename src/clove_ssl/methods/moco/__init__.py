"""MoCo v2: momentum contrast (Chen et al., 2020)."""

CONFIGS = {"moco": "config:MoCoConfig"}
