"""Many masks in COCO's compressed text at once: are they sound, and how large are they?

A detector of a thousand classes gives a million masks; to read them one by one takes longer than
to score them. The text is explained in ``rle.py``, whose functions say the same about one mask.

Dimensions: N masks, C characters of all of them, V numbers of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clove_ssl.tasks.labels.ragged import first_items, places_in_rows
from clove_ssl.tasks.labels.rle import FIRST, MORE, MOST_GROUPS, SIGN

Integers = NDArray[np.int64]
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
