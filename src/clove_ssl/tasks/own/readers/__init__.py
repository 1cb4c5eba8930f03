"""Formats of labels, a reader for each: COCO, VOC, YOLO, LabelMe, and masks in folders."""
