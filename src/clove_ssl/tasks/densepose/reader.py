"""DensePose-COCO: persons, some of them with points and masks of their surface.

The official names are found below a folder (``annotations/densepose_train2014.json`` or
``densepose_coco_2014_train.json`` beside ``train2014/``), and so are ``densepose_train.json`` and
``densepose_test.json`` beside ``train/`` and ``test/``. The published protocol trains on two
files, train and valminusminival, and tests on minival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from clove_ssl.data.labels.pixels import check_folder
from clove_ssl.errors import UserError
from clove_ssl.tasks.densepose.labels import PersonLabels, read_labels
from clove_ssl.tasks.densepose.surfaces import Mirror, Surface
from clove_ssl.tasks.detection.coco import load_content, read_content
from clove_ssl.tasks.detection.coco_annotations import Faulty
from clove_ssl.tasks.detection.finding import CocoFiles, check_rest, check_same_classes
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, OnFault, Sample, Split

_LEAST_SIDE = 0.01  # pixels of a box that lie in the image; below it no target is left
_OFFICIAL: dict[Split, tuple[tuple[str, str], ...]] = {
    "train": (("train", "train2014"), ("valminusminival", "val2014")),
    "test": (("minival", "val2014"),),
}
_PLAIN: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}


@dataclass(frozen=True)
class PersonAnnotation(Annotation):
    """A person, perhaps with labels of its surface."""

    labels: PersonLabels | None = None


@dataclass(frozen=True)
class DensePoseDataset(DetectionDataset):
    """Images with persons, and the body that their labels speak of."""

    surface: Surface | None = None  # to score with; None where only masks are scored
    mirror: Mirror | None = None  # to train on mirrored images

    @property
    def labelled(self) -> int:
        """Persons with labels."""
        return sum(
            labels_of(person) is not None
            for sample in self.samples
            for person in sample.annotations
        )


def labels_of(person: Annotation) -> PersonLabels | None:
    """The labels of a person, if there are any."""
    return person.labels if isinstance(person, PersonAnnotation) else None


def read_densepose(
    annotations: str | Path,
    images: str | Path,
    *,
    faulty: OnFault = "refuse",
) -> DensePoseDataset:
    """Read an annotation file whose image names are below the folder ``images``.

    With "leave out" a person whose labels are faulty stays, but without them; ``left_out`` of the
    result says why.
    """
    path = Path(annotations)
    content = load_content(path)
    dataset = read_content(content, path, Path(images), faulty=faulty)
    if len(dataset.class_names) != 1:
        raise UserError(
            f"{path} has {len(dataset.class_names)} categories "
            f"({', '.join(dataset.class_names[:4])} ...). Expected one, person: give a file of "
            "DensePose-COCO, or keep its persons only."
        )
    faults: list[str] = []
    labels = _read_all_labels(content["annotations"], path, faulty, faults)
    samples = tuple(
        _with_labels(sample, labels, path, faulty, faults) for sample in dataset.samples
    )
    common = {field.name: getattr(dataset, field.name) for field in fields(DetectionDataset)}
    common |= {"samples": samples, "left_out": (*dataset.left_out, *faults)}
    return DensePoseDataset(**common)


def open_densepose(
    root: Path | None,
    split: Split,
    *,
    annotations: Path | None = None,
    images: Path | None = None,
    faulty: OnFault | None = None,
) -> DensePoseDataset:
    """Read a split below a folder; ``annotations`` and ``images`` win over what is found there.

    Faulty annotations are left out of the official files and refused in all others, unless
    ``faulty`` says so.
    """
    if annotations is not None and images is not None:
        files: tuple[CocoFiles, ...] = (CocoFiles(annotations, images),)
    elif root is None or annotations is not None or images is not None:
        raise UserError(
            "A DensePose dataset needs a folder, or both an annotation file and a folder of "
            f"images. Give --data FOLDER, or --data.{split}-annotations with "
            f"--data.{split}-images."
        )
    else:
        files = find_densepose(root, split)
    rule: OnFault = faulty or ("leave out" if _is_official(files) else "refuse")
    parts = [read_densepose(each.annotations, each.images, faulty=rule) for each in files]
    dataset = _joined(parts, files)
    if faulty is not None:
        check_rest(dataset, files[0].annotations)
    return dataset


def find_densepose(root: str | Path, split: Split) -> tuple[CocoFiles, ...]:
    """The files of a split: the official ones, or ``densepose_<split>.json``."""
    folder = Path(root)
    check_folder(folder)
    official = [
        ([f"densepose_{part}2014.json", f"densepose_coco_2014_{part}.json"], pictures)
        for part, pictures in _OFFICIAL[split]
    ]
    for group in (official, *([([f"densepose_{name}.json"], name)] for name in _PLAIN[split])):
        found = [(_first_file(folder / "annotations", names), where) for names, where in group]
        if all(path for path, _ in found):
            return tuple(CocoFiles(p, _pictures(folder, w, p)) for p, w in found if p is not None)
    expected = " and ".join(" or ".join(names) for names, _ in official)
    present = sorted(path.name for path in (folder / "annotations").glob("*.json"))
    raise UserError(
        f"{folder} has no {split} split of DensePose-COCO. Expected {expected}, or "
        f"densepose_{_PLAIN[split][0]}.json, in {folder / 'annotations'}; found: "
        f"{', '.join(present) or 'none'}. Put the files there, or name them with "
        f"--data.{split}-annotations and --data.{split}-images."
    )


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _pictures(folder: Path, name: str, labels: Path) -> Path:
    for pictures in (folder / name, folder / "images" / name):
        if pictures.is_dir():
            return pictures
    raise UserError(
        f"{labels} is there, but its images are not. Expected a folder {folder / name} or "
        f"{folder / 'images' / name}; unpack the archive of {name} there."
    )


def _is_official(files: Sequence[CocoFiles]) -> bool:
    return all("2014" in each.annotations.stem for each in files)


def _joined(parts: Sequence[DensePoseDataset], files: Sequence[CocoFiles]) -> DensePoseDataset:
    first, *others = parts
    for other in others:
        check_same_classes(first, other)
    samples = tuple(sample for part in parts for sample in part.samples)
    if len({sample.identifier for sample in samples}) < len(samples):
        raise UserError(
            f"{' and '.join(str(each.annotations) for each in files)} list the same image twice. "
            "Expected files without a common image; number images anew where files were joined."
        )
    left_out = tuple(fault for part in parts for fault in part.left_out)
    return replace(first, samples=samples, left_out=left_out)


def _read_all_labels(
    entries: Iterable[Mapping[str, Any]], path: Path, faulty: OnFault, faults: list[str]
) -> dict[int, PersonLabels]:
    """The labels of annotations by their number."""
    found: dict[int, PersonLabels] = {}
    for entry in entries:
        try:
            labels = read_labels(entry)
        except Faulty as fault:
            _note(f"Annotation {entry['id']} of {path} {fault}", faulty, faults)
        else:
            if labels is not None:
                found[entry["id"]] = labels
    return found


def _with_labels(
    sample: Sample,
    labels: Mapping[int, PersonLabels],
    path: Path,
    faulty: OnFault,
    faults: list[str],
) -> Sample:
    persons = []
    for person in sample.annotations:
        assert person.identifier is not None
        if not _is_seen(person, sample):
            message = f"Annotation {person.identifier} of {path} has a bbox outside its image."
            _note(message, faulty, faults)
            continue
        common = {field.name: getattr(person, field.name) for field in fields(Annotation)}
        persons.append(PersonAnnotation(**common, labels=labels.get(person.identifier)))
    return replace(sample, annotations=tuple(persons))


def _is_seen(person: Annotation, sample: Sample) -> bool:
    x0, y0, x1, y1 = person.target_box or person.box
    across, down = min(x1, sample.width) - max(x0, 0), min(y1, sample.height) - max(y0, 0)
    return min(across, down) > _LEAST_SIDE


def _note(message: str, faulty: OnFault, faults: list[str]) -> None:
    if faulty == "refuse":
        raise UserError(
            f"{message} Correct the file, or leave such annotations out: --data.faulty leave-out."
        )
    faults.append(message)
