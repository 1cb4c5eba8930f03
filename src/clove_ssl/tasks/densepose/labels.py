"""The DensePose labels of one person, as DensePose-COCO writes them, or what is wrong with them.

``dp_x`` and ``dp_y`` place points in the person's box, which is 256 units wide and high there.
``dp_I`` is their part of the body, ``dp_U`` and ``dp_V`` where on it they are. ``dp_masks`` are
masks of 14 regions of the body as COCO's compressed runs of 256 x 256 pixels of the box, with an
empty list for regions that are not seen; one mask of the whole person is accepted too.

Dimensions: P points of a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.tasks.densepose.surfaces import PART_COUNT, Floats, Places
from clove_ssl.tasks.detection.coco_annotations import Faulty
from clove_ssl.tasks.labels.rle import RLE, decode_mask, encode_mask, read_counts, write_counts

SIDE = 256
"""Pixels of a box in which labels live."""
_REGIONS = 14
_POINTS = ("dp_x", "dp_y", "dp_I", "dp_U", "dp_V")
_LIMITS = {"dp_x": SIDE, "dp_y": SIDE, "dp_I": PART_COUNT, "dp_U": 1, "dp_V": 1}


@dataclass(frozen=True, eq=False)
class PersonLabels:
    """What is known about the surface of a person."""

    points: Floats  # (P, 2) x, y in 0..256 of the box
    places: Places  # P
    runs: str | None  # compressed runs of the mask; text, because a dataset holds many

    def mask(self) -> NDArray[np.bool_] | None:
        """The pixels of the person: (256, 256)."""
        return None if self.runs is None else decode_mask(RLE(SIDE, SIDE, read_counts(self.runs)))


def read_labels(entry: Mapping[str, Any]) -> PersonLabels | None:
    """The labels of an annotation, None where it has none, or :class:`Faulty`."""
    present = [name for name in _POINTS if name in entry]
    if not present:
        return None
    if len(present) < len(_POINTS):
        missing = [name for name in _POINTS if name not in entry]
        raise Faulty(f"has {present[0]}, but no {', '.join(missing)}.")
    columns = {name: _column(entry[name], name) for name in _POINTS}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        raise Faulty(f"has {shown}; expected one of each for every point.")
    parts = columns["dp_I"]
    if (parts != np.floor(parts)).any():
        raise Faulty("has a dp_I that is no whole number; expected parts of the body, 1 to 24.")
    return PersonLabels(
        points=np.stack([columns["dp_x"], columns["dp_y"]], axis=1),
        places=Places(parts.astype(np.int64), np.stack([columns["dp_U"], columns["dp_V"]], axis=1)),
        runs=_read_masks(entry.get("dp_masks")),
    )


def write_labels(labels: PersonLabels) -> dict[str, Any]:
    """The fields that :func:`read_labels` reads."""
    # The regions of the body are not kept apart: training and scores look at the person as a whole.
    masks: list[Any] = [[] for _ in range(_REGIONS)]
    if labels.runs is not None:
        masks[0] = {"size": [SIDE, SIDE], "counts": labels.runs}
    values = (*labels.points.T, labels.places.parts, *labels.places.surface.T)
    columns = zip(_POINTS, values, strict=True)
    return {"dp_masks": masks} | {name: column.tolist() for name, column in columns}


def runs_of(mask: NDArray[np.bool_]) -> str:
    """A mask (256, 256) as text."""
    return write_counts(encode_mask(mask).counts)


def _column(values: Any, name: str) -> Floats:
    try:
        column = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        column = np.array(np.nan)
    if column.ndim != 1 or not np.isfinite(column).all():
        raise Faulty(f"has the {name} {str(values)[:80]}; expected a list of finite numbers.")
    outside = column[(column < 0) | (column > _LIMITS[name])]
    if len(outside):
        raise Faulty(f"has the {name} {outside[0]:g}; expected 0 to {_LIMITS[name]}.")
    return column


def _read_masks(value: Any) -> str | None:
    """All masks as one."""
    if isinstance(value, Mapping):
        value = [value] if value else []
    if not value:
        return None
    if not isinstance(value, list):
        raise Faulty(f"has dp_masks of type {type(value).__name__}; {_expected()}")
    if len(value) > _REGIONS:
        raise Faulty(f"has {len(value)} dp_masks; {_expected()}")
    known = [_read_mask(mask) for mask in value if mask]
    return runs_of(np.logical_or.reduce(known)) if known else None


def _read_mask(value: Any) -> NDArray[np.bool_]:
    if not isinstance(value, Mapping) or "counts" not in value:
        kind = "polygons" if isinstance(value, list) else type(value).__name__
        raise Faulty(f"has {kind} in dp_masks; {_expected()}")
    if value.get("size") != [SIDE, SIDE]:
        raise Faulty(f"has a mask of size {value.get('size')} in dp_masks; {_expected()}")
    counts = value["counts"]
    try:
        runs = read_counts(counts) if isinstance(counts, str) else tuple(map(int, counts))
        return decode_mask(RLE(SIDE, SIDE, runs))
    except (TypeError, ValueError, OverflowError) as error:
        raise Faulty(f"has damaged runs in dp_masks ({error}); {_expected()}") from None


def _expected() -> str:
    return (
        f"expected up to {_REGIONS} masks as COCO's compressed runs of {SIDE} x {SIDE} pixels, "
        '{"size": [256, 256], "counts": text}, or [] for those that are not seen.'
    )
