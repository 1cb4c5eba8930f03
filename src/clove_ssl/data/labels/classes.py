"""Which class each image of a source belongs to.

Class folders give their names: an image belongs to the first folder of its path
below the source, so ``dogs/a.jpg`` and ``dogs/more/b.jpg`` are both dogs. Shards
give numbers: the class of ``000012.jpg`` is the whole number in ``000012.cls``
beside it, and its name is that number in words of digits, such as "7".

Images without a class (loose in the folder, no ``.cls``) are kept and have none,
so labelled and unlabelled images may lie together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clove_ssl.data.names import IntArray
from clove_ssl.data.shards import is_unsafe, members, open_tar
from clove_ssl.data.sources import FolderSource, ImageSource, ListSource, TarSource
from clove_ssl.errors import UserError

NONE = -1
"""In :attr:`ClassLabels.numbers`, the mark of an image without a class."""

_SUFFIX = ".cls"
_MOST_BYTES = 32  # a class number; anything longer is something else


@dataclass(frozen=True)
class ClassLabels:
    """The classes of a source; a class is a position in ``class_names``."""

    class_names: tuple[str, ...]
    numbers: IntArray  # (N,) class of each image, NONE where it has none

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int | None:
        number = int(self.numbers[index])
        return None if number == NONE else number

    def labelled(self) -> IntArray:
        """The numbers of the images that have a class, ascending."""
        return np.flatnonzero(self.numbers != NONE)


def read_class_labels(source: ImageSource) -> ClassLabels:
    """The class of every image of ``source``; refuses one with fewer than two classes."""
    labels = find_class_labels(source)
    if labels is None:
        raise UserError(
            f"{_describe(source)} has no two classes. Expected a folder with one folder per "
            "class, or .tar shards with a .cls file (a class number) beside each image."
        )
    return labels


def find_class_labels(source: ImageSource) -> ClassLabels | None:
    """The same, or None where ``source`` has fewer than two classes."""
    if isinstance(source, (FolderSource, ListSource)):
        found = [_folder_of(source.name(index)) for index in range(len(source))]
        names = sorted({name for name in found if name is not None})
    elif isinstance(source, TarSource):
        found = _shard_classes(source)
        names = sorted({name for name in found if name is not None}, key=int)
    else:
        return None
    if len(names) < 2:
        return None
    places = {name: place for place, name in enumerate(names)}
    numbers = [NONE if name is None else places[name] for name in found]
    return ClassLabels(tuple(names), np.array(numbers, np.int64))


def _folder_of(name: str) -> str | None:
    folder, slash, _ = name.removeprefix("./").partition("/")
    return folder if slash and folder not in ("", "..") else None


def _shard_classes(source: TarSource) -> list[str | None]:
    labels = dict(entry for shard in source.shards for entry in _read_shard(shard))
    return [labels.get(_key(source.name(index))) for index in range(len(source))]


def _read_shard(shard: str) -> Iterator[tuple[str, str]]:
    """Keys and class numbers of a shard."""
    if "://" in shard:
        raise UserError(
            f"Class labels are not read from remote shards such as {shard}. Copy the labelled "
            "shards to a local folder and give that."
        )
    length = os.path.getsize(shard)
    with open(shard, "rb") as file, open_tar(file, length) as tar:
        for member in members(tar):
            is_label = member.isreg() and member.name.endswith(_SUFFIX)
            if is_label and not is_unsafe(member) and member.offset_data + member.size <= length:
                # pread leaves the position alone, which the iteration over headers needs.
                data = os.pread(file.fileno(), min(member.size, _MOST_BYTES), member.offset_data)
                yield _key(f"{shard}:{member.name}"), _number(data, f"{shard}:{member.name}")


def _number(data: bytes, name: str) -> str:
    text = data.decode("ascii", "replace").strip()
    if not text.isdecimal():
        raise UserError(
            f"{name} holds {text!r}; expected the number of a class, such as 7. Correct the shard, "
            "or leave it out."
        )
    return str(int(text))


def _key(name: str) -> str:
    """What an image and its label have in common: the name up to the first dot of the file."""
    folder, slash, file = name.rpartition("/")
    prefix, colon, file = file.rpartition(":")
    return folder + slash + prefix + colon + file.partition(".")[0]


def _describe(source: ImageSource) -> str:
    if isinstance(source, TarSource):
        return f"The {len(source.shards)} shards from {source.shards[0]} on"
    return str(getattr(source, "root", "The source"))
