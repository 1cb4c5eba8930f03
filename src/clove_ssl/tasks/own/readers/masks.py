"""Images with masks of the same names: ``images/`` and ``masks/``, and VOC's own folders.

Pixels of a mask are class numbers, 0 is the background as a rule, and 255 is what nobody judged; or
they have the colours that CVAT's ``labelmap.txt`` gives the classes.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.folders import list_images
from clove_ssl.data.labels.mask_files import mask_file_numbers
from clove_ssl.data.labels.mask_folders import mask_classes, read_mask
from clove_ssl.data.labels.pixels import IGNORE, VOC_CLASSES
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.own.dataset import Colour, Found, Item, MaskFile, Problems
from clove_ssl.tasks.own.readers.files import (
    read_colours,
    read_lists,
    read_names,
    sizes_of,
    split_of_path,
)

_NAMES = ("classes.txt", "labelmap.txt", "labels.txt")


def mask_folders(root: Path) -> tuple[Path, Path] | None:
    """The folders of images and of masks below a folder, if it has both."""
    pairs = [(root / "images", root / "masks")]
    for base in (root, *sorted(root.glob("VOC2*")), *sorted(root.glob("VOCdevkit/VOC2*"))):
        pairs.append((base / "JPEGImages", base / "SegmentationClass"))
    return next((pair for pair in pairs if pair[0].is_dir() and pair[1].is_dir()), None)


def read_mask_folder(root: Path, folders: tuple[Path, Path], problems: Problems) -> Found:
    """Images and masks; splits are lists of VOC's, or folders in both, or there are none."""
    images, masks = folders
    lists = read_lists(images.parent, "Segmentation")
    split_of_name = {name: split for split, names in lists.items() for name in names}
    drawn = {os.path.splitext(name)[0]: masks / name for name in list_images(str(masks)).images}
    shown = {os.path.splitext(name)[0]: images / name for name in list_images(str(images)).images}
    for name in sorted(shown.keys() - drawn.keys()):
        problems.add("images have no mask and were left out", shown[name])
    for name in sorted(drawn.keys() - shown.keys()):
        problems.add("masks have no image and were left out", drawn[name])
    pairs = sorted(shown.keys() & drawn.keys())
    if not pairs:
        raise UserError(
            f"No image in {images} has a mask in {masks}. Expected a mask with the name of each "
            "image, but for its suffix."
        )
    names, colours = names_of_masks(root, masks), colours_of_masks(root, masks.parent)
    found = Found("masks", names[1:], category_ids=tuple(range(1, len(names))), map_names=names)
    sizes = sizes_of(shown[name] for name in pairs)
    for name in pairs:
        height, width = sizes[shown[name]]
        sample = Sample(shown[name], name, width, height, ())
        split = split_of_name.get(name) if lists else split_of_path(shown[name], images)
        if split is None:
            problems.add("images with a mask are in no list and were left out", shown[name])
        else:
            found.add(split, Item(sample, MaskFile(drawn[name], colours)))
    return found


def names_of_masks(root: Path, masks: Path) -> tuple[str, ...]:
    """Names of the classes from 0 on: those of a list, or the numbers that occur."""
    listed = _list_of_names(root) or _list_of_names(masks.parent)
    if listed is not None:
        return read_names(listed)
    if masks.name == "masks":
        return mask_classes(root)
    raise UserError(
        f"Nothing says what the numbers of the masks in {masks} mean. Write the names of the "
        f"classes from 0 on, one a line, the background first, into {root / 'classes.txt'}."
    )


def colours_of_masks(*folders: Path) -> tuple[Colour, ...]:
    """What the list that names the classes of masks says about their colours."""
    listed = next(filter(None, map(_list_of_names, folders)), None)
    return () if listed is None else read_colours(listed)


def _list_of_names(folder: Path) -> Path | None:
    return next((folder / name for name in _NAMES if (folder / name).is_file()), None)


def names_of_maps(root: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Classes of the masks of a VOC folder, background first; empty where nobody names them.

    A list of names tells; without one, boxes that all have VOC's classes say that masks do, too.
    """
    if not any(root.glob(f"{depth}SegmentationClass") for depth in ("", "*/", "*/*/")):
        return ()
    if (listed := _list_of_names(root)) is not None:
        names = read_names(listed)
        is_whole = names[0] == "background" or read_colours(listed)
        return names if is_whole else ("background", *names)
    return VOC_CLASSES if set(classes) <= set(VOC_CLASSES) else ()


def read_classes(mask: MaskFile) -> NDArray[np.uint8]:
    """The class (H, W) of every pixel."""
    if not mask.colours:
        return read_mask(mask.path)
    try:
        mode, pixels = mask_file_numbers(mask.path, convert="RGB")
    except OSError:
        return read_mask(mask.path)  # which says what is wrong with it
    if mode not in ("RGB", "RGBA", "P"):
        return read_mask(mask.path)
    packed = _packed(pixels)
    known = _packed(np.array(mask.colours, np.uint8))
    order = np.argsort(known)
    place = np.searchsorted(known[order], packed).clip(max=len(known) - 1)
    classes: NDArray[np.uint8] = order[place].astype(np.uint8)
    unknown = known[classes] != packed
    if mode == "P":
        numbers = read_mask(mask.path)
        judged = numbers != IGNORE
        # With other colours the numbers themselves are those of the classes.
        return numbers if unknown[judged].any() else np.where(judged, classes, IGNORE)
    if not unknown.any():
        return classes
    colour = ",".join(map(str, pixels[unknown][0].tolist()))
    raise UserError(
        f"The mask {mask.path} has pixels of the colour {colour}, which no class of labelmap.txt "
        "has. Expected colours of the list alone, in a file without loss such as PNG; correct one."
    )


def _packed(colours: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Colours (..., 3) as one number each: (...)."""
    packed: NDArray[np.int64] = colours.astype(np.int64) @ np.array([65536, 256, 1])
    return packed


def check_mask(mask: MaskFile, names: tuple[str, ...], size: tuple[int, int]) -> set[int]:
    """The classes of a mask; refuses one that does not fit its image or the names."""
    path, numbers = mask.path, read_classes(mask)
    if numbers.shape != size:
        raise UserError(
            f"The mask {path} has {numbers.shape[1]} x {numbers.shape[0]} pixels, but its image "
            f"{size[1]} x {size[0]}. Expected equal sizes; make the mask again."
        )
    present = set(map(int, set(numbers.ravel().tolist()))) - {IGNORE}
    if max(present, default=0) >= len(names):
        raise UserError(_too_many(path, max(present), names))
    return present


def _too_many(path: Path, largest: int, names: tuple[str, ...]) -> str:
    hint = "Correct the mask, or name all classes in classes.txt."
    if largest == len(names):
        hint = (
            "If the first name stands for 1, write `background` as the first line of classes.txt; "
            "else correct the mask."
        )
    return (
        f"The mask {path} has the class {largest}, but {len(names)} classes are named "
        f"({', '.join(names[:5])}), which count from 0. {hint}"
    )
