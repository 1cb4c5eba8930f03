"""What every reader of labelled images gives: plain values, no pixels.

Boxes are x0, y0, x1, y1 in pixels with edges on whole numbers: pixel i spans i to i + 1.
Classes are positions in ``class_names``; the numbers of the file are kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import ExifTags, Image

from clove_ssl.data.decode import FORMATS, DecodeError
from clove_ssl.data.labels.mask_files import check_pixels
from clove_ssl.data.whole_files import open_regular
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import RLE

Split = Literal["train", "test"]
OnFault = Literal["refuse", "leave out"]
"""What becomes of a faulty annotation."""

PIXEL_MIDDLE = 0.5
"""COCO's keypoints name pixels; the place of a keypoint is the middle of its pixel."""

Box = tuple[float, float, float, float]
Polygons = tuple[tuple[float, ...], ...]  # each x, y, x, y, ...
Keypoints = tuple[
    tuple[float, float, int], ...
]  # x, y, v as in the file (see PIXEL_MIDDLE); v is 0 without a label, 1 hidden, 2 seen


@dataclass(frozen=True)
class Annotation:
    """One object."""

    box: Box
    category: int  # 0 to K - 1
    area: float  # in pixels; of the mask where there is one
    identifier: int | None = None  # its number in a COCO file
    crowd: bool = False  # a group as one region; no target, and no error when found
    difficult: bool = False  # VOC's mark of objects that scores leave out
    mask: Polygons | RLE | None = None
    keypoints: Keypoints | None = None
    target_box: Box | None = None  # what a detector learns, where that is rounded otherwise


@dataclass(frozen=True)
class Sample:
    """One image with its objects, of which there may be none."""

    image: Path
    identifier: int | str  # COCO's image number, VOC's name
    width: int
    height: int
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True)
class DetectionDataset:
    """Samples and the classes they speak of."""

    samples: tuple[Sample, ...]
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]  # (K,) what the file calls class 0 to K - 1
    keypoint_names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # faulty annotations that were not read, and why

    def class_of(self, category_id: int) -> int:
        """The class that the file calls ``category_id``."""
        return self.category_ids.index(category_id)


_TURNED = (5, 6, 7, 8)  # EXIF orientations whose upright image swaps width and height


def check_size(image: Path, size: tuple[int, int], *, origin: str) -> None:
    """Refuse a width and height that are not those of the file; ``origin`` says who gives them.

    Files that cannot be read pass; the loader says what is wrong with them.
    """
    try:
        check_pixels(*size)
    except DecodeError as error:
        raise UserError(f"{origin} gives {image} a size that no image has: {error}.") from None
    known = _sizes(image)
    if known and size not in known:
        width, height = known[-1]
        raise UserError(
            f"{origin} gives {image} {size[0]} x {size[1]} pixels, but the file has {width} x "
            f"{height}. Expected the size of the file, which boxes are judged by: correct width "
            "and height, or give the images that the annotations were made for."
        )


def _sizes(image: Path) -> list[tuple[int, int]]:
    """Width and height as stored and, last, as shown; nothing for a file that is no image."""
    try:
        with open_regular(image) as file, Image.open(file, formats=FORMATS) as picture:
            width, height = picture.size
            turned = picture.getexif().get(ExifTags.Base.Orientation) in _TURNED
    except Exception:  # Pillow has many words for a damaged file
        return []
    return [(width, height), (height, width)] if turned else [(width, height)]
