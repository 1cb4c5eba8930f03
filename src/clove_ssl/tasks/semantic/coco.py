"""COCO's instances as a class for every pixel, for probes.

Larger objects are painted first, so that what lies on them stays visible. Pixels of no
object are background, class 0; those of a crowd are judged by nobody, unless an object
lies there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clove_ssl.data.labels.mask_folders import read_picture
from clove_ssl.data.labels.pixels import IGNORE
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.polygons import draw_mask
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample


class InstanceLabels:
    """The images of a set that have masks.

    Args:
        dataset: What :func:`~clove_ssl.tasks.detection.coco.read_coco` gave.
        origin: The file, for messages.
    """

    def __init__(self, dataset: DetectionDataset, origin: Path) -> None:
        self.class_names = ("background", *dataset.class_names)
        if len(self.class_names) > IGNORE:
            raise UserError(
                f"{origin} has {len(dataset.class_names)} classes; probes of pixels take {IGNORE} "
                "at most. Give a file with fewer, such as COCO's 80."
            )
        self._samples = [s for s in dataset.samples if any(a.mask for a in s.annotations)]
        if not self._samples:
            raise UserError(f"No annotation of {origin} has a mask. Give a file of instances.")

    def __len__(self) -> int:
        return len(self._samples)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        sample = self._samples[index]
        image = read_picture(sample.image)
        labels = paint(sample)
        if tuple(image.shape[1:]) != labels.shape:
            raise UserError(
                f"{sample.image} has {tuple(image.shape[1:])} pixels, but its entry says "
                f"{labels.shape}. Give the images that the annotations were made for."
            )
        return image, torch.from_numpy(labels)


def paint(sample: Sample) -> NDArray[np.uint8]:
    """The label map (H, W) of an image."""
    labels = np.zeros((sample.height, sample.width), np.uint8)
    order = sorted(sample.annotations, key=lambda a: (not a.crowd, -a.area))
    for annotation in order:
        if annotation.mask is not None:
            mask = draw_mask(annotation.mask, height=sample.height, width=sample.width)
            labels[mask] = IGNORE if annotation.crowd else annotation.category + 1
    return labels
