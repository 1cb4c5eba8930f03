"""What was found, as files of other programs: COCO, YOLO, CSV, and masks.

Files of single images are written at once; those of all images when the last one is known.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from clove_ssl.atomic import replacing, write_text
from clove_ssl.config.predicting import ResultFormat
from clove_ssl.errors import UserError
from clove_ssl.painting.predictions import tone_colour
from clove_ssl.predicting.found import Found, Meaning
from clove_ssl.predicting.outlines import largest_outline
from clove_ssl.tasks.labels.rle import mask_of_record
from clove_ssl.tasks.labels.samples import PIXEL_MIDDLE
from clove_ssl.tasks.predictions import Record

_MOST_CLASSES = 256  # of a PNG with a palette


class Writer(ABC):
    """One format.

    Args:
        folder: Where its files go.
        meaning: What the numbers of the model stand for.
    """

    def __init__(self, folder: Path, meaning: Meaning) -> None:
        self.folder, self.meaning = folder, meaning

    @abstractmethod
    def add(self, found: Found) -> None:
        """Take in one image."""

    @abstractmethod
    def close(self) -> Path:
        """Write what is about all images, and say where the results are."""

    def _place(self, found: Found, suffix: str) -> Path:
        path = self.folder / f"{found.place}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class CocoWriter(Writer):
    """``predictions.json``: images, categories, and objects with their scores."""

    def __init__(self, folder: Path, meaning: Meaning) -> None:
        super().__init__(folder, meaning)
        self._images: list[dict[str, Any]] = []
        self._objects: list[dict[str, Any]] = []

    def add(self, found: Found) -> None:
        """Take in one image."""
        size = {"width": found.width, "height": found.height}
        self._images.append({"id": found.number, "file_name": found.name, **size})
        for record in found.records:
            area = float(record["bbox"][2] * record["bbox"][3])
            if "segmentation" in record:
                area = float(mask_of_record(record).sum())
            number = {"id": len(self._objects) + 1}
            self._objects.append({**number, **record, "area": area, "iscrowd": 0})

    def close(self) -> Path:
        """Write the file."""
        points = {"keypoints": list(self.meaning.keypoint_names), "skeleton": []}
        more = points if self.meaning.keypoint_names else {}
        pairs = zip(self.meaning.category_ids, self.meaning.class_names, strict=True)
        categories = [{"id": number, "name": name, **more} for number, name in pairs]
        path = self.folder / "predictions.json"
        content = {
            "images": self._images,
            "categories": categories,
            "annotations": self._objects,
        }
        write_text(path, json.dumps(content) + "\n")
        return path


class YoloWriter(Writer):
    """``labels/IMAGE.txt``: a line per object with its class, place and score, in shares."""

    def __init__(self, folder: Path, meaning: Meaning) -> None:
        super().__init__(folder / "labels", meaning)

    def add(self, found: Found) -> None:
        """Write the file of one image; an empty one where nothing was found."""
        lines = [self._line(record, found) for record in found.records]
        write_text(self._place(found, ".txt"), "".join(f"{line}\n" for line in lines))

    def close(self) -> Path:
        """Write the names of the classes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{name}\n" for name in self.meaning.class_names)
        write_text(self.folder.with_name("classes.txt"), names)
        return self.folder

    def _line(self, record: Record, found: Found) -> str:
        number = self.meaning.category_ids.index(record["category_id"])
        x, y, width, height = record["bbox"]
        box = [
            (x + width / 2) / found.width,
            (y + height / 2) / found.height,
            width / found.width,
            height / found.height,
        ]
        places = box
        if "segmentation" in record:
            outline = largest_outline(mask_of_record(record))  # (n, 2) x, y
            places = (outline / [found.width, found.height]).ravel().tolist() or box
        elif "keypoints" in record:
            points = np.reshape(record["keypoints"], (-1, 3)) + [PIXEL_MIDDLE, PIXEL_MIDDLE, 0]
            places = box + (points / [found.width, found.height, 1]).ravel().tolist()
        return " ".join([str(number), *(f"{value:.6f}" for value in (*places, record["score"]))])


class TableWriter(Writer):
    """``predictions.csv``: a row per object, or per class of a segmented image."""

    def __init__(self, folder: Path, meaning: Meaning) -> None:
        super().__init__(folder, meaning)
        self._rows: list[list[object]] = []
        self._head = ["image", "class", "score", "x0", "y0", "x1", "y1"]

    def add(self, found: Found) -> None:
        """Take in one image."""
        if found.classes is not None:
            self._head = ["image", "class", "pixels", "share"]
            for number, count in zip(*np.unique(found.classes, return_counts=True), strict=True):
                name = self.meaning.class_names[int(number)]
                self._rows.append([found.name, name, int(count), count / found.classes.size])
        for record in found.records:
            x, y, width, height = record["bbox"]
            corners = [f"{value:.2f}" for value in (x, y, x + width, y + height)]
            name = self.meaning.name_of(record)
            self._rows.append([found.name, name, f"{record['score']:.4f}", *corners])

    def close(self) -> Path:
        """Write the table."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self._head, *self._rows])
        path = self.folder / "predictions.csv"
        # Names of files need not be valid Unicode.
        with replacing(path) as file:
            file.write(text.getvalue().encode("utf-8", "surrogateescape"))
        return path


class MaskWriter(Writer):
    """``masks/IMAGE.png``: the class of every pixel, or the number of the object that it shows.

    Objects count from 1, the best first; where masks overlap, the better one is seen. The classes
    of objects are in ``masks/IMAGE.txt``.
    """

    def __init__(self, folder: Path, meaning: Meaning) -> None:
        super().__init__(folder / "masks", meaning)

    def add(self, found: Found) -> None:
        """Write the masks of one image."""
        if found.classes is not None:
            picture = Image.fromarray(found.classes)
            colours = [(0, 0, 0), *(tone_colour(number) for number in range(1, _MOST_CLASSES))]
            picture.putpalette([value for colour in colours for value in colour])
        else:
            picture = Image.fromarray(self._numbers(found))
            names = [
                f"{number} {self.meaning.name_of(record)} {record['score']:.4f}\n"
                for number, record in enumerate(found.records, start=1)
            ]
            write_text(self._place(found, ".txt"), "".join(names))
        with replacing(self._place(found, ".png")) as file:
            picture.save(file, format="PNG")

    def close(self) -> Path:
        """Everything is written already."""
        return self.folder

    def _numbers(self, found: Found) -> np.ndarray[Any, np.dtype[np.uint16]]:
        numbers = np.zeros((found.height, found.width), np.uint16)
        for number, record in reversed(list(enumerate(found.records, start=1))):
            numbers[mask_of_record(record)] = number
        return numbers


WRITERS: dict[ResultFormat, type[Writer]] = {
    "coco": CocoWriter,
    "yolo": YoloWriter,
    "csv": TableWriter,
    "masks": MaskWriter,
}


def choose_formats(
    asked: tuple[ResultFormat, ...], *, segments: bool, has_masks: bool
) -> tuple[ResultFormat, ...]:
    """The formats to write, by default the usual one; refuse what the model does not give."""
    if segments:
        wrong = [name for name in asked if name in ("coco", "yolo")]
        if wrong:
            raise UserError(
                f"--format {wrong[0]} is for objects, but this model gives a class for every "
                "pixel. Take --format masks or csv."
            )
        return asked or ("masks",)
    if "masks" in asked and not has_masks:
        raise UserError(
            "--format masks needs a model that draws masks; this one finds boxes. Take --format "
            "coco, yolo or csv."
        )
    return asked or ("coco",)
