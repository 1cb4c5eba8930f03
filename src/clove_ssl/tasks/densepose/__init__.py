"""DensePose: the part of the body, and the place on it, that every pixel of a person shows."""

CONFIGS = {
    "coco-densepose": "config:COCODensePoseConfig",
}
