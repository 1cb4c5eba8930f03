"""Several sources as one: the images of the first, then those of the second, and so on."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from clove_ssl.data.sources import ImageSource


class JoinedSource:
    """Images of several sources in the order in which these were named.

    Args:
        parts: The sources.
        names: What each of them was called, to tell apart files of the same name.
    """

    def __init__(self, parts: Sequence[ImageSource], names: Sequence[str]) -> None:
        self.parts = tuple(parts)
        self._names = tuple(names)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: int) -> bytes:
        """The encoded image."""
        part, place = self._place(index)
        return self.parts[part].read(place)

    def name(self, index: int) -> str:
        """The name that its source gives it, behind that of the source."""
        part, place = self._place(index)
        return os.path.join(self._names[part], self.parts[part].name(place))

    def _place(self, index: int) -> tuple[int, int]:
        """The source of an image, and its number there."""
        number = range(len(self))[index]
        part = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[part - 1]) if part else 0
        return part, number - before
