"""What a model found in one image, in the form that is drawn and written.

Objects are records of COCO's result format, segmentations a class for every pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.finetuning.finetuned import FinetunedModel
from clove_ssl.painting.predictions import paint_classes_in_place, paint_things_in_place
from clove_ssl.predicting.inputs import InputImage
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample
from clove_ssl.tasks.pictures import found_things
from clove_ssl.tasks.predictions import LabelMap, Record, detection_records
from clove_ssl.tasks.rcnn.instances import ImageDetections


@dataclass(frozen=True)
class Meaning:
    """What the numbers of a model stand for."""

    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]  # what files call these classes
    keypoint_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: FinetunedModel) -> Meaning:
        """What the numbers of ``model`` stand for."""
        known = model.vocabulary
        numbers = known.category_ids or tuple(range(len(known.class_names)))
        return cls(known.class_names, numbers, known.keypoint_names)

    @property
    def dataset(self) -> DetectionDataset:
        """The same as a data set without images."""
        return DetectionDataset((), self.class_names, self.category_ids, self.keypoint_names)

    def name_of(self, record: Record) -> str:
        """The class of an object, in words."""
        return self.class_names[self.category_ids.index(record["category_id"])]


@dataclass(frozen=True)
class Found:
    """An image and what is in it: objects, or a class for every pixel."""

    name: str
    place: str
    number: int  # from 1 on, in the order of the images
    width: int
    height: int
    records: list[Record]
    classes: LabelMap | None = None  # (H, W)


def interpret(
    image: InputImage, prediction: Any, meaning: Meaning, *, number: int, least_score: float
) -> Found:
    """What a model said about an image; objects with lower scores are left out."""
    assert isinstance(image.pixels, Tensor)
    height, width = image.pixels.shape[-2:]
    if isinstance(prediction, ImageDetections):
        sample = Sample(Path(image.name), number, width, height, ())
        records = detection_records(prediction, sample, category_ids=meaning.category_ids)
        kept = [record for record in records if record["score"] >= least_score]
        return Found(image.name, image.place, number, width, height, kept)
    if isinstance(prediction, Tensor):
        classes = prediction.numpy()
        return Found(image.name, image.place, number, width, height, [], classes)
    raise UserError(
        f"Predictions of the kind {type(prediction).__name__} can be neither drawn nor written. "
        "Use the model from Python: clove_ssl.load_finetuned(RUN)(image)"
    )


def paint(image: InputImage, found: Found, meaning: Meaning) -> Image.Image:
    """The image with what is in it, in its own size."""
    assert isinstance(image.pixels, Tensor)
    pixels = np.ascontiguousarray(image.pixels.permute(1, 2, 0).numpy())
    if found.classes is not None:
        return paint_classes_in_place(pixels, found.classes, meaning.class_names)
    best_last = sorted(found.records, key=lambda record: float(record["score"]))
    return paint_things_in_place(pixels, found_things(best_last, meaning.dataset))
