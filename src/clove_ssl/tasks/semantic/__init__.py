"""Semantic segmentation: a class for every pixel."""

CONFIGS = {
    "voc-semantic": "config:VOCSemanticConfig",
}
