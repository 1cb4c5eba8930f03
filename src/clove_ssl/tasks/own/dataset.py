"""One data set in memory, whatever format its files have.

An item is an image with its objects and, where somebody drew one, a map of the classes of its
pixels. Splits are called train, val and test; "all" is what nobody has split yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample

TRAIN, VAL, TEST, ALL = "train", "val", "test", "all"
SPLITS = (TRAIN, VAL, TEST)
MOST_OBJECTS = 10_000
"""Objects of one image; a detector compares each of them with a hundred thousand anchors."""


Colour = tuple[int, int, int]


@dataclass(frozen=True)
class MaskFile:
    """A picture whose pixels are numbers of classes, or the colours that classes have."""

    path: Path
    colours: tuple[Colour, ...] = ()
    """Of class 0 and so on, where a list gives classes colours."""


@dataclass(frozen=True)
class Item:
    """An image with what is known about it."""

    sample: Sample
    label_map: MaskFile | None = None


class Problems:
    """What is wrong with files of labels: every kind once, with its number and the first case."""

    def __init__(self) -> None:
        self._cases: dict[str, list[str]] = {}

    def add(self, kind: str, case: object) -> None:
        """Note one more case; ``kind`` goes on where its number ends: "boxes were cut"."""
        self._cases.setdefault(kind, []).append(str(case))

    def count(self, kind: str) -> int:
        """How often a kind was noted."""
        return len(self._cases.get(kind, ()))

    def lines(self) -> Iterator[str]:
        """A sentence for every kind."""
        for kind, cases in self._cases.items():
            if len(cases) == 1:
                yield f"1 {_of_one(kind)}: {cases[0]}"
            else:
                yield f"{len(cases):,} {kind}; the first: {cases[0]}"


_VERBS = {"are": "is", "have": "has", "reach": "reaches", "lie": "lies"}


def _of_one(kind: str) -> str:
    """``boxes were cut`` of one box."""
    words = "|".join(_VERBS)
    start = re.sub(
        rf"\b(image|box|object|shape|mask|annotation|file)(?:es|s)\b(.*?) ({words})\b",
        lambda found: f"{found[1]}{found[2]} {_VERBS[found[3]]}",
        kind,
        count=1,
    )
    for many, one in (("or have", "or has"), ("were", "was"), ("their", "its")):
        start = re.sub(rf"\b{many}\b", one, start)
    return start


@dataclass(frozen=True)
class OwnData:
    """Images, classes and splits."""

    format: str
    root: Path
    items: Mapping[str, tuple[Item, ...]]
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    """What the files call these classes."""
    keypoint_names: tuple[str, ...] = ()
    map_names: tuple[str, ...] = ()
    """Classes of label maps, the first of which is the background; empty where there are none."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def detection(self, split: str) -> DetectionDataset:
        """The objects of a split, as detectors read them."""
        return self.detection_of([item.sample for item in self.items[split]])

    def detection_of(self, samples: Sequence[Sample]) -> DetectionDataset:
        """Some images with the classes of all."""
        return DetectionDataset(
            tuple(samples),
            self.class_names,
            self.category_ids,
            self.keypoint_names,
        )

    def annotations(self, split: str | None = None) -> Iterator[Annotation]:
        """All objects of a split, or of all of them."""
        for name, items in self.items.items():
            if split in (None, name):
                for item in items:
                    yield from item.sample.annotations

    @property
    def has_boxes(self) -> bool:
        """Whether any object has a box."""
        return any(True for _ in self.annotations())

    @property
    def has_masks(self) -> bool:
        """Whether any object has an outline."""
        return any(thing.mask for thing in self.annotations())

    @property
    def has_keypoints(self) -> bool:
        """Whether any object has a keypoint that somebody placed."""
        points = (point for thing in self.annotations() for point in thing.keypoints or ())
        return any(visible for _, _, visible in points)

    @property
    def has_maps(self) -> bool:
        """Whether any image has a class for every pixel."""
        return any(item.label_map for items in self.items.values() for item in items)


@dataclass
class Found:
    """What a reader gives: items by split, before anybody looked at them as a whole."""

    format: str
    class_names: tuple[str, ...]
    items: dict[str, list[Item]] = field(default_factory=dict)
    category_ids: tuple[int, ...] = ()
    keypoint_names: tuple[str, ...] = ()
    map_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def add(self, split: str, item: Item) -> None:
        """One more image of a split."""
        count = len(item.sample.annotations)
        if count > MOST_OBJECTS:
            raise UserError(
                f"{item.sample.image} has {count:,} labelled objects; expected {MOST_OBJECTS:,} at "
                "most in one image. Cut it into smaller ones, or take it out."
            )
        self.items.setdefault(split, []).append(item)
