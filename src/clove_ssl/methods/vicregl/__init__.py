"""VICRegL: variance, invariance and covariance of images and cells (Bardes et al., 2022)."""

CONFIGS = {"vicregl": "config:VICRegLConfig"}
