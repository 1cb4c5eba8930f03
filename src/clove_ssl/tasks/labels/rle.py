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

FIRST = 48
MORE = 32
SIGN = 16
MOST_GROUPS = 10  # of a number; its 55 bits still fit with their sign


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
    height, width = mask.shape
    filled = np.flatnonzero(np.asarray(mask, bool).any(axis=0))  # columns, mostly a few of many
    if not len(filled):
        return RLE(height, width, (height * width,))
    pixels = np.asarray(mask[:, filled[0] : filled[-1] + 1], bool).ravel(order="F")
    changes = np.flatnonzero(np.diff(pixels, prepend=False, append=False)) + filled[0] * height
    return _between(changes, height=height, width=width)


def encode_places(places: NDArray[np.int64], *, height: int, width: int) -> RLE:
    """The runs of a mask from its pixels, counted column by column and growing: (N,)."""
    first = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # of every run
    last = np.append(first[1:], len(places)) - 1
    edges = np.stack([places[first], places[last] + 1], axis=1).ravel()
    return _between(edges, height=height, width=width)


def decode_mask(rle: RLE) -> NDArray[np.bool_]:
    """The mask (H, W) of runs."""
    inside = np.arange(len(rle.counts)) % 2 == 1
    pixels = np.repeat(inside, rle.counts)
    return pixels.reshape((rle.height, rle.width), order="F")


def read_counts(text: str) -> tuple[int, ...]:
    """Counts from COCO's compressed text; ValueError when it is none."""
    groups = np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64) - FIRST  # (C,)
    if ((groups < 0) | (groups >= 2 * MORE)).any():
        raise ValueError(f"{text[:40]!r} as compressed runs")
    is_last = groups < MORE
    if len(groups) and not is_last[-1]:
        raise ValueError("compressed runs end in the middle of a number")
    first = np.flatnonzero(np.concatenate([[True], is_last[:-1]]))[: np.count_nonzero(is_last)]
    place = np.arange(len(groups)) - np.repeat(first, np.diff(first, append=len(groups)))
    if place.max(initial=0) > MOST_GROUPS:
        raise ValueError("compressed runs with a number that no mask has")
    parts = (groups & (MORE - 1)) << (5 * place)
    values = np.add.reduceat(parts, first) if len(first) else parts
    negative = (groups[is_last] & SIGN) > 0
    values -= negative.astype(np.int64) << (5 * (place[is_last] + 1))
    # From the fourth on a number is a difference to the one two before it.
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return tuple(values.tolist())


def write_counts(counts: tuple[int, ...]) -> str:
    """Counts as COCO's compressed text."""
    values = np.array(counts, np.int64)  # (N,)
    values[3:] -= np.array(counts, np.int64)[1:-2]
    shifts = 5 * np.arange(_most_groups(values))  # (G,)
    groups = (values[:, None] >> shifts) & (MORE - 1)  # (N, G)
    # A number is complete once all that is above a group repeats the sign in its highest bit.
    complete = values[:, None] >> (shifts + 4) == np.where(values < 0, -1, 0)[:, None]  # (N, G)
    last = complete.argmax(axis=1)[:, None]  # (N, 1)
    place = np.arange(len(shifts))  # (G,)
    characters = FIRST + groups + np.where(place < last, MORE, 0)
    text: str = characters[place <= last].astype(np.uint8).tobytes().decode("ascii")
    return text


def _between(changes: NDArray[np.int64], *, height: int, width: int) -> RLE:
    """The runs between changes from outside to inside and back."""
    counts = np.diff(changes, prepend=0, append=height * width).tolist()
    return RLE(height, width, tuple(counts if counts[-1] else counts[:-1]))


def _most_groups(values: NDArray[np.int64]) -> int:
    """Groups of five bits that hold every value with its sign."""
    return int(np.abs(values).max(initial=0)).bit_length() // 5 + 1
