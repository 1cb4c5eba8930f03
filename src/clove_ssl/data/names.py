"""Names of images: which files count as one, patterns of them, millions in little memory.

A source travels to every worker process. A list of a million Python strings
takes seconds and a gigabyte on that way; one block of bytes with a table of
ends takes neither, and is shared between forked processes for good.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from clove_ssl.data.searching import matching_files
from clove_ssl.errors import UserError

IntArray = npt.NDArray[np.int64]

IMAGE_SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"),
        *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
    )
)
FOREIGN_SUFFIXES = frozenset(
    (
        *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".svg", ".psd", ".ico", ".tga"),
        *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2", ".exr"),
    )
)
"""Pictures of kinds that are not decoded; their owners should hear of it."""


def suffix_of(name: str) -> str:
    """What a name ends with behind its last dot, in lower case; ``.jpg`` is all suffix."""
    _, dot, suffix = name.rpartition(".")
    return (dot + suffix).lower()


def is_image_name(name: str) -> bool:
    """Whether the suffix, in upper or lower case, promises an image that can be decoded."""
    return suffix_of(name) in IMAGE_SUFFIXES


def how_to_convert(suffix: str, folder: str) -> str:
    """What to type for pictures of a foreign kind."""
    return (
        "Convert them to JPEG or PNG first, for example with ImageMagick: mogrify -format jpg "
        f"{os.path.join(folder, '*' + suffix)}"
    )


class NameTable:
    """An immutable sequence of names."""

    def __init__(self, block: bytes, ends: IntArray) -> None:
        self.block = block  # all names, one after the other
        self.ends = ends  # (N,) where each name stops in the block

    @classmethod
    def of(cls, names: Iterable[str]) -> NameTable:
        """Pack ``names`` in their order."""
        # "surrogatepass" keeps names that are no valid Unicode, as file systems allow them.
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(b"".join(encoded), ends)

    @classmethod
    def join(cls, tables: Sequence[NameTable]) -> NameTable:
        """All names of several tables, in order."""
        starts = np.cumsum([0, *(len(table.block) for table in tables)], dtype=np.int64)
        shifted = [table.ends + start for table, start in zip(tables, starts[:-1], strict=True)]
        ends = np.concatenate([np.zeros(0, np.int64), *shifted])
        return cls(b"".join(table.block for table in tables), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        index = range(len(self))[index]
        start = int(self.ends[index - 1]) if index else 0
        return self.block[start : int(self.ends[index])].decode("utf-8", "surrogatepass")


_INNER_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
MAX_SHARDS = 1_000_000
_MAX_BRACES = 20


def find_shards(pattern: str) -> list[str]:
    """Files that ``pattern`` names: braces in their order, then ``*``, ``?`` and ``[]`` sorted."""
    if os.path.exists(pattern):
        return [pattern]
    shards: dict[str, None] = {}
    missing = []
    for path in expand_braces(pattern):
        matches = [path] if os.path.exists(path) else matching_files(path)
        shards.update(dict.fromkeys(matches))
        missing += [] if matches else [path]
    if missing:
        others = f" ({len(missing)} shards are missing)" if len(missing) > 1 else ""
        raise UserError(
            f"No file matches {missing[0]}{others}, which --data {pattern!r} asks for. "
            'Check the numbers, or take what is there with --data "FOLDER/*.tar".'
        )
    return list(shards)


def expand_braces(pattern: str) -> Iterator[str]:
    """``a{1,2}b`` and ``a{08..10}b`` as a shell reads them; other braces stay as they are."""
    counts = [_count(braces[1]) for braces in _INNER_BRACES.finditer(pattern)]
    if math.prod(counts) > MAX_SHARDS or pattern.count("{") > _MAX_BRACES:
        raise _too_many(pattern)
    for number, name in enumerate(_expand(pattern)):
        if number >= MAX_SHARDS:  # braces in braces are not counted before
            raise _too_many(pattern)
        yield name


def _too_many(pattern: str) -> UserError:
    return UserError(
        f"--data {pattern[:200]!r} stands for more than {MAX_SHARDS:,} shards, or has more than "
        f"{_MAX_BRACES} braces. Check the numbers in its braces, or take what is there with "
        '--data "FOLDER/*.tar".'
    )


def _count(inside: str) -> int:
    """How many names braces stand for, without making them."""
    numbers = _RANGE.fullmatch(inside)
    return abs(int(numbers[1]) - int(numbers[2])) + 1 if numbers else inside.count(",") + 1


def _expand(pattern: str) -> Iterator[str]:
    for braces in _INNER_BRACES.finditer(pattern):
        if choices := _choices(braces[1]):
            before, after = pattern[: braces.start()], pattern[braces.end() :]
            for choice in choices:
                yield from _expand(before + choice + after)
            return
    yield pattern


def _choices(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if not numbers:
        return inside.split(",") if "," in inside else []
    first, last = int(numbers[1]), int(numbers[2])
    is_padded = any(text.startswith("0") and len(text) > 1 for text in numbers.groups())
    width = max(map(len, numbers.groups())) if is_padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
