"""Predictions in the format that Cityscapes' evaluation server takes.

    <image>_pred.txt                   a line per detection: mask, label id, score
    masks/<image>_000_car.png          white where the detection is

``csEvalInstanceLevelSemanticLabeling`` reads them when CITYSCAPES_RESULTS names the folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.errors import UserError
from clove_ssl.tasks.cityscapes.maps import THINGS
from clove_ssl.tasks.labels.rle import RLE, decode_mask, encode_mask, read_counts, write_counts
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.predictions import Record

_MASKS = "masks"
_LIST_END = "_pred.txt"
_AGAIN = "Write the results again in the format of Cityscapes."


def write_results(folder: Path, records: Iterable[Record], *, samples: Sequence[Sample]) -> None:
    """Write a list for every image, also where nothing was found, and all masks."""
    by_image: dict[int | str, list[Record]] = defaultdict(list)
    for record in records:
        by_image[record["image_id"]].append(record)
    names = {label: name for name, label in THINGS.items()}
    try:
        (folder / _MASKS).mkdir(parents=True, exist_ok=True)
        for sample in samples:
            lines = []
            for number, record in enumerate(by_image[sample.identifier]):
                label = record["category_id"]
                mask = f"{_MASKS}/{sample.identifier}_{number:03d}_{names[label]}.png"
                Image.fromarray(_mask(record)).save(folder / mask)
                lines.append(f"{mask} {label} {record['score']!r}\n")
            write_text(folder / f"{sample.identifier}{_LIST_END}", "".join(lines))
    except OSError as error:
        raise unwritable("Predictions", folder, error) from None


def read_results(folder: Path, *, samples: Sequence[Sample]) -> list[Record]:
    """Read results of any program in that format; things alone, as the official tool does."""
    return [record for sample in samples for record in _read_list(folder, sample)]


def _read_list(folder: Path, sample: Sample) -> Iterable[Record]:
    path = folder / f"{sample.identifier}{_LIST_END}"
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Expected a list for every test image. "
            f"{_AGAIN}"
        ) from None
    for line in lines:
        try:
            mask, label, score = line.split(" ")
            category, confidence = int(float(label)), float(score)
        except ValueError:
            raise UserError(
                f"{path} has the line {line!r}; expected a mask, a label id and a score. {_AGAIN}"
            ) from None
        if category in THINGS.values():
            yield _record(path.parent / mask, sample, category, confidence)


def _record(path: Path, sample: Sample, category: int, score: float) -> Record:
    try:
        with Image.open(path) as picture:
            mask = np.array(picture.convert("L")) != 0
    except (OSError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read: {error}. {_AGAIN}") from None
    if mask.shape != (sample.height, sample.width):
        raise UserError(
            f"{path} has {mask.shape[1]} x {mask.shape[0]} pixels, but its image {sample.width} x "
            f"{sample.height}. {_AGAIN}"
        )
    rle = encode_mask(mask)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = [0.0] * 4
    if len(rows):
        corner = [float(columns[0]), float(rows[0])]
        box = [*corner, float(columns[-1] + 1) - corner[0], float(rows[-1] + 1) - corner[1]]
    return {
        "image_id": sample.identifier,
        "category_id": category,
        "bbox": box,
        "score": score,
        "segmentation": {"size": list(mask.shape), "counts": write_counts(rle.counts)},
    }


def _mask(record: Record) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    height, width = record["segmentation"]["size"]
    return decode_mask(RLE(height, width, read_counts(record["segmentation"]["counts"])))
