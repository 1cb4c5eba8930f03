"""The keypoint probe: does a feature find the same part of another body?

For a test person and a few training persons: the feature at a keypoint of the one is
looked for in the map of the other, and the most similar place is the prediction. It
is right when it lies within a tenth of the longer side of the person's box (PCK at
0.1), and judged where both persons show the keypoint. Nothing is fitted.

Maps are scaled up bilinearly first, since a cell of a deep stage is as large as what
counts as right. A crop is the square around a person's box, a quarter wider than its longer side;
what lies outside the image is grey. Persons below 32 pixels or with fewer than three keypoints in
sight are left out: one cannot see on them what is asked.

Dimensions: N persons in crops of S x S pixels, B of them in a batch, P keypoints, R
training persons each is compared with, D channels, h x w cells, L = h * w.
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
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.probes.features import BATCH, FrozenFeatures, in_threads, scale, spread
from clove_ssl.probes.scores import Score, share
from clove_ssl.tasks.labels.samples import Annotation, Box, DetectionDataset, Keypoints

RADIUS = 0.1
"""How far a prediction may be off, as a share of the longer side of the person's box."""
COMPARISONS = 5
"""Training persons whose keypoints are looked for in each test person."""

_FINEST = 8  # pixels between places that are looked at


@dataclass(frozen=True)
class Persons:
    """Crops around persons; places are x, y in pixels of the crop."""

    images: Tensor  # (N, 3, S, S) uint8
    points: Tensor  # (N, P, 2)
    visible: Tensor  # (N, P) bool
    extent: Tensor  # (N,) longer side of the box

    def __len__(self) -> int:
        return len(self.images)


def keypoint_transfer(
    extract: FrozenFeatures, known: Persons, asked: Persons, *, seed: int
) -> Score:
    """Share of the keypoints of ``asked`` that features of ``known`` find."""
    if known.points.shape[1] != asked.points.shape[1]:
        raise UserError(
            f"Training persons have {known.points.shape[1]} keypoints and test persons "
            f"{asked.points.shape[1]}. Give the probe sets with the same keypoints."
        )
    generator = torch.Generator().manual_seed(seed)
    sources = torch.randint(len(known), (len(asked), COMPARISONS), generator=generator)  # (N, R)
    descriptors = _describe_all(extract, known)  # (N_known, P, D)
    counts = []
    for start in range(0, len(asked), BATCH):
        part = slice(start, start + BATCH)
        maps = _fine_map(extract, asked.images[part])
        both = known.visible[sources[part]] & asked.visible[part, None]  # (B, R, P)
        counts.append(
            count_transferred(
                descriptors[sources[part].to(maps.device)],
                maps,
                asked.points[part],
                judged=both.to(maps.device),
                radius=RADIUS * asked.extent[part],
                size=asked.images.shape[-1],
            )
        )
    right, judged, lucky = (torch.cat(parts) for parts in zip(*counts, strict=True))
    chance = (lucky.sum() / judged.sum().clamp(min=1)).item()
    return share(right, judged, chance=chance, seed=seed)


def _describe_all(extract: FrozenFeatures, persons: Persons) -> Tensor:
    """Features of all keypoints of all persons, (N, P, D)."""
    parts = zip(torch.split(persons.images, BATCH), torch.split(persons.points, BATCH), strict=True)
    return torch.cat(
        [
            describe_points(_fine_map(extract, images), points, size=images.shape[-1])
            for images, points in parts
        ]
    )


def describe_points(maps: Tensor, points: Tensor, *, size: int) -> Tensor:
    """Unit features (B, P, D) of maps (B, D, h, w) at places (B, P, 2) of a crop."""
    grid = (2 * points.to(maps) / size - 1)[:, :, None]  # (B, P, 1, 2)
    sampled = F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return unit_vectors(sampled[..., 0].mT)


def count_transferred(
    descriptors: Tensor,  # (B, R, P, D) of unit length
    maps: Tensor,  # (B, D, h, w)
    points: Tensor,  # (B, P, 2) where the keypoints are
    *,
    judged: Tensor,  # (B, R, P) bool
    radius: Tensor,  # (B,) in pixels
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keypoints found, judged and found by luck, (B,) each."""
    h, w = maps.shape[2:]
    cells = unit_vectors(maps.flatten(2), dim=1)  # (B, D, L)
    nearest = (descriptors.flatten(1, 2) @ cells).argmax(2)  # (B, R * P)
    places = _centers(h, w, size).to(maps)  # (L, 2)
    found = places[nearest].reshape(*descriptors.shape[:3], 2)  # (B, R, P, 2)
    limit = radius.to(maps)[:, None, None]
    off = (found - points.to(maps)[:, None]).norm(dim=-1)  # (B, R, P)
    away = points.to(maps)[:, :, None] - places  # (B, P, L, 2)
    near = away.norm(dim=-1) <= limit  # (B, P, L)
    lucky = near.double().mean(2)[:, None] * judged  # (B, R, P)
    right = (off <= limit) & judged
    return right.double().sum((1, 2)), judged.double().sum((1, 2)), lucky.sum((1, 2))


def _fine_map(extract: FrozenFeatures, images: Tensor) -> Tensor:
    maps = extract(images)  # (B, D, h, w)
    side = max(images.shape[-1] // _FINEST, maps.shape[2])
    return F.interpolate(maps, (side, side), mode="bilinear", align_corners=False)


def _centers(h: int, w: int, size: int) -> Tensor:
    """Centres of the cells of a map over a crop, (L, 2) x, y."""
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([(columns + 0.5) * size / w, (rows + 0.5) * size / h], -1).flatten(0, 1)


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
            return decode(read_whole(path))
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
