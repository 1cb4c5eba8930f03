"""Random choices of a training step that follow from the seed, the step and the image alone.

A choice is made by priorities: every candidate gets a number, and the lowest numbers are taken.
The numbers of an image are a SplitMix64 sequence whose start comes from Philox, so that they are
looked up rather than drawn from a common generator: the number of processes, the order within a
batch, the device and restarts cannot change them.

Dimensions: B images, N candidates of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

Stage = Literal["anchors", "regions"]

STAGES: tuple[Stage, ...] = ("anchors", "regions")

# Streams of one seed must not overlap with those of ``data.order``, which are 1 to 3.
_STREAMS: dict[Stage, int] = {"anchors": 11, "regions": 12}


class Priorities(Protocol):
    """Numbers that say which candidates come first.

    The host looks up where the numbers of an image start, and the device follows them.
    """

    def starts(self, keys: Sequence[int], *, step: int, stage: Stage) -> list[int]:
        """Where the numbers of the images ``keys`` start: B whole numbers of 64 bits."""

    def numbers(self, starts: Tensor, count: int) -> Tensor:
        """Priorities of ``count`` candidates of images with these starts (B,): (B, N) int64."""


@dataclass(frozen=True)
class RandomPriorities:
    """Priorities that look random."""

    seed: int

    def starts(self, keys: Sequence[int], *, step: int, stage: Stage) -> list[int]:
        """Where the numbers of the images ``keys`` start."""
        # One generator, moved from image to image: making one takes eight times as long.
        words = np.array([self.seed, _STREAMS[stage]], np.uint64)
        generator = np.random.Philox(key=words, counter=np.array([0, 0, 0, step], np.uint64))
        return _first_numbers(generator, keys)

    def numbers(self, starts: Tensor, count: int) -> Tensor:
        """Priorities of ``count`` candidates of images with these starts (B,): (B, N) int64."""
        place = torch.arange(1, count + 1, device=starts.device)  # (N,)
        # The step of SplitMix64, an odd number near 2^64 divided by the golden ratio; the sign is
        # cut off because lower numbers come first.
        return _mix(starts[:, None] + place * _signed(0x9E3779B97F4A7C15)) & 0x7FFFFFFFFFFFFFFF


def _first_numbers(generator: np.random.Philox, keys: Sequence[int]) -> list[int]:
    """The first number of a fresh generator behind each key, which its counter gets."""
    place, numbers = generator.state, []
    for key in keys:
        place["state"]["counter"][2] = key
        generator.state = place  # copied, together with a buffer that holds nothing yet
        numbers.append(_signed(int(generator.random_raw())))
    return numbers


def _mix(state: Tensor) -> Tensor:
    """The output function of SplitMix64; int64 multiplication wraps around like that of uint64."""
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, where torch would copy the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned word."""
    return word - (1 << 64) if word >= 1 << 63 else word
