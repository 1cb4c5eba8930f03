"""The order of training images, in groups of wide and of tall ones.

Images of one forward pass are padded to a common size, which wastes little when all are wide or
all are tall. So images are dealt into two rows as they come in the shuffled order of
``ImageOrder``, and whenever a row holds ``group`` images they leave it together. What is left in a
row at the end of an epoch waits for the next one: nobody is dropped, and an image is used exactly
once per epoch.

Which group is the j-th follows from counting, so any position can be looked up without those
before it. With n images of one kind, the k-th group of that kind is complete with image
k * group + group - 1 of its row, which lies in epoch (k * group + group - 1) // n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clove_ssl.data.names import IntArray
from clove_ssl.data.order import Draw, Draws, ImageOrder
from clove_ssl.tasks.labels.samples import Sample

_REMEMBERED = 4  # epochs; groups reach back one or two unless a kind is rare


@dataclass(frozen=True)
class _Epoch:
    rows: tuple[IntArray, ...]  # images of every kind, as they come
    completed: IntArray  # (groups, 2) kind and number of the groups that this epoch completes


class GroupedOrder(ImageOrder):
    """An order whose positions follow each other in groups of one kind.

    Args:
        kinds: The kind of every image, 0 or 1 (or more, if there are more kinds): (N,).
        seed: Decides the order.
        group: Images that leave a row together.
    """

    def __init__(self, kinds: npt.ArrayLike, seed: int, *, group: int) -> None:
        self.kinds: IntArray = np.asarray(kinds, np.int64)
        super().__init__(len(self.kinds), seed)
        if group < 1:
            raise ValueError(f"groups of {group} images")
        self.group = group
        self._sizes = np.bincount(self.kinds)  # (kinds,)
        self._epochs: dict[int, _Epoch] = {}

    def at(self, position: int) -> Draw:
        """The image at one position."""
        epochs, indices = self.draws(position, position + 1)
        return Draw(int(epochs[0]), int(indices[0]))

    def draws(self, start: int, stop: int) -> Draws:
        """The images at positions ``start`` up to, not including, ``stop``."""
        if stop <= start:
            return Draws(np.zeros(0, np.int64), np.zeros(0, np.int64))
        first, last = start // self.group, (stop - 1) // self.group
        groups = [self._images(number) for number in range(first, last + 1)]
        here = slice(start - first * self.group, stop - first * self.group)
        epochs, indices = (np.concatenate(column)[here] for column in zip(*groups, strict=True))
        return Draws(epochs, indices)

    def _images(self, number: int) -> Draws:
        """The images of the group with this number."""
        epoch = self._epoch_of(number)
        kind, ordinal = self._epoch(epoch).completed[number - self._completed_before(epoch)]
        parts: list[tuple[IntArray, IntArray]] = []
        first, last = ordinal * self.group, (ordinal + 1) * self.group  # places in the row
        while last > first:
            begin = max(0, first - self._before(epoch)[kind])
            images = self._epoch(epoch).rows[kind][begin : last - self._before(epoch)[kind]]
            parts.append((np.full(len(images), epoch), images))
            last, epoch = last - len(images), epoch - 1
        epochs, indices = (np.concatenate(column) for column in zip(*parts[::-1], strict=True))
        return Draws(epochs, indices)

    def _completed_before(self, epoch: int) -> int:
        """Groups that are complete when an epoch begins."""
        return int((self._before(epoch) // self.group).sum())

    def _before(self, epoch: int) -> IntArray:
        """Images of every kind in the epochs before this one: (kinds,)."""
        counts: IntArray = epoch * self._sizes
        return counts

    def _images_of(self, epoch: int) -> IntArray:
        """The images of an epoch, shuffled."""
        return self._permutation(epoch)

    def _kinds_of(self, images: IntArray) -> IntArray:
        kinds: IntArray = self.kinds[images]
        return kinds

    def _epoch_of(self, number: int) -> int:
        """The epoch that completes a group: the last one that does not begin after it."""
        low, high = 0, (number + len(self._sizes) + 1) * self.group // self.count + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if self._completed_before(middle) <= number else (low, middle)
            )
        return low

    def _epoch(self, epoch: int) -> _Epoch:
        found = self._epochs.pop(epoch, None) or self._deal(epoch)
        self._epochs[epoch] = found  # at the end: the one that was used last
        if len(self._epochs) > _REMEMBERED:
            self._epochs.pop(next(iter(self._epochs)))
        return found

    def _deal(self, epoch: int) -> _Epoch:
        images = self._images_of(epoch)
        kinds, rows, completed = self._kinds_of(images), [], []
        for kind, before in enumerate(self._before(epoch)):
            places = np.flatnonzero(kinds == kind)
            rows.append(images[places])
            count = before + np.arange(1, len(places) + 1)  # images of this kind so far
            full = count % self.group == 0
            ordinal = count[full] // self.group - 1
            completed.append(np.stack([places[full], np.full_like(ordinal, kind), ordinal], axis=1))
        table = np.concatenate(completed)
        return _Epoch(tuple(rows), table[np.argsort(table[:, 0]), 1:])

    def __getstate__(self) -> dict[str, object]:
        own = {"kinds": self.kinds, "group": self.group, "_sizes": self._sizes, "_epochs": {}}
        return super().__getstate__() | own


def aspect_kinds(samples: Sequence[Sample]) -> IntArray:
    """0 for images that are wider than tall, 1 for all others: (N,)."""
    return np.array([int(sample.width <= sample.height) for sample in samples], np.int64)
