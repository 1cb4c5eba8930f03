"""Sets of images with a class for every pixel, for probes: scenes and VOC.

Images are uint8 (3, H, W) RGB, label maps uint8 (H, W) of the same size. A
label is a position in ``class_names``; 255 marks pixels that nobody judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.labels.mask_files import mask_numbers
from clove_ssl.data.scenes import SCENE_CLASSES, SceneSource
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError, unknown_name

IGNORE = 255

VOC_CLASSES = (
    "background",
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


class DenseLabels(Protocol):
    """A set of images with label maps."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes; a label is a position in this tuple."""
        ...

    def __len__(self) -> int: ...

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        ...


class SomeLabels:
    """A part of a set of labelled images."""

    def __init__(self, whole: DenseLabels, indices: Sequence[int]) -> None:
        self.class_names = whole.class_names
        self._whole, self._indices = whole, list(indices)

    def __len__(self) -> int:
        return len(self._indices)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        return self._whole.load(self._indices[index])


class SceneLabels:
    """The built-in scenes; the splits share no scene."""

    class_names = ("background", *SCENE_CLASSES)

    def __init__(
        self, count: int, size: int = 160, split: Literal["train", "test"] = "train"
    ) -> None:
        self._source = SceneSource(count, size, split)

    def __len__(self) -> int:
        return len(self._source)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        scene = self._source.scene(index)
        image = torch.from_numpy(scene.image).permute(2, 0, 1).contiguous()
        return image, torch.from_numpy(scene.semantic)


class VOCLabels:
    """PASCAL VOC's semantic segmentation, as its archives unpack.

    Args:
        root: The folder VOC2012, or one above it.
        split: Name of a list in ImageSets/Segmentation.
        class_names: What the numbers of the masks mean.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        class_names: tuple[str, ...] = VOC_CLASSES,
    ) -> None:
        self.class_names = class_names
        self._folder = _find_voc(Path(root))
        self._names = _read_list(self._folder / "ImageSets" / "Segmentation", split)

    def __len__(self) -> int:
        return len(self._names)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        image_path = self.paths(index)[0]
        try:
            image = decode(_read(image_path))
        except DecodeError as error:
            raise UserError(f"{image_path} is {error}. Unpack the VOC archive again.") from None
        return image, self.labels(index, size=(image.shape[1], image.shape[2]))

    def labels(self, index: int, *, size: tuple[int, int]) -> Tensor:
        """The label map (H, W) of an image of this size."""
        path = self.paths(index)[1]
        labels = _read_palette(path, classes=len(self.class_names))
        if labels.shape != size:
            height, width = labels.shape
            raise UserError(
                f"{path} has {width} x {height} pixels, but its image {size[1]} x {size[0]}. "
                "Expected equal sizes; unpack the VOC archive again."
            )
        return labels

    def present_classes(self, index: int) -> set[int]:
        """The numbers that occur in the label map of an image."""
        labels = _read_palette(self.paths(index)[1], classes=len(self.class_names))
        return set(np.unique(labels.numpy()).tolist())

    def name(self, index: int) -> str:
        """The name of an image in its list."""
        return self._names[index]

    def paths(self, index: int) -> tuple[Path, Path]:
        """Where the image and its label map lie."""
        name = self._names[index]
        image = self._folder / "JPEGImages" / f"{name}.jpg"
        return image, self._folder / "SegmentationClass" / f"{name}.png"


def check_folder(root: Path) -> None:
    """Refuse a path that is no folder."""
    if not root.is_dir():
        state = "is a file, not a folder" if root.exists() else "does not exist"
        raise UserError(
            f"{root} {state}. Expected the folder that the data were unpacked to; correct --data."
        )


def list_lines(folder: Path, split: str) -> list[str]:
    """The lines of a list of images that are not empty."""
    path = folder / f"{split}.txt"
    if not path.is_file():
        raise unknown_name(
            f"split of {folder}", split, (file.stem for file in folder.glob("*.txt"))
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Unpack the VOC archive again."
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            f"{path} is no text in UTF-8. Expected one name a line, such as 2007_000032; save the "
            "list as UTF-8, or unpack the VOC archive again."
        ) from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path} lists no image. Expected one name a line, such as 2007_000032.")
    return lines


def _find_voc(root: Path) -> Path:
    """The folder that holds SegmentationClass: ``root`` or one below it."""
    check_folder(root)
    candidates = (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012")
    for folder in candidates:
        if (folder / "SegmentationClass").is_dir() and (folder / "JPEGImages").is_dir():
            return folder
    raise UserError(
        f"{root} is no VOC folder: neither it nor VOC2012 or VOCdevkit/VOC2012 in it holds "
        "JPEGImages and SegmentationClass. Unpack the VOC 2012 archive and give the folder "
        "VOC2012; masks of your own classes are for clove finetune segment."
    )


def _read_list(folder: Path, split: str) -> list[str]:
    names = [name for line in list_lines(folder, split) for name in line.split()]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(
                f"{folder / split}.txt lists {name} twice. Expected every image once; take one of "
                "them off."
            )
        seen.add(name)
    return names


def _read(path: Path) -> bytes:
    try:
        return read_whole(path)
    except OSError as error:
        raise UserError(
            f"{path} is in the list of its split but cannot be read: {error.strerror}. "
            "Unpack the VOC archive again, or take the name off the list."
        ) from None


def _read_palette(path: Path, *, classes: int) -> Tensor:
    """The numbers behind a palette image; its colours mean nothing here."""
    data = _read(path)
    try:
        mode, numbers = mask_numbers(data)
    except DecodeError as error:
        raise UserError(
            f"{path} is no readable PNG ({error}). Unpack the VOC archive again."
        ) from None
    judged = numbers[numbers != IGNORE]
    if mode not in ("P", "L") or judged.max(initial=0) >= classes:
        raise UserError(
            f"{path} holds {mode} pixels up to {judged.max(initial=0)}; expected a palette image "
            f"with classes 0 to {classes - 1} and {IGNORE}. Take the masks of "
            "SegmentationClass as they are, without converting them to colours."
        )
    return torch.from_numpy(numbers)
