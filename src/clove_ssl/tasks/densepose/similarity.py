"""How well found persons agree with labelled ones: by surface, by mask and by box.

Geodesic point similarity (GPS): for every labelled point the detection says where on the body it
is; the way from there to the truth along the surface, g, gives exp(-g^2 / (2 kappa^2)), and the
mean over the points is the similarity. A point that the detection does not cover has an infinite
way. Boxes are x, y, width, height in pixels of the image, as in the files.

Where these rules cut to whole pixels they do what the DensePose project's evaluator does, because
published scores are made with it.

Dimensions: D detections and G labelled persons of one image, P points of a person, H x W pixels of
the image, h x w pixels of a detection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clove_ssl.tasks.densepose.surfaces import KAPPA, Floats, Ints, Places, Surface

Bits = NDArray[np.bool_]
Box = tuple[float, float, float, float]

POINT_UNITS = 255
"""A box is this wide for labelled points; training takes 256 (both are the DensePose project's)."""


@dataclass(frozen=True)
class LabelledPerson:
    """A person of the ground truth."""

    box: Box
    area: float  # pixels, as the file says
    crowd: bool = False
    points: Floats | None = None  # (P, 2) x, y in 0..255 of the box; None without labels
    places: Places | None = None  # P
    mask: PlacedMask | None = None


@dataclass(frozen=True)
class FoundPerson:
    """A person that was found."""

    box: Box
    score: float
    surface: NDArray[np.uint8]  # (3, h, w) part, U, V

    @property
    def area(self) -> float:
        """Pixels of the box."""
        return self.box[2] * self.box[3]


@dataclass(frozen=True)
class PlacedMask:
    """The part of a mask that lies in the image; all around it there is nothing."""

    top: int
    left: int
    bits: Bits  # (h, w)

    @property
    def area(self) -> int:
        """Pixels inside."""
        return int(np.count_nonzero(self.bits))


@dataclass(frozen=True)
class Similarities:
    """All pairs of an image."""

    points: Floats  # (D, G) geodesic point similarity; 0 for persons without labels
    masks: Floats  # (D, G) intersection over union of masks
    boxes: Floats  # (D, G) intersection over union of boxes


def compare(
    found: Sequence[FoundPerson],
    truth: Sequence[LabelledPerson],
    *,
    image_size: tuple[int, int],
    surface: Surface | None,
) -> Similarities:
    """Compare all detections of an image with all its persons; without a surface points are 0."""
    crowds = np.array([person.crowd for person in truth], bool)
    masks = [place_mask(each.surface[0] > 0, each.box, image_size) for each in found]
    nothing = PlacedMask(0, 0, np.zeros((0, 0), bool))
    known = [person.mask or nothing for person in truth]
    boxes = [np.array([each.box for each in group]).reshape(-1, 4) for group in (found, truth)]
    pairs = len(found), len(truth)
    return Similarities(
        points=np.zeros(pairs) if surface is None else point_similarities(found, truth, surface),
        masks=mask_overlaps(masks, known, crowds),
        boxes=box_overlaps(boxes[0], boxes[1], crowds),
    )


def point_similarities(
    found: Sequence[FoundPerson], truth: Sequence[LabelledPerson], surface: Surface
) -> Floats:
    """GPS of all pairs: (D, G)."""
    result = np.zeros((len(found), len(truth)))
    for column, person in enumerate(truth):
        if person.points is None or person.places is None or not found:
            continue
        labelled = person.places.parts > 0
        if not labelled.any():
            continue
        true = Places(person.places.parts[labelled], person.places.surface[labelled])
        said = [_places_at(each, person, labelled) for each in found]
        distances = surface.distances(
            true,
            Places(
                np.stack([each.parts for each in said]), np.stack([each.surface for each in said])
            ),
        )  # (D, P)
        closeness = point_closeness(distances, KAPPA[true.parts])
        result[:, column] = closeness.mean(axis=1)
    return result


def point_closeness(distances: Floats, kappa: Floats) -> Floats:
    """1 for no distance, falling to 0."""
    closeness: Floats = np.exp(-np.square(distances) / (2 * np.square(kappa)))
    return closeness


def _places_at(found: FoundPerson, person: LabelledPerson, labelled: Bits) -> Places:
    """What a detection says at the labelled points of a person."""
    assert person.points is not None
    scale = np.array(person.box[2:]) / POINT_UNITS
    shift = np.array(person.box[:2]) - np.array(found.box[:2])
    # Cut, not rounded, and towards 0: a point up to a pixel left of the box still falls into column
    # 0.
    column, row = (person.points[labelled] * scale + shift).astype(np.int64).T
    width, height = int(found.box[2]), int(found.box[3])
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height)
    parts = np.zeros(len(inside), np.int64)
    surface = np.zeros((len(inside), 2))
    values = found.surface[:, row[inside], column[inside]]  # (3, p)
    parts[inside] = values[0]
    # U and V are stored as bytes, so a place is known to a 255th of its part.
    surface[inside] = values[1:].T / 255.0
    return Places(parts, surface)


def place_mask(mask: Bits, box: Box, image_size: tuple[int, int]) -> PlacedMask:
    """A mask (h, w) whose first pixel is that of the box's corner, cut to box and image."""
    x, y, width, height = box
    # Corner and far side are cut apart from each other, so a mask may lose its last row or column.
    left, top = int(x), int(y)
    right = min(int(x + width), image_size[1], left + mask.shape[1])
    bottom = min(int(y + height), image_size[0], top + mask.shape[0])
    first_row, first_column = max(top, 0), max(left, 0)
    cut = mask[first_row - top : max(bottom - top, 0), first_column - left : max(right - left, 0)]
    return PlacedMask(first_row, first_column, cut)


def mask_in_box(mask: Bits, box: Box, image_size: tuple[int, int]) -> PlacedMask:
    """A labelled mask (256, 256) in the pixels of its box and of the image."""
    width, height = (max(side, 1.0) for side in box[2:])
    # Linear and then cut at a half, axis after axis, as the evaluator's zoom of the mask does.
    soft = _stretched(_stretched(mask.astype(np.float64), height), width, axis=1)
    return place_mask(soft > 0.5, box, image_size)


def whole_mask(mask: Bits) -> PlacedMask:
    """A mask of the whole image (H, W), without its empty border."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return PlacedMask(0, 0, mask[:0, :0])
    window = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return PlacedMask(int(rows[0]), int(columns[0]), window)


def mask_overlaps(found: Sequence[PlacedMask], truth: Sequence[PlacedMask], crowds: Bits) -> Floats:
    """Intersection over union of all pairs; for a crowd over the detection alone: (D, G)."""
    shared = np.array([[_shared(a, b) for b in truth] for a in found], np.float64)
    shared = shared.reshape(len(found), len(truth))
    mine, theirs = (np.array([each.area for each in group], np.float64) for group in (found, truth))
    return _over_union(shared, mine, theirs, crowds)


def box_overlaps(found: Floats, truth: Floats, crowds: Bits) -> Floats:
    """The same for boxes (D, 4) and (G, 4): (D, G)."""
    low = np.maximum(found[:, None, :2], truth[:, :2])
    high = np.minimum((found[:, :2] + found[:, 2:])[:, None], truth[:, :2] + truth[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    return _over_union(shared, found[:, 2:].prod(axis=1), truth[:, 2:].prod(axis=1), crowds)


def _over_union(shared: Floats, mine: Floats, theirs: Floats, crowds: Bits) -> Floats:
    # COCO's rule for crowds: how much of the detection lies inside, as nobody knows the single
    # persons.
    union = np.where(crowds, mine[:, None], mine[:, None] + theirs - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def _shared(a: PlacedMask, b: PlacedMask) -> int:
    """Pixels that are in both masks."""
    top, left = max(a.top, b.top), max(a.left, b.left)
    bottom = min(a.top + a.bits.shape[0], b.top + b.bits.shape[0])
    right = min(a.left + a.bits.shape[1], b.left + b.bits.shape[1])
    if top >= bottom or left >= right:
        return 0
    mine, theirs = (
        each.bits[top - each.top : bottom - each.top, left - each.left : right - each.left]
        for each in (a, b)
    )
    return int(np.count_nonzero(mine & theirs))


def _stretched(values: Floats, length: float, *, axis: int = 0) -> Floats:
    """Values along an axis, linear in between, with the first and last ones at the ends."""
    count = values.shape[axis]
    # Not ``round(length)``: with floats the detour decides now and then about a pixel.
    size = round(count * (length / count))
    places = np.arange(size) * ((count - 1) / (size - 1) if size > 1 else 0.0)
    low: Ints = np.minimum(places.astype(np.int64), count - 1)
    share = (places - low).reshape(-1, 1) if axis == 0 else places - low
    high = np.minimum(low + 1, count - 1)
    stretched: Floats = values.take(low, axis) * (1 - share) + values.take(high, axis) * share
    return stretched
