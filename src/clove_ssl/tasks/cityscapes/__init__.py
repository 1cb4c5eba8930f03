"""Cityscapes: instance segmentation of street scenes."""

CONFIGS = {
    "cityscapes-fpn": "config:CityscapesConfig",
}
