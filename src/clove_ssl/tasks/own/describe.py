"""A data set in lines for people: what it is, how much of what, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from clove_ssl.tasks.own.checks import class_counts
from clove_ssl.tasks.own.dataset import OwnData
from clove_ssl.text_tables import in_columns

_MOST_CLASSES = 40  # rows of the table


def describe(data: OwnData) -> Iterator[str]:
    """Everything but the problems, which are warnings."""
    yield f"{data.format}: {data.root}"
    sizes = ", ".join(f"{split} {len(items):,}" for split, items in data.items.items())
    yield f"  images: {sizes}"
    yield f"  labels: {', '.join(_kinds(data))}"
    if data.has_boxes:
        yield from (f"  {line}" for line in in_columns(_class_rows(data), side="right"))
        empty = {
            split: sum(not item.sample.annotations for item in items)
            for split, items in data.items.items()
        }
        crowds = {split: sum(t.crowd for t in data.annotations(split)) for split in data.items}
        for counts, what in (
            (empty, "images without objects"),
            (crowds, "of the objects groups (iscrowd), which are no targets"),
        ):
            if any(counts.values()):
                told = ", ".join(f"{split} {count:,}" for split, count in counts.items() if count)
                yield f"  {what}: {told}"
    elif data.map_names:
        yield f"  classes of pixels: {', '.join(data.map_names)}"
    if data.keypoint_names:
        yield f"  keypoints: {', '.join(data.keypoint_names)}"
    yield from (f"  {note}" for note in data.notes)


def suggested_task(data: OwnData) -> str:
    """The task that makes most of the labels."""
    if data.has_keypoints:
        return "keypoints"
    if data.has_boxes:
        return "instances" if data.has_masks else "detect"
    return "segment"


def _kinds(data: OwnData) -> list[str]:
    known = {
        "boxes": data.has_boxes,
        "masks of objects": data.has_masks,
        "keypoints": data.has_keypoints,
        "a class for every pixel": data.has_maps,
    }
    return [name for name, holds in known.items() if holds] or ["none"]


def _class_rows(data: OwnData) -> list[list[str]]:
    counts = {split: class_counts(items) for split, items in data.items.items()}
    rows = [["class", *(f"{split}" for split in counts)]]
    shown = data.class_names[:_MOST_CLASSES]
    for number, name in enumerate(shown):
        rows.append([name, *(f"{count[number]:,}" for count in counts.values())])
    if len(data.class_names) > len(shown):
        rest = range(len(shown), len(data.class_names))
        sums = [f"{sum(count[number] for number in rest):,}" for count in counts.values()]
        rows.append([f"{len(rest):,} more classes", *sums])
    totals = [f"{sum(count.values()):,}" for count in counts.values()]
    return [*rows, ["all objects", *totals]]
