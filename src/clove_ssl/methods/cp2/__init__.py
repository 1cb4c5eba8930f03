"""CP2: copy-paste contrastive pre-training (Wang et al., 2022)."""

CONFIGS = {"cp2": "config:CP2Config"}
