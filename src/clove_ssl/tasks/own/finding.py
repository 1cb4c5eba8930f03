"""A user's data by its folder or file: which format it is in, read and looked over as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.own.checks import class_counts, class_problems, repeated_images
from clove_ssl.tasks.own.dataset import ALL, TEST, TRAIN, VAL, Found, OwnData, Problems
from clove_ssl.tasks.own.readers.coco import CocoFile, one_file_per_split, read_coco_files
from clove_ssl.tasks.own.readers.files import files_below, read_head
from clove_ssl.tasks.own.readers.labelme import read_labelme_files
from clove_ssl.tasks.own.readers.masks import mask_folders, read_mask_folder
from clove_ssl.tasks.own.readers.voc import read_voc_files
from clove_ssl.tasks.own.readers.yolo import NAMES_FILES, read_yolo
from clove_ssl.tasks.own.splits import complete_splits, told_apart

_LOOKED_AT = 20  # JSON files beside each other are of one kind
_COCO_WORDS = (b'"images"', b'"annotations"', b'"categories"')
EXPECTED = (
    "Expected one of: COCO (a .json with images, annotations, categories), VOC (an .xml for every "
    "image), YOLO (data.yaml, or images, labels and classes.txt), LabelMe (a .json for every "
    "image), or masks (images/, masks/ and classes.txt)"
)

Reader = Callable[[Problems], Found]
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")


def open_own(config: LabelledDataConfig, *, task: str = "") -> OwnData:
    """Read the data that a config names; ``task`` decides between files for several tasks."""
    problems = Problems()
    root, found = _read(config, task, problems)
    items, notes = complete_splits(found, share=config.validation_share, seed=config.split_seed)
    counts = {split: class_counts(each) for split, each in items.items()}
    whole = [*class_problems(counts, found.class_names), *repeated_images(items)]
    data = OwnData(
        format=found.format,
        root=root,
        items=items,
        class_names=found.class_names,
        category_ids=found.category_ids,
        keypoint_names=found.keypoint_names,
        map_names=found.map_names,
        notes=(*found.notes, *notes),
        problems=(*problems.lines(), *whole),
    )
    if not (data.has_boxes or data.has_maps):
        count = sum(map(len, items.values()))
        first = next((f" {line.rstrip('.')}." for line in problems.lines()), "")
        raise UserError(
            f"{root} ({found.format}) has {count:,} images, but nobody has labelled an "
            f"object in any of them.{first} Expected at least one object; label some, or give "
            "--data another folder."
        )
    return data


def open_to_judge(config: LabelledDataConfig, known: Sequence[str], *, task: str = "") -> OwnData:
    """The images of other data that a model of the classes ``known`` is judged by, as val.

    These are the test images, or else those of the validation, or else all there are.
    """
    root, found = _read(config, task, Problems())
    items = found.items.get(TEST) or found.items.get(VAL)
    if not items:
        items = [item for each in found.items.values() for item in each]
    present = {t.category for item in items for t in item.sample.annotations}
    unknown = [found.class_names[n] for n in sorted(present) if found.class_names[n] not in known]
    if unknown:
        raise UserError(
            f"{root} has objects of {', '.join(map(repr, unknown[:5]))}, which the model does not "
            f"know; it knows {', '.join(map(repr, known[:5]))}. Take them out, or rename them."
        )
    places = {n: list(known).index(found.class_names[n]) for n in present}
    moved = tuple(replace(item, sample=_moved(item.sample, places)) for item in items)
    return OwnData(
        format=found.format,
        root=root,
        items={VAL: told_apart(moved)},
        class_names=tuple(known),
        category_ids=tuple(range(len(known))),
        keypoint_names=found.keypoint_names,
        map_names=found.map_names,
    )


def _moved(sample: Sample, places: Mapping[int, int]) -> Sample:
    things = tuple(replace(t, category=places[t.category]) for t in sample.annotations)
    return replace(sample, annotations=things)


def _read(config: LabelledDataConfig, task: str, problems: Problems) -> tuple[Path, Found]:
    files = _given_files(config)
    if files:
        root = config.root or files[0].path.parent
        return root, read_coco_files(files, root, problems)
    if config.root is None:
        raise UserError(
            "No data was named. Give --data with a folder or file of images and labels. "
            f"{EXPECTED}."
        )
    root = config.root.expanduser()
    return root, choose_reader(root, task)(problems)


def _given_files(config: LabelledDataConfig) -> list[CocoFile]:
    """Files of COCO's format that were named one by one, to learn from and to be judged by."""
    if config.train_annotations is None:
        if config.test_annotations is not None:
            raise UserError(
                "--data.test-annotations was given without a file to learn from. Give "
                "--data.train-annotations FILE, too."
            )
        return []
    has_test = config.test_annotations is not None
    files = [
        CocoFile(config.train_annotations, config.train_images, TRAIN if has_test else ALL),
    ]
    if config.test_annotations is not None:
        files.append(CocoFile(config.test_annotations, config.test_images, VAL))
    return files


def choose_reader(root: Path, task: str = "") -> Reader:
    """The reader of the one format that is there."""
    if not root.exists():
        raise UserError(f"{root} does not exist. Give --data the folder or file of your labels.")
    readers = _readers_of_file(root) if root.is_file() else _readers_of_folder(root, task)
    if not readers:
        raise UserError(f"{root} holds no labels of a known format. {EXPECTED}.")
    if len(readers) > 1:
        likely = (root / "data.yaml", root / "Annotations")
        example = next((f", such as --data {path}" for path in likely if path.exists()), "")
        raise UserError(
            f"{root} holds labels of several formats: {', '.join(readers)}. Expected one; give the "
            f"file or the folder of the one you mean{example}."
        )
    return next(iter(readers.values()))


def _readers_of_file(path: Path) -> dict[str, Reader]:
    if path.suffix in (".yaml", ".yml"):
        return {"YOLO": lambda problems: read_yolo(path, problems)}
    if path.suffix == ".json":
        file = CocoFile(path, split=ALL)
        return {"COCO": lambda problems: read_coco_files([file], path.parent, problems)}
    if path.suffix in _ARCHIVES:
        raise UserError(
            f"{path} is an archive, which is not looked into. Unpack it, and give --data the "
            "folder that comes out of it."
        )
    raise UserError(f"{path} is no file of labels: it is neither .json nor .yaml. {EXPECTED}.")


def _readers_of_folder(root: Path, task: str) -> dict[str, Reader]:
    coco, labelme = _json_files(root)
    xml = files_below(root, ".xml")
    known: dict[str, Reader] = {}
    if coco:
        known["COCO"] = lambda problems: read_coco_files(
            one_file_per_split(coco, root, task), root, problems
        )
    if xml:
        known["VOC"] = lambda problems: read_voc_files(xml, root, problems)
    if (place := _yolo_place(root)) is not None:
        known["YOLO"] = lambda problems: read_yolo(place, problems)
    if labelme:
        known["LabelMe"] = lambda problems: read_labelme_files(labelme, root, problems)
    if not xml and (folders := mask_folders(root)) is not None:
        known["masks"] = lambda problems: read_mask_folder(root, folders, problems)
    return known


def _json_files(root: Path) -> tuple[list[Path], list[Path]]:
    """Files of COCO's and of LabelMe's kind; others, such as notes of a tool, are left alone."""
    coco: list[Path] = []
    labelme: list[Path] = []
    kinds: dict[Path, list[str]] = {}
    for path in files_below(root, ".json"):
        seen = kinds.setdefault(path.parent, [])
        # Thousands of files beside each other are what the first of them are.
        kind = _kind(path) if len(seen) < _LOOKED_AT or len(set(seen)) > 1 else seen[-1]
        if len(seen) < _LOOKED_AT:
            seen.append(kind)
        if kind == "COCO":
            coco.append(path)
        elif kind == "LabelMe":
            labelme.append(path)
    return coco, labelme


def _kind(path: Path) -> str:
    head = read_head(path)
    if b'"shapes"' in head and b'"images"' not in head:
        return "LabelMe"
    return "COCO" if any(word in head for word in _COCO_WORDS) else ""


def _yolo_place(root: Path) -> Path | None:
    """The file that describes a YOLO folder, or the folder itself where a list names classes."""
    for name in ("data.yaml", "dataset.yaml", "data.yml"):
        if (root / name).is_file():
            return root / name
    described = [
        path
        for path in sorted([*root.glob("*.yaml"), *root.glob("*.yml")])
        if b"names:" in read_head(path)
    ]
    if described:
        return described[0]
    has_labels = any(files_below(root / "labels", ".txt")) if (root / "labels").is_dir() else False
    if has_labels:
        return root
    named = any((root / name).is_file() for name in NAMES_FILES)
    texts = [path for path in files_below(root, ".txt") if "ImageSets" not in path.parts]
    return root if named and any(_is_beside_image(path) for path in texts[:_LOOKED_AT]) else None


def _is_beside_image(path: Path) -> bool:
    return any(path.with_suffix(suffix).is_file() for suffix in (".jpg", ".jpeg", ".png", ".JPG"))
