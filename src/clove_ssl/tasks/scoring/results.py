"""Records in COCO's result format: what must be in them, before an evaluator sees them.

Evaluators leave out what they do not know without a word, and fail on odd values without a name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import RLE, measure_runs, read_counts

Kind = Literal["box", "mask", "keypoints"]
Record = Mapping[str, Any]
ImageSizes = Mapping[int | str, tuple[int, int]]  # height and width by image id

FIELDS: dict[Kind, str] = {"box": "bbox", "mask": "segmentation", "keypoints": "keypoints"}

_AGAIN = "Write predictions again in COCO's result format."
_LARGEST = 1e9  # pixels


def check_results(
    records: Sequence[Record],
    *,
    images: ImageSizes,
    categories: Collection[int],
    kind: Kind,
    keypoints: int = 0,
) -> None:
    """Refuse predictions of other data, and values that are none; the first one is named."""
    for number, record in enumerate(records):
        missing = {"image_id", "category_id", "score", FIELDS[kind]} - record.keys()
        if missing:
            raise UserError(
                f"Prediction {number} has no {', '.join(sorted(missing))}, which {kind} scores "
                f"need. {_AGAIN}"
            )
        _check_reference(number, record, "image_id", images)
        _check_reference(number, record, "category_id", categories)
        if not is_number(record["score"]):
            raise UserError(
                f"Prediction {number} has the score {record['score']!r}; expected a finite "
                "number. Look for NaN in the weights of the detector."
            )
        if kind != "mask":
            _check_numbers(number, record, kind, keypoints)
    if kind == "mask":
        _check_masks(records, images)


def is_number(value: object) -> bool:
    """Whether a value is finite, and no larger than anything in an image."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _check_reference(
    number: int, record: Record, field: str, known: Collection[int | str] | Collection[int]
) -> None:
    value = record[field]
    if not isinstance(value, int | str) or isinstance(value, bool) or value not in known:
        raise UserError(
            f"Prediction {number} has {field} {value!r}, which the ground truth does not list. "
            "Score predictions with the annotations they were made for."
        )


def _check_numbers(number: int, record: Record, kind: Kind, keypoints: int) -> None:
    value = record[FIELDS[kind]]
    count = 4 if kind == "box" else 3 * keypoints
    sound = isinstance(value, list | tuple) and len(value) == count
    sound = sound and all(map(is_number, value)) and (kind != "box" or min(value[2:]) >= 0)
    if not sound:
        what = "x, y, width, height" if kind == "box" else f"x, y, v of {keypoints} keypoints"
        raise _odd_value(number, record, kind, f"expected {what}")


def _check_masks(records: Sequence[Record], images: ImageSizes) -> None:
    """Look at all masks together; on runs that end early evaluators never return."""
    for number, record in enumerate(records):
        value, size = record[FIELDS["mask"]], list(images[record["image_id"]])
        if not isinstance(value, Mapping) or value.get("size") != size:
            raise _odd_value(number, record, "mask", f"expected an RLE of size {size}")
        if not isinstance(value.get("counts"), str):
            raise _odd_value(number, record, "mask", "expected compressed counts")
    totals = measure_runs([record[FIELDS["mask"]]["counts"] for record in records])
    pixels = [height * width for height, width in (images[r["image_id"]] for r in records)]
    odd = np.flatnonzero(~totals.sound | (totals.pixels != np.array(pixels, np.int64)))
    if len(odd):
        number = int(odd[0])
        fault = _runs_fault(records[number][FIELDS["mask"]])
        raise _odd_value(number, records[number], "mask", f"it is damaged: {fault}")


def _runs_fault(value: Record) -> str:
    height, width = value["size"]
    try:
        RLE(height, width, read_counts(value["counts"]))
    except ValueError as error:
        return str(error)
    raise AssertionError("one mask is sound, but not among others")


def _odd_value(number: int, record: Record, kind: Kind, fault: str) -> UserError:
    value = str(record[FIELDS[kind]])[:80]
    return UserError(f"Prediction {number} has the {FIELDS[kind]} {value}; {fault}. {_AGAIN}")
