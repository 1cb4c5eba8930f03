"""InsCon, after the abstract: instance consistency on multi-instance images (Yang et al., 2022)."""

CONFIGS = {"inscon": "config:InsConConfig"}
