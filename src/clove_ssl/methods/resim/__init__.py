"""ReSim: region similarity (Xiao et al., 2021)."""

CONFIGS = {"resim": "config:ReSimConfig"}
