"""One data set of boxes as files of COCO, VOC and YOLO.

Run:  python tests/builders/labels/written_formats.py VOC2012 OUT [--most N]
reads a folder in VOC's layout with lists train and test, and writes OUT/coco, OUT/voc and
OUT/yolo; images are copied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clove_ssl.tasks.detection.voc import read_voc
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample

Splits = Mapping[str, DetectionDataset]


def write_as_coco(splits: Splits, folder: Path) -> Path:
    """``annotations/<split>.json`` beside ``<split>/``; categories count from 1."""
    for split, dataset in splits.items():
        images, annotations = [], []
        for number, sample in enumerate(dataset.samples, start=1):
            _copy(sample, folder / split)
            size = {"width": sample.width, "height": sample.height}
            images.append({"id": number, "file_name": sample.image.name, **size})
            for thing in sample.annotations:
                x0, y0, x1, y1 = thing.box
                box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": thing.area, "iscrowd": 0}
                place = {"image_id": number, "category_id": thing.category + 1}
                annotations.append({"id": len(annotations) + 1, **place, **box})
        names = enumerate(dataset.class_names, start=1)
        categories = [{"id": number, "name": name} for number, name in names]
        content = {"images": images, "annotations": annotations, "categories": categories}
        path = folder / "annotations" / f"{split}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def write_as_voc(splits: Splits, folder: Path) -> Path:
    """``Annotations``, ``JPEGImages``, lists, names; boxes count from 1, last pixel included."""
    for part in ("Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for split, dataset in splits.items():
        for sample in dataset.samples:
            _copy(sample, folder / "JPEGImages")
            tree = _voc_tree(sample, dataset.class_names)
            ET.ElementTree(tree).write(folder / "Annotations" / f"{sample.image.stem}.xml")
        names = [sample.image.stem for sample in dataset.samples]
        (folder / "ImageSets/Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
        (folder / "classes.txt").write_text("\n".join(dataset.class_names) + "\n")
    return folder


def write_as_yolo(splits: Splits, folder: Path) -> Path:
    """``data.yaml`` beside ``images/<split>/`` and ``labels/<split>/``; six decimals."""
    for split, dataset in splits.items():
        (folder / "labels" / split).mkdir(parents=True, exist_ok=True)
        for sample in dataset.samples:
            _copy(sample, folder / "images" / split)
            lines = [_yolo_line(thing.category, thing.box, sample) for thing in sample.annotations]
            path = folder / "labels" / split / f"{sample.image.stem}.txt"
            path.write_text("".join(f"{line}\n" for line in lines))
    names = next(iter(splits.values())).class_names
    rows = [f"{split}: images/{split}" for split in splits]
    rows += ["names:", *(f"  {number}: {name}" for number, name in enumerate(names))]
    (folder / "data.yaml").write_text("\n".join(rows) + "\n")
    return folder


WRITERS: dict[str, Callable[[Splits, Path], Path]] = {
    "coco": write_as_coco,
    "voc": write_as_voc,
    "yolo": write_as_yolo,
}


def _voc_tree(sample: Sample, names: Sequence[str]) -> ET.Element:
    root = ET.Element("annotation")
    ET.SubElement(root, "filename").text = sample.image.name
    size = ET.SubElement(root, "size")
    for side, length in (("width", sample.width), ("height", sample.height)):
        ET.SubElement(size, side).text = str(length)
    for thing in sample.annotations:
        entry = ET.SubElement(root, "object")
        ET.SubElement(entry, "name").text = names[thing.category]
        corners = zip(("xmin", "ymin", "xmax", "ymax"), thing.box, strict=True)
        box = ET.SubElement(entry, "bndbox")
        for name, value in corners:
            first = name in ("xmin", "ymin")
            ET.SubElement(box, name).text = f"{value + 1 if first else value:g}"
    return root


def _yolo_line(category: int, box: Sequence[float], sample: Sample) -> str:
    x0, y0, x1, y1 = box
    middle = ((x0 + x1) / 2 / sample.width, (y0 + y1) / 2 / sample.height)
    sides = ((x1 - x0) / sample.width, (y1 - y0) / sample.height)
    return " ".join([str(category), *(f"{value:.6f}" for value in (*middle, *sides))])


def _copy(sample: Sample, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / sample.image.name
    if not target.exists():
        shutil.copy(sample.image, target)


def main() -> None:
    """Write a folder in VOC's layout three times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("voc", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=None, help="images of a split")
    arguments = parser.parse_args()
    splits = voc_splits(arguments.voc, most=arguments.most)
    for name, write in WRITERS.items():
        print(write(splits, arguments.out / name))


def voc_splits(root: Path, *, most: int | None = None) -> dict[str, DetectionDataset]:
    """The lists train and test of VOC 2012, the latter as val."""
    found = {}
    for split, name in (("train", "train"), ("val", "test")):
        dataset = read_voc(root, [(2012, name)])
        kept = dataset.samples[:most]
        found[split] = DetectionDataset(kept, dataset.class_names, dataset.category_ids)
    return found


if __name__ == "__main__":
    main()
