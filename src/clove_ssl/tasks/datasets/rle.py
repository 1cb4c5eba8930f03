"""Masks as run lengths, in memory and as COCO writes them.

Pixels are taken column by column. The counts are the lengths of runs that alternate
between outside and inside; the first is outside and may be 0.

COCO's compressed text writes every count from the fourth on as its difference to the
count two before it. A number is cut into groups of five bits, the lowest first; a group
becomes one character (48 + group), plus 32 when another follows. The highest bit of the
last group is the sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FIRST = 48
_MORE = 32
_SIGN = 16


@dataclass(frozen=True)
class RLE:
    """A mask of height x width pixels."""

    height: int
    width: int
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.counts, default=0) < 0 or sum(self.counts) != self.height * self.width:
            raise ValueError(
                f"runs of {sum(self.counts)} pixels in a mask of {self.height} x {self.width}"
            )

    @property
    def area(self) -> int:
        """Pixels inside."""
        return sum(self.counts[1::2])


def encode_mask(mask: NDArray[np.bool_]) -> RLE:
    """The runs of a mask (H, W)."""
    pixels = np.asarray(mask, bool).ravel(order="F")
    changes = np.flatnonzero(np.diff(pixels, prepend=False)).tolist()
    edges = [0, *changes, pixels.size]
    counts = tuple(end - start for start, end in zip(edges, edges[1:], strict=False))
    return RLE(mask.shape[0], mask.shape[1], counts)


def decode_mask(rle: RLE) -> NDArray[np.bool_]:
    """The mask (H, W) of runs."""
    inside = np.arange(len(rle.counts)) % 2 == 1
    pixels = np.repeat(inside, rle.counts)
    return pixels.reshape((rle.height, rle.width), order="F")


def read_counts(text: str) -> tuple[int, ...]:
    """Counts from COCO's compressed text; ValueError when it is none."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        group = ord(character) - _FIRST
        if not 0 <= group < 2 * _MORE:
            raise ValueError(f"{character!r} in compressed runs")
        value |= (group & (_MORE - 1)) << shift
        shift += 5
        if group & _MORE:
            continue
        if group & _SIGN:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("compressed runs end in the middle of a number")
    return tuple(counts)


def write_counts(counts: tuple[int, ...]) -> str:
    """Counts as COCO's compressed text."""
    text = []
    for position, count in enumerate(counts):
        value = count - counts[position - 2] if position > 2 else count
        while True:
            group = value & (_MORE - 1)
            value >>= 5
            done = value == (-1 if group & _SIGN else 0)
            text.append(chr(_FIRST + group + (0 if done else _MORE)))
            if done:
                break
    return "".join(text)
