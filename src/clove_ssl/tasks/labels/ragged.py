"""Tables whose rows have different lengths, stored one row behind the other.

An item's owner is the row it is in; owners follow each other, so equal ones are neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
