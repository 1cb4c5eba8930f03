"""``clove data``: what is in a folder of labelled images, without training on it."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.showing import DataConfig
from clove_ssl.console import Console
from clove_ssl.data.labels.mask_folders import read_picture
from clove_ssl.painting.predictions import paint_classes, paint_things, write_sheet
from clove_ssl.tasks.loading.images import check_images
from clove_ssl.tasks.own.dataset import Item, OwnData
from clove_ssl.tasks.own.describe import describe, suggested_task
from clove_ssl.tasks.own.finding import open_own
from clove_ssl.tasks.own.pixel_labels import map_problems, pixel_labels
from clove_ssl.tasks.own.readers.masks import check_mask, read_classes
from clove_ssl.tasks.pictures import spread, true_things

COLUMNS = 3


def show_data(config: DataConfig) -> None:
    """Read data as fine-tuning would, say what they are, and draw examples."""
    labelled = LabelledDataConfig(
        root=config.data,
        validation_share=config.validation_share,
        split_seed=config.split_seed,
    )
    with Console() as console:
        with console.working("Reading labels"):
            data = open_own(labelled, task="instances")
        for line in describe(data):
            console.say(line)
        for problem in data.problems:
            console.warn(problem)
        problems: list[str] = []
        with console.working("Looking at the images"):
            for items in data.items.values():
                check_images([item.sample for item in items])
            if data.map_names and not data.has_boxes:
                parts = {split: pixel_labels(data, split) for split in data.items}
                problems = map_problems(parts, root=data.root)
        for problem in problems:
            console.warn(problem)
        if config.out is not None:
            for path in write_examples(data, config.out, count=config.pictures):
                console.choice("examples", str(path))
        console.say(
            f"Next: clove finetune {suggested_task(data)} --backbone RUN --data {config.data} "
            "--out OUT"
        )


def write_examples(data: OwnData, folder: Path, *, count: int) -> list[Path]:
    """Draw up to ``count`` images of every split; those with objects come first."""
    return [
        write_sheet(folder / f"{split}.png", example_rows(data, split, count=count))
        for split, items in data.items.items()
        if items
    ]


def example_rows(data: OwnData, split: str, *, count: int) -> list[list[Image.Image]]:
    """The pictures of a sheet, in rows."""
    items = data.items[split]
    full = [item for item in items if item.sample.annotations or item.label_map]
    pictures = [_paint(item, data) for item in spread(full or items, count)]
    return [pictures[at : at + COLUMNS] for at in range(0, len(pictures), COLUMNS)]


def _paint(item: Item, data: OwnData) -> Image.Image:
    sample = item.sample
    pixels = read_picture(sample.image).permute(1, 2, 0).numpy()
    if not sample.annotations and item.label_map is not None:
        names = data.map_names or tuple(map(str, range(256)))
        check_mask(item.label_map, names, (sample.height, sample.width))
        return paint_classes(pixels, read_classes(item.label_map), names, caption=sample.image.name)
    labels = {"segmentation"} if any(t.mask for t in sample.annotations) else set()
    labels |= {"keypoints"} if data.keypoint_names else set()
    things = true_things(sample, data.detection_of([sample]), shown=labels)
    return paint_things(pixels, things, caption=sample.image.name)
