"""What can be wrong with a data set as a whole: classes, and images that are in two splits."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from clove_ssl.data.whole_files import read_whole
from clove_ssl.tasks.own.dataset import TRAIN, Item

_NAMED = 5  # examples in a message

Items = Mapping[str, tuple[Item, ...]]


def class_problems(
    counts: Mapping[str, Counter[int]], class_names: tuple[str, ...], *, what: str = "object"
) -> Iterator[str]:
    """Classes without objects, and those that only images to be judged by have."""
    if not any(counts.values()):
        return
    learned = counts[TRAIN]
    for split, present in counts.items():
        unknown = [class_names[number] for number in present if not learned[number]]
        if split != TRAIN and unknown:
            yield (
                f"The {split} images have {what}s of {listed(unknown)}, the training images have "
                "none. They will not be found; label some in training images."
            )
    everywhere = set().union(*counts.values())
    empty = [name for number, name in enumerate(class_names) if number not in everywhere]
    if empty:
        yield (
            f"There is no {what} of {listed(empty)}. The model will have outputs for them "
            "nevertheless; remove them from the list of classes if they are not needed."
        )


def class_counts(items: tuple[Item, ...]) -> Counter[int]:
    """Objects of every class."""
    return Counter(thing.category for item in items for thing in item.sample.annotations)


def repeated_images(items: Items) -> Iterator[str]:
    """Images that lie in two splits, byte for byte: a model is not judged by what it has seen."""
    by_size: dict[int, list[tuple[str, Path]]] = defaultdict(list)
    for split, each in items.items():
        for item in each:
            by_size[item.sample.image.stat().st_size].append((split, item.sample.image))
    pairs: list[str] = []
    for files in by_size.values():
        if len({split for split, _ in files}) > 1:  # else nothing has to be read
            pairs += _equal_files(files)
    if pairs:
        more = f" and {len(pairs) - _NAMED:,} more" if len(pairs) > _NAMED else ""
        what = "1 image is" if len(pairs) == 1 else f"{len(pairs):,} images are"
        yield (
            f"{what} in two splits, so scores will be too good: "
            f"{'; '.join(pairs[:_NAMED])}{more}. Take them out of one."
        )


def _equal_files(files: list[tuple[str, Path]]) -> Iterator[str]:
    first: dict[bytes, tuple[str, Path]] = {}
    for split, path in files:
        digest = hashlib.sha256(read_whole(path)).digest()
        other, twin = first.setdefault(digest, (split, path))
        if other != split:
            yield f"{twin.name} ({other}) = {path.name} ({split})"


def listed(names: list[str]) -> str:
    """The first of some classes, and how many more there are."""
    more = f" and {len(names) - _NAMED} more classes" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
