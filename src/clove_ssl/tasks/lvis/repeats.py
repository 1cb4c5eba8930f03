"""Images with rare classes more often: the sampling of LVIS.

A class in a share f of all images has the factor max(1, sqrt(t / f)), and an image that of its
rarest class. The factor is how often an image comes in an epoch, on average: an image with 2.3
comes twice, and in three of ten epochs a third time. That choice is a pure function of the seed
and the epoch, so neither processes nor a restart change it.

Dimensions: N images.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from clove_ssl.data.names import IntArray
from clove_ssl.data.order import copy_uniforms, shuffled
from clove_ssl.tasks.labels.rle import places_in_rows
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.loading.order import GroupedOrder

Floats = npt.NDArray[np.float64]


def repeat_factors(classes: Sequence[Iterable[int]], *, threshold: float) -> Floats:
    """How often every image comes in an epoch, from the classes of its objects: (N,)."""
    present = [set(some) for some in classes]
    counts = Counter(number for some in present for number in some)
    by_class = {
        number: max(1.0, math.sqrt(threshold * len(present) / count))
        for number, count in counts.items()
    }
    return np.array([max((by_class[n] for n in some), default=1.0) for some in present])


def sample_factors(samples: Sequence[Sample], *, threshold: float) -> Floats:
    """The factors of samples: (N,)."""
    classes = [[thing.category for thing in sample.annotations] for sample in samples]
    return repeat_factors(classes, threshold=threshold)


class RepeatedOrder(GroupedOrder):
    """Groups of one kind, in which an image comes as often as its factor says.

    The second copy of image i is called i + N, the third i + 2 N, so that copies are cropped and
    mirrored independently; the image is the remainder of a division by N.

    To look up an epoch takes a glance at all epochs before it, since their lengths differ.

    Args:
        kinds: The kind of every image: (N,).
        factors: How often an image comes in an epoch, 1 or more: (N,).
        seed: Decides the order and the copies.
        group: Images that leave a row together.
    """

    def __init__(self, kinds: npt.ArrayLike, factors: Floats, seed: int, *, group: int) -> None:
        super().__init__(kinds, seed, group=group)
        if len(factors) != self.count or factors.min() < 1:
            raise ValueError(f"{len(factors)} factors of {factors.min()} and more")
        self.factors = factors
        self._totals = [np.zeros_like(self._sizes)]  # of each kind before epoch 0, 1, ...

    def copies(self, epoch: int) -> IntArray:
        """How often every image comes in an epoch: (N,)."""
        whole = np.floor(self.factors)
        more = copy_uniforms(self.seed, epoch, self.count) < self.factors - whole
        return whole.astype(np.int64) + more

    def _before(self, epoch: int) -> IntArray:
        while len(self._totals) <= epoch:
            copies = self.copies(len(self._totals) - 1)
            counts = np.bincount(self.kinds, weights=copies, minlength=len(self._sizes))
            self._totals.append(self._totals[-1] + counts.astype(np.int64))
        return self._totals[epoch]

    def _images_of(self, epoch: int) -> IntArray:
        copies = self.copies(epoch)
        image = np.repeat(np.arange(self.count), copies)
        names: IntArray = image + self.count * places_in_rows(image)
        return names[shuffled(self.seed, epoch, len(names))]

    def _kinds_of(self, images: IntArray) -> IntArray:
        kinds: IntArray = self.kinds[images % self.count]
        return kinds

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"factors": self.factors, "_totals": self._totals}
