"""Images with a class for every pixel, in folders: Cityscapes, or any pictures with masks.

Cityscapes is read as its archives unpack, with the 19 classes that its scores use:

    leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
    gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png

Other masks are single-channel pictures whose pixels are class numbers from 0 on, with
255 for pixels nobody judged. They have the names of their images, but for the suffix:

    images/train/street/1.jpg      masks/train/street/1.png      classes.txt (names, if any)

Images are uint8 (3, H, W) RGB, label maps uint8 (H, W) of the same size.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.folders import list_images
from clove_ssl.data.labels.mask_files import mask_file_numbers
from clove_ssl.data.labels.pixels import IGNORE
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError, unknown_name

CITYSCAPES_CLASSES = {
    **{"road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17},
    **{"traffic light": 19, "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23},
    **{"person": 24, "rider": 25, "car": 26, "truck": 27, "bus": 28, "train": 31},
    **{"motorcycle": 32, "bicycle": 33},
}
"""Names and label ids of the classes that are scored; all other ids are unjudged."""

_IMAGE_END, _LABEL_END = "_leftImg8bit.png", "_gtFine_labelIds.png"


class CityscapesLabels:
    """One split of Cityscapes."""

    class_names = tuple(CITYSCAPES_CLASSES)

    def __init__(self, root: str | Path, split: str) -> None:
        self._root = Path(root)
        folder = _split_folder(self._root / "leftImg8bit", split)
        names = list_images(str(folder)).images
        self._images = sorted(folder / name for name in names if name.endswith(_IMAGE_END))
        if not self._images:
            raise UserError(f"{folder} holds no image that ends in {_IMAGE_END}. Unpack it again.")
        self._classes = np.full(256, IGNORE, np.uint8)
        self._classes[list(CITYSCAPES_CLASSES.values())] = np.arange(len(CITYSCAPES_CLASSES))

    def __len__(self) -> int:
        return len(self._images)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        path = self._images[index]
        relative = path.relative_to(self._root / "leftImg8bit")
        name = relative.name.removesuffix(_IMAGE_END) + _LABEL_END
        numbers = read_mask(self._root / "gtFine" / relative.parent / name)
        return _fitting(read_picture(path), self._classes[numbers], path)


class MaskFolderLabels:
    """Images and masks of one split, or of the whole folder.

    Args:
        root: The folder with ``images`` and ``masks``.
        split: A folder in both of these, or nothing for all images.
        class_names: Names of the classes, from :func:`mask_classes`.
    """

    def __init__(self, root: str | Path, split: str, class_names: tuple[str, ...]) -> None:
        self._images = _split_folder(Path(root) / "images", split)
        self._masks = _split_folder(Path(root) / "masks", split)
        self.class_names = class_names
        self._pairs = _pair_up(self._images, self._masks)

    def __len__(self) -> int:
        return len(self._pairs)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        image, mask = self._pairs[index]
        numbers = read_mask(self._masks / mask)
        found = numbers[numbers != IGNORE].max(initial=0)
        if found >= len(self.class_names):
            raise UserError(
                f"{self._masks / mask} has the class {found}, but {len(self.class_names)} classes "
                "are named, numbered from 0. Correct the mask or classes.txt."
            )
        return _fitting(read_picture(self._images / image), numbers, self._images / image)


def mask_classes(root: str | Path) -> tuple[str, ...]:
    """Names of the classes of a mask folder: those of classes.txt, or all numbers that occur."""
    path = Path(root) / "classes.txt"
    if path.is_file():
        names = _listed_names(path)
        if len(names) < 2 or len(set(names)) < len(names):
            raise UserError(f"{path} names {len(names)} classes; expected 2 or more, each once.")
        return names
    folder = Path(root) / "masks"
    largest = 0
    for name in list_images(str(folder)).images:
        numbers = read_mask(folder / name)
        largest = max(largest, int(numbers[numbers != IGNORE].max(initial=0)))
    if largest == 0:
        raise UserError(
            f"The masks in {folder} have one class only. Expected pixels that are class numbers, "
            f"0, 1, 2 and so on, and {IGNORE} where nobody judged."
        )
    return tuple(str(number) for number in range(largest + 1))


def _listed_names(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read: {error}. Expected one class name per line, in UTF-8."
        ) from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def read_picture(path: Path) -> Tensor:
    """An image, uint8 (3, H, W)."""
    try:
        return decode(read_whole(path))
    except (DecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}. Copy it again or remove it.") from None


def read_mask(path: Path) -> NDArray[np.uint8]:
    """The numbers (H, W) of a single-channel picture."""
    try:
        mode, numbers = mask_file_numbers(path)
    except OSError as error:
        raise UserError(
            f"The mask {path} cannot be read: {error}. Expected a PNG with a class number per "
            "pixel; copy it again, or remove its image."
        ) from None
    if mode not in ("P", "L"):
        raise UserError(
            f"The mask {path} has {mode} pixels; expected one 8-bit number per pixel, the class. "
            "Convert colours to numbers first."
        )
    masks: NDArray[np.uint8] = numbers
    return masks


def _fitting(image: Tensor, numbers: NDArray[np.uint8], path: Path) -> tuple[Tensor, Tensor]:
    if tuple(image.shape[1:]) != numbers.shape:
        raise UserError(
            f"{path} has {tuple(image.shape[1:])} pixels, but its mask {numbers.shape}. Expected "
            "equal heights and widths; make the mask again."
        )
    return image, torch.from_numpy(numbers)


def _pair_up(images: Path, masks: Path) -> list[tuple[str, str]]:
    """Image and mask of the same name, sorted; every image needs its mask."""
    named = {os.path.splitext(name)[0]: name for name in list_images(str(masks)).images}
    found = list_images(str(images)).images
    missing = [name for name in found if os.path.splitext(name)[0] not in named]
    if missing or not found:
        example = f", the first is {missing[0]}" if missing else ""
        raise UserError(
            f"{len(missing)} of the {len(found)} images in {images} have no mask in "
            f"{masks}{example}. Expected a mask with the name of each image, but for its suffix."
        )
    return [(name, named[os.path.splitext(name)[0]]) for name in found]


def _split_folder(folder: Path, split: str) -> Path:
    chosen = folder / split if split else folder
    if not chosen.is_dir():
        known = [entry.name for entry in folder.iterdir() if entry.is_dir()]
        raise unknown_name(f"split of {folder}", split, known)
    return chosen
