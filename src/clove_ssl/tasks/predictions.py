"""What a model predicted, as files that scores can be made from later and elsewhere.

Detections are a list in COCO's result format: ``image_id`` (COCO's number or VOC's name),
``category_id``, ``score``, ``bbox`` (x, y, width, height), and where there are any
``segmentation`` (compressed runs) and ``keypoints`` (x, y, score; x and y name pixels, as in COCO's
annotations). Class maps are one ``.npz`` with an array ``maps/<name>`` for every image.

Beside each lies a header, ``<name>.header.json``: what was predicted with what, and the digest of
the file. Entries are in the order of the dataset, whoever predicted them, so the file does not
depend on the number of processes.

Dimensions: N detections, P keypoints, H x W pixels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clove_ssl.atomic import replacing, unwritable, write_text
from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.array_files import read_arrays
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import encode_mask, write_counts
from clove_ssl.tasks.labels.samples import PIXEL_MIDDLE, Sample
from clove_ssl.tasks.rcnn.instances import ImageDetections

Record = dict[str, Any]
LabelMap = NDArray[np.uint8]

PREDICT_AGAIN = "To predict again, remove scores.json of the run and type: clove resume RUN"
_MOST_BYTES = 4 * 2**30  # of all class maps; those of VOC 2012 have 0.3 GiB
LARGEST_FILE = 16 * 2**30
"""Bytes of detections; those of LVIS have two gigabytes."""
_FOLDER = "predictions"  # of a run
_MAPS = "maps/"  # a folder in the archive, so that an image may have any name


@dataclass(frozen=True)
class Predictions:
    """Detections of a test set, and what their header says; empty without a header."""

    records: list[Record]
    header: Mapping[str, Any] = field(default_factory=dict)


def detection_records(
    found: ImageDetections, sample: Sample, *, category_ids: Sequence[int]
) -> list[Record]:
    """The detections of one image in COCO's result format."""
    boxes = found.boxes.double().cpu()
    sides = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], dim=1)  # (N, 4)
    records: list[Record] = [
        {
            "image_id": sample.identifier,
            "category_id": category_ids[category],
            "bbox": box,
            "score": score,
        }
        for box, score, category in zip(
            sides.tolist(), found.scores.tolist(), found.classes.tolist(), strict=True
        )
    ]
    if found.masks is not None:
        for record, mask in zip(records, found.masks.cpu().numpy(), strict=True):
            rle = encode_mask(mask)
            counts = write_counts(rle.counts)
            record["segmentation"] = {"size": [rle.height, rle.width], "counts": counts}
    if found.keypoints is not None:
        points = found.keypoints.double().cpu()
        points = points - points.new_tensor([PIXEL_MIDDLE, PIXEL_MIDDLE, 0.0])  # (N, P, 3)
        for record, row in zip(records, points.flatten(1).tolist(), strict=True):
            record["keypoints"] = row
    return records


def write_detections(
    path: Path, records: Iterable[Record], *, samples: Sequence[Sample], header: Mapping[str, Any]
) -> None:
    """Write the detections of all samples; records of one image keep their order."""
    position = {sample.identifier: number for number, sample in enumerate(samples)}
    ordered = sorted(records, key=lambda record: position[record["image_id"]])
    facts = {"images": len(samples), "detections": len(ordered)}
    text = "[" + ",\n".join(json.dumps(record) for record in ordered) + "]\n"
    _write(path, text.encode(), facts | dict(header))


def read_detections(path: Path) -> Predictions:
    """Read what :func:`write_detections` wrote, or any file in COCO's result format."""
    data = _read(path)
    try:
        records = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}. {predict_again(path)}") from None
    if not isinstance(records, list) or not all(isinstance(entry, dict) for entry in records):
        raise UserError(
            f"{path} is no list of detections. Expected COCO's result format: [{{image_id, "
            "category_id, bbox, score}, ...]; an annotation file is something else."
        )
    return Predictions(records, _read_header(path, data))


def write_label_maps(
    path: Path, maps: Mapping[str, LabelMap], *, header: Mapping[str, Any]
) -> None:
    """Write a class for every pixel of every image, by the names of the images."""
    _make_folder(path)
    try:
        with replacing(path) as file:
            arrays: dict[str, Any] = {_MAPS + name: labels for name, labels in maps.items()}
            np.savez_compressed(file, **arrays)
        _write_header(path, path.read_bytes(), {"images": len(maps)} | dict(header))
    except OSError as error:
        raise unwritable("Predictions", path, error) from None


def read_label_maps(path: Path) -> dict[str, LabelMap]:
    """Read what :func:`write_label_maps` wrote."""
    _read_header(path, _read(path))
    try:
        maps = _read_arrays(path)
    except ValueError as error:
        fault = f"{path} is no file of class maps: {error}."
        raise UserError(f"{fault} {predict_again(path)}") from None
    for name, labels in maps.items():
        if labels.dtype.kind not in "biuf":
            raise UserError(
                f"{path} has values of type {labels.dtype} for {name}; expected a class, a whole "
                f"number, for every pixel. {predict_again(path)}"
            )
    return maps


def predict_again(path: Path) -> str:
    """What to type where a file of predictions is of no use."""
    if path.parent.name != _FOLDER:
        return PREDICT_AGAIN
    run = path.parent.parent
    return f"To predict again, remove {run / 'scores.json'} and type: clove resume {run}"


def header_path(path: Path) -> Path:
    """The file that says where predictions come from."""
    return path.with_name(f"{path.stem}.header.json")


def _read_arrays(path: Path) -> dict[str, LabelMap]:
    """The arrays of an archive by the names of their images; ValueError for other files."""
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is one array, not an archive of them")
    arrays = read_arrays(path, most_bytes=_MOST_BYTES)
    return {name.removeprefix(_MAPS): labels for name, labels in arrays.items()}


def _write(path: Path, data: bytes, header: Mapping[str, Any]) -> None:
    _make_folder(path)
    try:
        with replacing(path) as file:
            file.write(data)
        _write_header(path, data, header)
    except OSError as error:
        raise unwritable("Predictions", path, error) from None


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable("Predictions", path, error) from None


def _write_header(path: Path, data: bytes, header: Mapping[str, Any]) -> None:
    content = dict(header) | {"sha256": hashlib.sha256(data).hexdigest()}
    write_text(header_path(path), json.dumps(content, indent=1) + "\n")


def _read(path: Path) -> bytes:
    try:
        data = read_regular(path, most=LARGEST_FILE)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Expected predictions there. "
            f"{predict_again(path)}"
        ) from None
    if len(data) > LARGEST_FILE:
        raise UserError(f"{path} has more than {LARGEST_FILE:,} bytes. {predict_again(path)}")
    return data


def _read_header(path: Path, data: bytes) -> dict[str, Any]:
    header = header_path(path)
    if not header.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(header.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{header} cannot be read: {error.strerror}. {predict_again(path)}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{header} is no JSON: {error}. {predict_again(path)}") from None
    if not isinstance(content, dict):
        raise UserError(
            f"{header} is no header of predictions. Expected fields, such as sha256. "
            f"{predict_again(path)}"
        )
    if content.get("sha256") != hashlib.sha256(data).hexdigest():
        raise UserError(
            f"{path} is not the file that {header.name} describes. If it was replaced on purpose, "
            f"remove {header.name}. {predict_again(path)}"
        )
    return content
