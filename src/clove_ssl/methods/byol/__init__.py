"""BYOL: bootstrap your own latent (Grill et al., 2020)."""

CONFIGS = {"byol": "config:BYOLConfig"}
