"""Whether the masks of a folder in VOC's layout are of VOC's classes, or of somebody's own.

A mask holds numbers alone. What they mean is said by a list of names, or by the boxes of the same
images; where nobody says it, VOC's own masks show all of VOC's classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from clove_ssl.data.labels.pixels import IGNORE, VOC_CLASSES, VOCLabels
from clove_ssl.errors import UserError

_LISTS = ("classes.txt", "labelmap.txt", "labels.txt")
_LOOKED_AT = 300  # files of boxes
_LARGEST = 2**20  # bytes of a file that is looked at
_NAME = re.compile(rb"<object>.*?<name>\s*([^<]*?)\s*</name>", re.DOTALL)


def check_are_voc(labels: VOCLabels, root: Path) -> None:
    """Refuse masks of other classes, which would be called by VOC's names."""
    named = _named_classes(labels, root)
    if named:
        foreign = sorted(named - {*VOC_CLASSES, "void", "ignore", "__ignore__"})
        if foreign:
            raise _refusal(root, f"its classes are {', '.join(map(repr, foreign[:5]))}")
        return
    seen = set().union(*(labels.present_classes(index) for index in range(len(labels)))) - {IGNORE}
    if len(seen) < len(VOC_CLASSES):
        names = [VOC_CLASSES[number] for number in sorted(seen)]
        raise _refusal(
            root,
            f"nothing names its classes, and its masks have only {len(names)} of VOC's "
            f"{len(VOC_CLASSES)} ({', '.join(names[:4])}...)",
        )


def _refusal(root: Path, reason: str) -> UserError:
    return UserError(
        f"{root} does not seem to have VOC's classes: {reason}; voc-semantic would call class 1 "
        "'aeroplane'. For classes of your own type: clove finetune segment. If they are VOC's, "
        f"write VOC's {len(VOC_CLASSES)} names, one a line, into {root / 'classes.txt'}."
    )


def _named_classes(labels: VOCLabels, root: Path) -> set[str]:
    """The names that a list or the boxes of the images give."""
    folder = labels.paths(0)[0].parent.parent
    for place in (root / name for name in _LISTS):
        if place.is_file():
            lines = _head(place).decode("utf-8", "replace").splitlines()
            words = {line.partition(":")[0].strip() for line in lines}
            return {word for word in words if word and not word.startswith("#")}
    count = min(len(labels), _LOOKED_AT)
    return set(_names_of_boxes(folder / f"Annotations/{labels.name(n)}.xml" for n in range(count)))


def _names_of_boxes(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        if path.is_file():
            for name in _NAME.findall(_head(path)):
                yield name.decode("utf-8", "replace")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST)
