"""A dataset as the content of a COCO annotation file, which COCO's evaluators want."""

from __future__ import annotations

from typing import Any

from clove_ssl.tasks.datasets.rle import RLE, write_counts
from clove_ssl.tasks.datasets.samples import Annotation, DetectionDataset


def coco_truth(dataset: DetectionDataset) -> dict[str, Any]:
    """A dataset as the content of a COCO annotation file; images are numbered from 1.

    COCO has no difficult objects; as crowds they are neither demanded nor punished.
    """
    names = list(dataset.keypoint_names)
    things = [
        (image, thing)
        for image, sample in enumerate(dataset.samples, start=1)
        for thing in sample.annotations
    ]
    return {
        "images": [
            {"id": number, "width": sample.width, "height": sample.height}
            for number, sample in enumerate(dataset.samples, start=1)
        ],
        "annotations": [
            {"id": number, "image_id": image} | _coco_annotation(thing, dataset)
            for number, (image, thing) in enumerate(things, start=1)
        ],
        "categories": [
            {"id": identifier, "name": name} | ({"keypoints": names} if names else {})
            for identifier, name in zip(dataset.category_ids, dataset.class_names, strict=True)
        ],
    }


def _coco_annotation(thing: Annotation, dataset: DetectionDataset) -> dict[str, Any]:
    x0, y0, x1, y1 = thing.box
    entry: dict[str, Any] = {
        "category_id": dataset.category_ids[thing.category],
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": thing.area,
        "iscrowd": int(thing.crowd or thing.difficult),
    }
    if isinstance(thing.mask, RLE):
        size = [thing.mask.height, thing.mask.width]
        entry["segmentation"] = {"size": size, "counts": write_counts(thing.mask.counts)}
    elif thing.mask:
        entry["segmentation"] = [list(polygon) for polygon in thing.mask]
    if dataset.keypoint_names:
        points = thing.keypoints or ((0.0, 0.0, 0),) * len(dataset.keypoint_names)
        entry["keypoints"] = [value for point in points for value in point]
    return entry
