"""Pictures of persons: labelled points, and what a model says about the surface."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from clove_ssl.painting.densepose import SurfaceMap, draw_colour_map, draw_contours, draw_points
from clove_ssl.tasks.densepose.labels import SIDE
from clove_ssl.tasks.densepose.reader import DensePoseDataset, labels_of
from clove_ssl.tasks.densepose.records import IUV, decode_surface
from clove_ssl.tasks.densepose.surfaces import Floats, Ints
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.loading.images import read_image
from clove_ssl.tasks.pictures import LEAST_SCORE, spread, write_sheets
from clove_ssl.tasks.predictions import Record


def draw_surfaces(
    dataset: DensePoseDataset,
    records: Sequence[Record],
    folder: Path,
    *,
    count: int = 12,
    least_score: float = LEAST_SCORE,
) -> list[Path]:
    """Draw some images of a test set, spread over it, those with labelled persons first."""
    by_image: dict[int | str, list[tuple[int, Record]]] = defaultdict(list)
    for number, record in enumerate(records):
        if IUV in record and record["score"] >= least_score:
            by_image[record["image_id"]].append((number, record))
    full = [s for s in dataset.samples if any(labels_of(p) is not None for p in s.annotations)]
    samples = spread(full or dataset.samples, count)

    def draw(number: int) -> list[Image.Image]:
        sample = samples[number]
        return _draw_row(sample, by_image[sample.identifier], least_score)

    return write_sheets(folder, len(samples), draw)


def _draw_row(
    sample: Sample, records: Sequence[tuple[int, Record]], least_score: float
) -> list[Image.Image]:
    pixels = read_image(sample.image, (sample.height, sample.width))
    # The best one is drawn last, on top.
    ordered = sorted(records, key=lambda entry: float(entry[1]["score"]))
    surfaces = [_surface(record, number) for number, record in ordered]
    points, parts = _labelled_points(sample)
    found = f"{len(surfaces)} with a score of {least_score:g} or more"
    return [
        draw_points(pixels, points, parts, caption=f"{sample.identifier}: labelled points"),
        draw_colour_map(pixels, surfaces, caption=f"prediction: {found}"),
        draw_contours(pixels, surfaces, caption="lines of equal U (orange) and V (blue)"),
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
