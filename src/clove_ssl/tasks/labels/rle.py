"""Masks as run lengths, in memory and as COCO writes them.

Pixels are taken column by column. The counts are the lengths of runs that alternate
between outside and inside; the first is outside and may be 0.

COCO's compressed text writes every count from the fourth on as its difference to the
count two before it. A number is cut into groups of five bits, the lowest first; a group
becomes one character (48 + group), plus 32 when another follows. The highest bit of the
last group is the sign. A detector of a thousand classes gives a million masks, and reading them
one by one takes longer than scoring them, so ``run_totals`` looks at many texts at once.

Tables whose rows have different lengths are stored one row behind the other; an item's owner is the
row it is in, so equal owners are neighbours.

Dimensions: N masks, C characters of all of them, V numbers of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    # With an outside before the first and behind the last pixel, runs alternate whatever touches
    # the edge; a first run of length 0 says that the mask begins inside.
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


def mask_of_record(record: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask of a result in COCO's format: (H, W)."""
    height, width = record["segmentation"]["size"]
    return decode_mask(RLE(height, width, read_counts(record["segmentation"]["counts"])))


def read_counts(text: str) -> tuple[int, ...]:
    """Counts from COCO's compressed text; ValueError when it is none."""
    groups = np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64) - FIRST  # (C,)
    if ((groups < 0) | (groups >= 2 * MORE)).any():
        raise ValueError(f"{text[:40]!r} as compressed runs")
    is_last = groups < MORE
    if len(groups) and not is_last[-1]:
        raise ValueError("compressed runs end in the middle of a number")
    sound = np.ones(1, bool)
    values, _ = _numbers(groups, is_last, np.zeros(len(groups), np.int64), sound)
    if not sound[0]:
        raise ValueError("compressed runs with a number that no mask has")
    # From the fourth on a number is a difference to the one two before it.
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return tuple(values.tolist())


def write_counts(counts: tuple[int, ...]) -> str:
    """Counts as COCO's compressed text."""
    values = np.array(counts, np.int64)  # (N,)
    # Runs of a mask resemble those one column before, so differences are short; the first three
    # have nothing to differ from.
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


Integers = NDArray[np.int64]


def first_items(owners: NDArray[np.integer[Any]]) -> Integers:
    """Where every row that has items begins; owners are 0 or more."""
    return np.flatnonzero(np.diff(owners, prepend=-1))


def places_in_rows(owners: NDArray[np.integer[Any]]) -> Integers:
    """The place of every item in its row, from 0 on."""
    first = first_items(owners)
    return np.arange(len(owners)) - np.repeat(first, np.diff(first, append=len(owners)))


def whole_ranges(starts: Integers, ends: Integers) -> Integers:
    """Whole numbers from every start up to its end, one range behind the other."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    numbers: Integers = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return numbers


Bits = NDArray[np.bool_]

_TOGETHER = 20_000  # masks, which take some hundred megabytes


class RunTotals(NamedTuple):
    """What the runs of masks add up to."""

    sound: Bits  # (N,) whether the text holds runs at all
    pixels: Integers  # (N,) of all runs
    inside: Integers  # (N,) of the runs inside the mask


def measure_runs(texts: Sequence[str]) -> RunTotals:
    """Add up the runs of every text."""
    parts = [_measure(texts[at : at + _TOGETHER]) for at in range(0, len(texts), _TOGETHER)]
    if not parts:
        return RunTotals(np.zeros(0, bool), np.zeros(0, np.int64), np.zeros(0, np.int64))
    return RunTotals(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _measure(texts: Sequence[str]) -> RunTotals:
    lengths = np.array([len(text) for text in texts], np.int64)  # (N,)
    owner = np.repeat(np.arange(len(texts)), lengths)  # (C,)
    letters = np.frombuffer("".join(texts).encode("ascii", "replace"), np.uint8)
    groups = letters.astype(np.int64) - FIRST  # (C,)
    sound = np.array([text.isascii() for text in texts], bool)  # (N,)
    sound[owner[(groups < 0) | (groups >= 2 * MORE)]] = False
    is_last = groups < MORE
    ends = (np.cumsum(lengths) - 1)[lengths > 0]
    sound[owner[ends[~is_last[ends]]]] = False
    # Texts lie behind each other in one array, and are cut apart by their owners alone.
    is_last[ends] = True  # a number that goes on must not reach into the next mask
    values, holder = _numbers(groups, is_last, owner, sound)  # (V,), (V,)
    place = places_in_rows(holder)  # (V,) of a number in its mask
    inside = place % 2 == 1
    # From the fourth on a number is a difference to the one two before it.
    for chosen in (inside, (place > 0) & ~inside):
        values[chosen] = _cumulated(values[chosen], holder[chosen])
    sound[holder[values < 0]] = False
    return RunTotals(
        sound,
        _added(values, holder, len(texts)),
        _added(values[inside], holder[inside], len(texts)),
    )


def _numbers(
    groups: Integers, is_last: Bits, owner: Integers, sound: Bits
) -> tuple[Integers, Integers]:
    """The numbers that groups of five bits make up, and whose they are: (V,), (V,)."""
    first = np.flatnonzero(np.concatenate([[True], is_last[:-1]]))[: np.count_nonzero(is_last)]
    place = places_in_rows(
        np.repeat(np.arange(len(first)), np.diff(first, append=len(groups)))
    )  # (C,)
    sound[owner[place > MOST_GROUPS]] = False
    # A shift by more than 63 bits has no defined result; the mask is refused already.
    place = np.minimum(place, MOST_GROUPS)
    parts = (groups & (MORE - 1)) << (5 * place)
    values = np.add.reduceat(parts, first) if len(first) else parts
    negative = (groups[is_last] & SIGN) > 0
    values -= negative.astype(np.int64) << (5 * (place[is_last] + 1))
    return values, owner[first]


def _cumulated(values: Integers, holder: Integers) -> Integers:
    """Running sums that begin anew with every holder."""
    first = first_items(holder)
    sums = np.cumsum(values)
    before = sums[first] - values[first]
    result: Integers = sums - np.repeat(before, np.diff(first, append=len(holder)))
    return result


def _added(values: Integers, holder: Integers, count: int) -> Integers:
    """The sum of every holder's values; floats hold these numbers exactly."""
    return np.bincount(holder, weights=values, minlength=count).astype(np.int64)
