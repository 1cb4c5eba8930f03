"""Shuffled batch norm: keys are normalised among other images than their queries.

Statistics of a batch tell which images were in it. If a query and its key are
normalised in the same company, the network can recognise the key by that
company and need not look at the image. So keys are computed in groups whose
members are drawn from the whole batch, over all processes, and put back.

The draw follows from the step alone: all processes agree without talking, and
a resumed run repeats it. With batch norm synchronized between processes there
is only one company, and shuffling between processes changes nothing.

Dimensions: B images of a process, R = B times the processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.layers.collectives import gather_rows, processes, rank
from clove_ssl.layers.transfers import send_tensor


class BatchOrders:
    """The permutations of a step, on the device, at the same place in every step.

    So a captured step, which knows places only, finds those of its own step there.
    """

    def __init__(self) -> None:
        self._step = 0
        self._orders: dict[tuple[int, torch.device], Tensor] = {}

    def begin(self, step: int) -> None:
        """Draw anew what earlier steps have asked for."""
        self._step = step
        for (images, device), order in self._orders.items():
            # Copied into the old tensor: a captured step reads this address.
            order.copy_(send_tensor(batch_order(images, step), device))

    def of(self, images: int, device: torch.device) -> Tensor:
        """A permutation of so many images, (R,)."""
        if (images, device) not in self._orders:
            self._orders[images, device] = send_tensor(batch_order(images, self._step), device)
        return self._orders[images, device]


class Shuffling(TypedDict):
    """The options of :func:`forward_shuffled`, to hand on."""

    orders: BatchOrders
    groups: int
    together: NotRequired[bool]


@torch.no_grad()
def forward_shuffled(
    network: Callable[[Tensor], Tensor],
    images: Tensor,
    *,
    orders: BatchOrders,
    groups: int,
    together: bool = False,
) -> Tensor:
    """``network(images)`` in groups of mixed membership: (B, ...) -> (B, ...), without a graph.

    Args:
        network: Images to rows or maps, one per image.
        images: The share of this process; all processes have equally many.
        orders: Of the step, which decides who meets whom.
        groups: Groups over all processes; each process computes at least one. 0 for one plain pass.
        together: All groups of this process go through ``network`` at once, one after the other
            along the batch; it tells them apart.
    """
    if not groups:
        return network(images)
    share = groups_here(groups)
    if len(images) % share:
        raise UserError(
            f"method.shuffle_groups={groups} makes {share} groups of the {len(images)} images each "
            "process handles at a time, and they do not divide. Give a divisor such as "
            f"--method.shuffle-groups {processes() * _fitting(share, len(images))}, or 0 for none."
        )
    everything = gather_rows(images)  # (R, ...)
    order = orders.of(len(everything), images.device)  # (R,)
    # Every process computes other images than its own, then gives them back below.
    mine = everything[order.chunk(processes())[rank()]]  # (B, ...)
    try:
        computed = torch.cat([network(part) for part in mine.chunk(1 if together else share)])
    except ValueError:  # torch's word for a batch norm that sees a single value
        if len(images) > share:
            raise
        raise _too_small(len(images), processes() * max(1, share // 2)) from None
    # argsort of a permutation is its inverse.
    return gather_rows(computed)[order.argsort().chunk(processes())[rank()]]


def groups_here(groups: int) -> int:
    """How many of all groups each process computes."""
    return -(-groups // processes())


def _too_small(images: int, fewer: int) -> UserError:
    return UserError(
        f"method.shuffle_groups leaves one of {images} images to a group, too few for batch norm. "
        f"Give fewer groups: --method.shuffle-groups {fewer}, or a larger batch."
    )


def batch_order(images: int, step: int) -> Tensor:
    """A permutation of ``images`` that follows from ``step``, the same on every machine."""
    # On the CPU, whose generator gives the same numbers everywhere; that of a GPU need not.
    return torch.randperm(images, generator=torch.Generator().manual_seed(step))


def _fitting(groups: int, images: int) -> int:
    """The largest number of groups up to ``groups`` that divides ``images``."""
    return next(count for count in range(groups, 0, -1) if images % count == 0)
