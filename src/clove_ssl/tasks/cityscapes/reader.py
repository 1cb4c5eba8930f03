"""Cityscapes: street scenes with the visible pixels of every thing, as its archives unpack.

    leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
    gtFine/train/aachen/aachen_000000_000019_gtFine_polygons.json
                       /aachen_000000_000019_gtFine_instanceIds.png

Either label file is enough; ``maps.py`` says what is in them. Scores are judged by
the instance ids where they are there, because the official tool reads nothing else.

Groups are crowds here. An image is named by its file, without the ending; classes are the eight
things, and their numbers the label ids of Cityscapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from clove_ssl.data.folders import list_images
from clove_ssl.data.labels.pixels import check_folder
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.tasks.cityscapes.maps import (
    THINGS,
    InstanceMap,
    paint_polygons,
    read_instance_map,
    read_polygons,
    visible_things,
)
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, OnFault, Sample

LabelFile = Literal["polygons", "instances"]

IMAGE_END = "_leftImg8bit.png"
LABEL_ENDS: dict[LabelFile, str] = {
    "polygons": "_gtFine_polygons.json",
    "instances": "_gtFine_instanceIds.png",
}


@dataclass(frozen=True)
class CityscapesDataset(DetectionDataset):
    """Samples, and the files that scores are judged by."""

    truth: Mapping[int | str, Path] = field(default_factory=dict)  # by image


def read_cityscapes(
    root: str | Path,
    split: str,
    *,
    labels: LabelFile = "polygons",
    faulty: OnFault = "refuse",
) -> CityscapesDataset:
    """Read a split, such as train or val; faulty polygons are errors, or left out and listed."""
    images = _find_images(Path(root), split)
    files = [_label_path(Path(root), image, labels) for image in images]
    _check_files(images, files)
    samples: list[Sample] = []
    left_out: list[str] = []
    for image, path in zip(images, files, strict=True):
        instances, faults = _read_map(path, leave_out=faulty == "leave out")
        left_out += faults
        samples.append(_sample(image, instances))
    return CityscapesDataset(
        samples=tuple(samples),
        class_names=tuple(THINGS),
        category_ids=tuple(THINGS.values()),
        left_out=tuple(left_out),
        truth={
            sample.identifier: _truth_path(Path(root), sample.image, path)
            for sample, path in zip(samples, files, strict=True)
        },
    )


def image_name(path: Path) -> str:
    """The name of an image, such as ``aachen_000000_000019``."""
    return path.name.removesuffix(IMAGE_END)


def _find_images(root: Path, split: str) -> list[Path]:
    check_folder(root)
    folder = root / "leftImg8bit"
    if not folder.is_dir():
        raise UserError(
            f"{root} has no folder leftImg8bit. Expected Cityscapes as it unpacks, with "
            "leftImg8bit and gtFine side by side; give the folder that holds both."
        )
    if not (folder / split).is_dir():
        present = (path.name for path in folder.iterdir() if path.is_dir())
        raise unknown_name(f"split of {folder}", split, present)
    names = list_images(str(folder / split)).images
    images = sorted(folder / split / name for name in names if name.endswith(IMAGE_END))
    if not images:
        raise UserError(
            f"{folder / split} holds no image that ends in {IMAGE_END}. Unpack the archive again."
        )
    return images


def _label_path(root: Path, image: Path, labels: LabelFile) -> Path:
    relative = image.relative_to(root / "leftImg8bit").parent
    return root / "gtFine" / relative / f"{image_name(image)}{LABEL_ENDS[labels]}"


def _truth_path(root: Path, image: Path, read: Path) -> Path:
    exact = _label_path(root, image, "instances")
    return exact if exact.is_file() else read


def _check_files(images: Sequence[Path], files: Sequence[Path]) -> None:
    missing = [
        (image, path) for image, path in zip(images, files, strict=True) if not path.exists()
    ]
    if missing:
        image, path = missing[0]
        other = "instances" if path.suffix == ".json" else "polygons"
        raise UserError(
            f"{len(missing)} of {len(images)} images have no label file; {image} is the first, "
            f"whose labels should be {path}. Unpack gtFine beside leftImg8bit, or read the other "
            f"kind of file with --task.labels {other}."
        )


def _read_map(path: Path, *, leave_out: bool) -> tuple[InstanceMap, tuple[str, ...]]:
    if path.suffix != ".json":
        return read_instance_map(path), ()
    polygons = read_polygons(path, leave_out=leave_out)
    return paint_polygons(polygons), polygons.left_out


def _sample(image: Path, instances: InstanceMap) -> Sample:
    height, width = instances.shape
    return Sample(
        image=image,
        identifier=image_name(image),
        width=width,
        height=height,
        annotations=tuple(
            Annotation(
                box=thing.box,
                category=thing.category,
                area=float(thing.mask.area),
                identifier=thing.number,
                crowd=thing.is_group,
                mask=thing.mask,
            )
            for thing in visible_things(instances)
        ),
    )
