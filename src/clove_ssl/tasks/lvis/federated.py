"""Matching of detections with objects where not every class was looked for in every image.

Objects and detections belong to a group: those of one class in one image. Within a group the best
detection chooses first, by COCO's rule: the free object it overlaps most and enough, one that
counts before one that is left out. What has the wrong size for a range of sizes is left out
there, and so is a detection that hits nothing where a class is incomplete.

All groups, ranges and thresholds are matched together. In round r, the r-th detection of every
group that touches an object makes its choice, so there are as many rounds as the largest group
has such detections, and no loop over the groups.

Dimensions: G objects, D detections, P pairs of both that overlap enough, N detections of a round,
A ranges of sizes, T overlap thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clove_ssl.tasks.labels.rle import first_items, places_in_rows, whole_ranges

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bits = NDArray[np.bool_]

_TOGETHER = 1_000_000  # pairs whose overlap is computed at once
_JUST_BELOW = 1 - 1e-10  # an overlap that counts as complete


@dataclass(frozen=True)
class Things:
    """Objects or detections, those of a group one behind the other."""

    group: Integers  # (N,) growing
    area: Floats  # (N,)


class Pairs(NamedTuple):
    """Detections and objects of one group, by detection and then by object."""

    detection: Integers  # (P,)
    thing: Integers  # (P,) the object
    overlap: Floats  # (P,)


class Matches(NamedTuple):
    """What became of every detection."""

    hit: Bits  # (D, A, T) has an object of its own
    left_out: Bits  # (D, A, T) that object is left out


Overlaps = Callable[[Integers, Integers], Floats]
"""Detections and objects, both (P,), to their overlaps (P,)."""


def find_pairs(objects: Things, found: Things, overlaps: Overlaps, *, least: float) -> Pairs:
    """All pairs of a group with at least this overlap."""
    low, high = (np.searchsorted(objects.group, found.group, side) for side in ("left", "right"))
    counts = high - low  # (D,)
    parts = [_pairs_of(chosen, low, counts) for chosen in _pieces(found.group, counts)]
    kept = []
    for detection, thing in parts:
        overlap = overlaps(detection, thing)
        near = overlap >= least
        kept.append(Pairs(detection[near], thing[near], overlap[near]))
    if not kept:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    detections, things, shares = zip(*kept, strict=True)
    return Pairs(np.concatenate(detections), np.concatenate(things), np.concatenate(shares))


def match(
    objects: Things, found: Things, pairs: Pairs, *, left_out: Bits, thresholds: Floats
) -> Matches:
    """Match all groups; ``left_out`` (G, A) says which objects do not count in which range."""
    shape = (left_out.shape[1], len(thresholds))
    free = np.ones((len(objects.group), *shape), bool)
    result = Matches(*(np.zeros((len(found.group), *shape), bool) for _ in range(2)))
    starts = first_items(pairs.detection)  # of a detection's pairs
    ends = np.append(starts[1:], len(pairs.detection))
    ranks = places_in_rows(found.group[pairs.detection[starts]])  # of a detection in its group
    order = np.argsort(ranks, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1):
        if len(chosen):
            rows = whole_ranges(starts[chosen], ends[chosen])  # of the pairs of this round
            some = Pairs(pairs.detection[rows], pairs.thing[rows], pairs.overlap[rows])
            _choose(some, free, result, left_out=left_out, thresholds=thresholds)
    return result


def _choose(
    pairs: Pairs, free: Bits, result: Matches, *, left_out: Bits, thresholds: Floats
) -> None:
    """Let the detections of a round, which are of different groups, take their objects."""
    # A threshold of 1 must be reachable with overlaps that were rounded.
    enough = pairs.overlap[:, None, None] >= np.minimum(thresholds, _JUST_BELOW)  # (P, 1, T)
    open_to = free[pairs.thing] & enough  # (P, A, T)
    counts = open_to & ~left_out[pairs.thing][:, :, None]
    starts = first_items(pairs.detection)  # (N,)
    lengths = np.diff(starts, append=len(pairs.detection))
    # Whoever can have an object that counts must not take one that is left out, however well it
    # fits.
    better = np.repeat(np.logical_or.reduceat(counts, starts), lengths, axis=0)  # (P, A, T)
    open_to &= counts | ~better
    overlap = np.where(open_to, pairs.overlap[:, None, None], -1.0)
    best = np.repeat(np.maximum.reduceat(overlap, starts), lengths, axis=0)  # (P, A, T)
    rows = np.arange(len(pairs.overlap))[:, None, None]
    # Of equal overlaps the last one wins.
    winner = np.maximum.reduceat(np.where(open_to & (overlap == best), rows, -1), starts)
    number, area, threshold = np.nonzero(winner >= 0)  # (N, A, T)
    thing = pairs.thing[winner[number, area, threshold]]
    detection = pairs.detection[starts[number]]
    # All at once without a conflict: a round has one detection of each group, and groups share
    # nothing.
    free[thing, area, threshold] = False
    result.hit[detection, area, threshold] = True
    result.left_out[detection, area, threshold] = left_out[thing, area]


def _pieces(groups: Integers, counts: Integers) -> list[Integers]:
    """Detections that have pairs, in pieces of whole groups with not too many pairs each."""
    some = np.flatnonzero(counts)
    if not len(some):
        return []
    first = first_items(groups[some])  # of every group
    pairs = np.add.reduceat(counts[some], first)
    piece = (np.cumsum(pairs) - pairs) // _TOGETHER
    return np.split(some, first[np.flatnonzero(np.diff(piece)) + 1])


def _pairs_of(chosen: Integers, low: Integers, counts: Integers) -> tuple[Integers, Integers]:
    detection = np.repeat(chosen, counts[chosen])
    return detection, whole_ranges(low[chosen], (low + counts)[chosen])
