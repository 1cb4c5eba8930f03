"""Detection, instance segmentation and keypoints, in VOC's and COCO's layout."""

CONFIGS = {
    "coco-c4": "config:COCOC4Config",
    "coco-fpn": "config:COCOPyramidConfig",
    "coco-keypoints": "config:COCOKeypointsConfig",
    "voc-c4": "config:VOCDetectionConfig",
}
