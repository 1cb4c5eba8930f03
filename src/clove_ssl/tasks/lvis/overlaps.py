"""How much detections and objects overlap, as boxes or as masks, for many pairs at once.

Masks are compared as runs by the C++ of faster-coco-eval, a group of detections and objects at a
time. Overlap is intersection over union.

Dimensions: P pairs, D detections, G objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco_scores import why_no_coco_scores
from clove_ssl.tasks.labels.rle import RLE, first_items, measure_runs, write_counts
from clove_ssl.tasks.labels.samples import Annotation, Sample
from clove_ssl.tasks.lvis.federated import Floats, Integers, Overlaps
from clove_ssl.tasks.scoring.results import Record

Owned = tuple[Annotation, Sample]
"""An object and the image it is in."""


class Shapes(Protocol):
    """What is compared."""

    def areas(self, found: Sequence[Record]) -> Floats:
        """The sizes of detections: (D,)."""

    def overlaps(self, found: Sequence[Record], objects: Sequence[Owned]) -> Overlaps:
        """A function of detections and objects, both (P,), that gives their overlaps (P,)."""


class Boxes:
    """Detections and objects by their boxes."""

    def areas(self, found: Sequence[Record]) -> Floats:
        """Width times height: (D,)."""
        sides = _table([record["bbox"][2:] for record in found], 2)
        area: Floats = sides[:, 0] * sides[:, 1]
        return area

    def overlaps(self, found: Sequence[Record], objects: Sequence[Owned]) -> Overlaps:
        """Of boxes, as they stand in the records."""
        theirs = _table([thing.box for thing, _ in objects], 4)  # (G, 4) x0, y0, x1, y1
        mine = _table([record["bbox"] for record in found], 4)  # (D, 4)
        mine[:, 2:] += mine[:, :2]

        def compare(detection: Integers, thing: Integers) -> Floats:
            a, b = mine[detection], theirs[thing]  # (P, 4)
            sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
            shared = np.prod(np.maximum(sides, 0), axis=1)
            whole = np.prod(a[:, 2:] - a[:, :2], axis=1) + np.prod(b[:, 2:] - b[:, :2], axis=1)
            share: Floats = shared / (whole - shared)
            return share

        return compare


class Masks:
    """Detections and objects by their masks."""

    def __init__(self) -> None:
        if missing := why_no_coco_scores():
            raise UserError(missing)
        self._tools: Any = import_module("faster_coco_eval.core.mask")

    def areas(self, found: Sequence[Record]) -> Floats:
        """Pixels of the masks: (D,)."""
        texts = [record["segmentation"]["counts"] for record in found]
        return measure_runs(texts).inside.astype(np.float64)

    def overlaps(self, found: Sequence[Record], objects: Sequence[Owned]) -> Overlaps:
        """Of masks; the pairs of a group are all its detections with all its objects."""

        def compare(detection: Integers, thing: Integers) -> Floats:
            rows = first_items(detection)  # where a detection begins
            begins = rows[first_items(thing[rows])]  # where a group does
            ends = np.append(begins[1:], len(detection))
            overlap = np.zeros(len(detection))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                first, last = thing[begin], thing[end - 1]
                truth = [self._runs(*objects[number]) for number in range(first, last + 1)]
                guess = [
                    found[number]["segmentation"] for number in detection[begin : end : len(truth)]
                ]
                table = self._tools.iou(guess, truth, [0] * len(truth))
                overlap[begin:end] = np.asarray(table).ravel()
            return overlap

        return compare

    def _runs(self, thing: Annotation, sample: Sample) -> Any:
        """The mask of an object as the tools take it."""
        if isinstance(thing.mask, RLE):
            size = [thing.mask.height, thing.mask.width]
            return {"size": size, "counts": write_counts(thing.mask.counts)}
        if not thing.mask:
            raise UserError(
                f"Annotation {thing.identifier} of {sample.image} has no mask, which mask scores "
                "need. Score with annotations that were made for this task."
            )
        polygons = [list(polygon) for polygon in thing.mask]
        return self._tools.merge(self._tools.frPyObjects(polygons, sample.height, sample.width))


def _table(rows: Sequence[Sequence[float]], columns: int) -> Floats:
    return np.array(rows, np.float64).reshape(-1, columns)
