"""Names of images: which files count as one, and millions of names in little memory.

A source travels to every worker process. A list of a million Python strings
takes seconds and a gigabyte on that way; one block of bytes with a table of
ends takes neither, and is shared between forked processes for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

IMAGE_SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"),
        *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
    )
)


def is_image_name(name: str) -> bool:
    """Whether the suffix, in upper or lower case, promises an image that can be decoded."""
    _, dot, suffix = name.rpartition(".")
    return (dot + suffix).lower() in IMAGE_SUFFIXES


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
