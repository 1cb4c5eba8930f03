"""Which image comes when, and the random numbers of its views: pure functions of a seed.

A run is one long row of positions 0, 1, 2, ... Position p belongs to epoch
p // count, and every epoch is a permutation of all images, so batches run on
across the ends of epochs. Positions are dealt to processes and micro-batches
here; the row itself depends on neither, nor on workers or restarts.

All randomness comes from Philox, a counter-based generator: the numbers of an
epoch or of an image are looked up, not waited for.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clove_ssl.data.names import IntArray
from clove_ssl.errors import UserError

# Streams of one seed must not overlap, whatever epochs and images they are asked for.
_ORDER_STREAM, _VIEWS_STREAM, _COPIES_STREAM = 1, 2, 3


@dataclass(frozen=True)
class Draw:
    """One image of the row."""

    epoch: int
    index: int


class Draws(NamedTuple):
    """Consecutive images of the row."""

    epochs: IntArray  # (N,)
    indices: IntArray  # (N,)


class ImageOrder:
    """The order of ``count`` images over all epochs of a run."""

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError(f"an order of {count} images")
        if not 0 <= seed < 2**64:
            raise UserError(
                f"seed={seed} is outside 0 to 2**64 - 1. Try --seed {abs(seed) % 1000}."
            )
        self.count = count
        self.seed = seed
        self._permutations: dict[int, IntArray] = {}

    def at(self, position: int) -> Draw:
        """The image at one position."""
        epoch, place = divmod(position, self.count)
        return Draw(epoch, int(self._permutation(epoch)[place]))

    def draws(self, start: int, stop: int) -> Draws:
        """The images at positions ``start`` up to, not including, ``stop``."""
        epochs, places = np.divmod(np.arange(start, stop, dtype=np.int64), self.count)
        indices = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            indices[here] = self._permutation(int(epoch))[places[here]]
        return Draws(epochs, indices)

    def _permutation(self, epoch: int) -> IntArray:
        permutation = self._permutations.get(epoch)
        if permutation is None:
            permutation = shuffled(self.seed, epoch, self.count)
            if len(self._permutations) == 2:  # two, since a batch may reach into the next epoch
                self._permutations.pop(next(iter(self._permutations)))
            self._permutations[epoch] = permutation
        return permutation

    def __getstate__(self) -> dict[str, object]:
        # Orders are pickled to every worker: permutations of a million images are made again there,
        # faster than they would travel.
        return {"count": self.count, "seed": self.seed, "_permutations": {}}


@dataclass(frozen=True)
class BatchOrder:
    """Which part of the row one process handles at each optimizer step.

    A step takes the next ``batch_size`` positions. Its micro-batches follow
    each other in the row, and within one of them the processes do, so all
    processes together always see what a single one would.
    """

    order: ImageOrder
    _: KW_ONLY
    batch_size: int
    """Images of a step over all processes."""
    processes: int
    rank: int
    """Number of this process."""
    micro_batch: int
    """Images of one forward pass of one process."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.processes:
            raise ValueError(f"rank {self.rank} of {self.processes} processes")
        together = self.processes * self.micro_batch
        if together < 1 or self.batch_size < 1 or self.batch_size % together:
            raise UserError(
                f"batch_size={self.batch_size} is not a multiple of {self.processes} processes x "
                f"micro_batch={self.micro_batch}. Try --batch-size "
                f"{max(1, round(self.batch_size / max(1, together))) * max(1, together)}."
            )

    @property
    def micro_batches(self) -> int:
        """Forward passes of this process per step."""
        return self.batch_size // (self.processes * self.micro_batch)

    def positions(self, step: int, number: int) -> range:
        """The positions of micro-batch ``number`` of a step."""
        if not 0 <= number < self.micro_batches:
            raise IndexError(f"micro-batch {number} of {self.micro_batches}")
        # The row is dealt like cards: neither the number of processes nor that of micro-batches
        # changes which images a step sees.
        before = step * self.batch_size + number * self.processes * self.micro_batch
        start = before + self.rank * self.micro_batch
        return range(start, start + self.micro_batch)

    def draws(self, step: int, number: int) -> Draws:
        """The images of micro-batch ``number`` of a step."""
        positions = self.positions(step, number)
        return self.order.draws(positions.start, positions.stop)


def shuffled(seed: int, epoch: int, count: int) -> IntArray:
    """The numbers below ``count`` in the order of an epoch: (count,)."""
    # Sorted raw numbers: NumPy promises these for good, but not what permutation() gives.
    raw = _philox(seed, _ORDER_STREAM, epoch=epoch).random_raw(count)
    return np.argsort(raw, kind="stable")


def copy_uniforms(seed: int, epoch: int, count: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for every image, which decides on its copies in ``epoch``: (count,)."""
    return np.random.Generator(_philox(seed, _COPIES_STREAM, epoch=epoch)).random(count)


def view_uniforms(seed: int, epoch: int, index: int, count: int) -> npt.NDArray[np.float64]:
    """``count`` numbers in [0, 1) for the views of image ``index`` in ``epoch``: (count,)."""
    generator = np.random.Generator(_philox(seed, _VIEWS_STREAM, epoch=epoch, index=index))
    return generator.random(count)


def many_view_uniforms(seed: int, draws: Draws, count: int) -> npt.NDArray[np.float64]:
    """The numbers that ``view_uniforms`` gives for each of several images: (N, count).

    One generator is put from place to place, a quarter of the time that new ones take.
    """
    philox = _philox(seed, _VIEWS_STREAM, epoch=0)
    generator, state = np.random.Generator(philox), philox.state
    counter = state["state"]["counter"]
    numbers = np.empty((len(draws.indices), count))
    places = zip(draws.epochs.tolist(), draws.indices.tolist(), strict=True)
    for row, (epoch, index) in zip(numbers, places, strict=True):
        # Setting the state also drops what the generator had in store.
        counter[2:] = index, epoch
        philox.state = state
        generator.random(out=row)
    return numbers


def _philox(seed: int, stream: int, *, epoch: int, index: int = 0) -> np.random.Philox:
    """A generator with a place of its own: it counts in the lowest of the four words only."""
    key = np.array([seed, stream], np.uint64)
    # Two words are the place; the two that count give 2^128 steps before places could overlap.
    counter = np.array([0, 0, index, epoch], np.uint64)
    return np.random.Philox(key=key, counter=counter)
