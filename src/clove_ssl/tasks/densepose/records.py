"""Predictions of persons and their surface: records in files, and what scores are made from.

A record is one of COCO's result format with one more field, ``iuv``: the part, U and V of every
pixel of the box as the three channels of a PNG, in base64. The box is cut to whole pixels.

Dimensions: h x w pixels of a box.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.painting.predictions import (
    SurfaceMap,
    paint_colour_map,
    paint_contours,
    paint_points,
)
from clove_ssl.tasks.densepose.labels import SIDE
from clove_ssl.tasks.densepose.reader import DensePoseDataset, labels_of
from clove_ssl.tasks.densepose.scores import DETECTIONS, ImagePersons
from clove_ssl.tasks.densepose.similarity import (
    Box,
    FoundPerson,
    LabelledPerson,
    PlacedMask,
    mask_in_box,
    whole_mask,
)
from clove_ssl.tasks.densepose.surfaces import PART_COUNT, Floats, Ints
from clove_ssl.tasks.labels.polygons import draw_mask
from clove_ssl.tasks.labels.samples import Annotation, Sample
from clove_ssl.tasks.loading.images import read_image
from clove_ssl.tasks.pictures import LEAST_SCORE, spread, write_sheets
from clove_ssl.tasks.predictions import PREDICT_AGAIN, Record

IUV = "iuv"
# What reading base64 and PNGs raises; broken chunks are syntax errors to Pillow.
_DAMAGE = (KeyError, TypeError, ValueError, SyntaxError, OSError, Image.DecompressionBombError)


def image_persons(dataset: DensePoseDataset, records: Sequence[Record]) -> Iterator[ImagePersons]:
    """Truth and the best predictions of every image."""
    by_image: dict[int | str, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        by_image[record["image_id"]].append(number)
    for sample in dataset.samples:
        own = by_image[sample.identifier]
        best = sorted(own, key=lambda number: -records[number]["score"])[:DETECTIONS]
        yield ImagePersons(
            size=(sample.height, sample.width),
            truth=tuple(_labelled(person, sample) for person in sample.annotations),
            found=tuple(_found(records[number], number) for number in best),
        )


def _found(record: Record, number: int) -> FoundPerson:
    x, y, width, height = (float(value) for value in record["bbox"])
    box = (x, y, width, height)
    return FoundPerson(box, float(record["score"]), decode_surface(record, number))


def _labelled(person: Annotation, sample: Sample) -> LabelledPerson:
    x0, y0, x1, y1 = person.box
    box = (x0, y0, x1 - x0, y1 - y0)
    labels = labels_of(person)
    return LabelledPerson(
        box,
        person.area,
        crowd=person.crowd,
        points=None if labels is None else labels.points,
        places=None if labels is None else labels.places,
        mask=true_mask(person, sample, box),
    )


def true_mask(person: Annotation, sample: Sample, box: Box) -> PlacedMask | None:
    """The mask of the labels, or else that of the object."""
    size = (sample.height, sample.width)
    labels = labels_of(person)
    bits = None if labels is None else labels.mask()
    if bits is not None:
        return mask_in_box(bits, box, size)
    if person.mask is None:
        return None
    return whole_mask(draw_mask(person.mask, height=size[0], width=size[1]))


def encode_surface(surface: Tensor) -> str:
    """Part, U and V (3, h, w) as text."""
    file = BytesIO()
    Image.fromarray(surface.permute(1, 2, 0).contiguous().cpu().numpy()).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def decode_surface(record: Record, number: int) -> NDArray[np.uint8]:
    """Part, U and V (3, h, w) of prediction ``number``."""
    try:
        data = base64.b64decode(record[IUV], validate=True)
        with Image.open(BytesIO(data), formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except _DAMAGE as error:
        raise UserError(
            f"Prediction {number} has no readable {IUV} ({type(error).__name__}); expected part, U "
            f"and V of its box as a PNG in base64. {PREDICT_AGAIN}"
        ) from None
    expected = tuple(max(int(side), 1) for side in reversed(record["bbox"][2:]))
    if pixels.shape != (*expected, 3) or pixels.dtype != np.uint8:
        raise UserError(
            f"Prediction {number} has an {IUV} of {pixels.shape}; expected {(*expected, 3)}, the "
            f"height and width of its box and three channels of 8 bits. {PREDICT_AGAIN}"
        )
    surface: NDArray[np.uint8] = pixels.transpose(2, 0, 1)
    if surface[0].max() > PART_COUNT:
        raise UserError(
            f"Prediction {number} has part {surface[0].max()} in its {IUV}; expected 1 to "
            f"{PART_COUNT}, or 0 for none. {PREDICT_AGAIN}"
        )
    return surface


def paint_surfaces(
    dataset: DensePoseDataset,
    records: Sequence[Record],
    folder: Path,
    *,
    count: int = 12,
) -> list[Path]:
    """Draw some images of a test set, spread over it, those with labelled persons first."""
    by_image: dict[int | str, list[tuple[int, Record]]] = defaultdict(list)
    for number, record in enumerate(records):
        if IUV in record and record["score"] >= LEAST_SCORE:
            by_image[record["image_id"]].append((number, record))
    full = [s for s in dataset.samples if any(labels_of(p) is not None for p in s.annotations)]
    samples = spread(full or dataset.samples, count)

    def paint(number: int) -> list[Image.Image]:
        sample = samples[number]
        return _paint_row(sample, by_image[sample.identifier])

    return write_sheets(folder, len(samples), paint)


def _paint_row(sample: Sample, records: Sequence[tuple[int, Record]]) -> list[Image.Image]:
    pixels = read_image(sample.image, (sample.height, sample.width))
    # The best one is painted last, on top.
    ordered = sorted(records, key=lambda entry: float(entry[1]["score"]))
    surfaces = [_surface(record, number) for number, record in ordered]
    points, parts = _labelled_points(sample)
    found = f"{len(surfaces)} with a score of {LEAST_SCORE:g} or more"
    return [
        paint_points(pixels, points, parts, caption=f"{sample.identifier}: labelled points"),
        paint_colour_map(pixels, surfaces, caption=f"prediction: {found}"),
        paint_contours(pixels, surfaces, caption="lines of equal U (orange) and V (blue)"),
    ]


def _surface(record: Record, number: int) -> SurfaceMap:
    left, top = (int(value) for value in record["bbox"][:2])
    return SurfaceMap(left, top, decode_surface(record, number))


def _labelled_points(sample: Sample) -> tuple[Floats, Ints]:
    """The labelled points of all persons in the image (P, 2), and their parts (P,)."""
    places, parts = [np.zeros((0, 2))], [np.zeros(0, np.int64)]
    for person in sample.annotations:
        labels = labels_of(person)
        if labels is not None:
            x0, y0, x1, y1 = person.box
            places.append(labels.points * (x1 - x0, y1 - y0) / SIDE + (x0, y0))
            parts.append(labels.places.parts)
    return np.concatenate(places), np.concatenate(parts)
