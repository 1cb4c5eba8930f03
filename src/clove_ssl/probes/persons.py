"""Crops around persons with keypoints, from scenes or from files in COCO's format.

A crop is the square around a person's box, a quarter wider than its longer side; what
lies outside the image is grey. Persons below 32 pixels or with fewer than three
keypoints in sight are left out: one cannot see on them what is asked.

Dimensions: N persons in crops of S x S pixels, P keypoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.probes.images import in_threads, scale, spread
from clove_ssl.probes.keypoints import Persons
from clove_ssl.tasks.labels.samples import Annotation, Box, DetectionDataset, Keypoints

SMALLEST = 32
FEWEST = 3
_WIDER = 1.25
_GREY = 128.0
_SEEN = 2  # COCO's mark of a keypoint that is in the image and not hidden


@dataclass(frozen=True)
class Person:
    """Where a person is."""

    load: Callable[[], Tensor]  # the image, uint8 (3, H, W)
    box: Box
    keypoints: Keypoints

    @property
    def is_clear(self) -> bool:
        """Whether there is enough to see."""
        x0, y0, x1, y1 = self.box
        seen = sum(v == _SEEN for _, _, v in self.keypoints)
        return max(x1 - x0, y1 - y0) >= SMALLEST and seen >= FEWEST


def persons_of_dataset(dataset: DetectionDataset) -> list[Person]:
    """The persons of an annotation file."""

    def people() -> Iterator[Person]:
        for sample in dataset.samples:
            for annotation in sample.annotations:
                if annotation.keypoints and not annotation.crowd:
                    yield _person(sample.image, annotation)

    return [person for person in people() if person.is_clear]


def _person(path: Path, annotation: Annotation) -> Person:
    def load() -> Tensor:
        try:
            return decode(path.read_bytes())
        except (DecodeError, OSError) as error:
            raise UserError(
                f"{path} cannot be probed: {error}. Repair or remove the file."
            ) from None

    return Person(load, annotation.box, annotation.keypoints or ())


def persons_of_scenes(source: SceneSource) -> list[Person]:
    """The persons of built-in scenes."""
    found = []
    for scene in in_threads(source.scene, range(len(source))):
        image = torch.from_numpy(scene.image).permute(2, 0, 1)
        for thing in scene.objects:
            if thing.keypoints is not None:
                points = tuple((x, y, int(v)) for x, y, v in thing.keypoints.tolist())
                found.append(Person(partial(torch.clone, image), thing.box, points))
    return [person for person in found if person.is_clear]


def crop_persons(persons: list[Person], *, size: int, limit: int) -> Persons:
    """At most ``limit`` persons, spread evenly, in crops of one size."""
    if not persons:
        raise UserError(
            f"No person has {FEWEST} keypoints in sight and {SMALLEST} pixels. Give the probe "
            "larger or other images with keypoints, or leave the keypoint probe out."
        )
    chosen = spread(len(persons), limit)
    crops = in_threads(lambda index: _crop(persons[index], size), chosen)
    images, points, visible, extent = zip(*crops, strict=True)
    return Persons(
        torch.stack(images), torch.stack(points), torch.stack(visible), torch.tensor(extent)
    )


def _crop(person: Person, size: int) -> tuple[Tensor, Tensor, Tensor, float]:
    x0, y0, x1, y1 = person.box
    longer = max(x1 - x0, y1 - y0)
    side = max(1, round(_WIDER * longer))
    left, top = round((x0 + x1 - side) / 2), round((y0 + y1 - side) / 2)
    image = person.load()  # (3, H, W)
    height, width = image.shape[1:]
    inside = image[
        :, max(0, top) : min(height, top + side), max(0, left) : min(width, left + side)
    ].float()
    margins = (-left, left + side - width, -top, top + side - height)  # what the image lacks
    padded = F.pad(inside, [max(0, margin) for margin in margins], value=_GREY)
    zoom = size / side
    points = torch.tensor([(x - left, y - top) for x, y, _ in person.keypoints]) * zoom
    visible = torch.tensor([v == _SEEN for _, _, v in person.keypoints])
    return scale(padded.byte(), size), points, visible, longer * zoom
