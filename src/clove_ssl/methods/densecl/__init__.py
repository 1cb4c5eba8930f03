"""DenseCL: dense contrastive learning (Wang et al., 2021)."""

CONFIGS = {"densecl": "config:DenseCLConfig"}
