"""A user's own classes: boxes, masks, keypoints and pixels, from whatever format they are in."""

CONFIGS = {
    "detect": "config:DetectConfig",
    "instances": "config:InstancesConfig",
    "keypoints": "config:KeypointsConfig",
    "segment": "config:SegmentConfig",
}
