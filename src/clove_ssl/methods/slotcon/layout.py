"""Where slots lie in memory: tensors of fixed sizes for slots whose number changes in every step.

How many slots are active is known on the device alone. Shapes that followed it would make the host
wait, be compiled anew in every step, and force processes to ask each other before they exchange
slots. So there is room for as many as there can be, active ones stand in front, and masks say
which places count.

Dimensions: B images, P = 2 * B views, K prototypes, D channels; M slots of a view can be active at
most, R = B * M of a batch; Q rows with room for common slots; N keys come from all processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.layers.collectives import gather_rows, rank
from clove_ssl.layers.transfers import HostCopy
from clove_ssl.methods.compiled import mark_any_length
from clove_ssl.methods.slotcon.config import SlotRoom
from clove_ssl.methods.slotcon.loss import Keys, keys_of

_ROOM_STEP = 512  # the number of common slots changes by less than that in most steps


class SlotPlaces(NamedTuple):
    """Which slots are active where, in both directions.

    There is room for all slots that are active in the teacher's view.
    """

    won: Tensor  # (P, K) bool, slots that are active in the student's view
    prototypes: Tensor  # (P, M) of the slots that have room
    taken: Tensor  # (2, R) bool, room taken by slots that are active in the teacher's view
    common_first: Tensor  # (2, R) places, those of common slots in front
    common_count: Tensor  # (2,) number of common slots


def place_slots(won: Tensor, active: Tensor, limit: int) -> SlotPlaces:
    """Room for the slots that are active in the teacher's views, at most ``limit`` of each.

    Both (P, K) bool: ``won`` says which are active in the student's views, ``active`` in the
    teacher's.
    """
    prototypes, taken = active_first(active, limit)  # (P, M)
    common = by_direction(taken & won.take_along_dim(prototypes, dim=1))  # (2, R)
    return SlotPlaces(won, prototypes, by_direction(taken), true_first(common), common.sum(1))


def active_first(active: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """The active of (P, K) slots in front, in order, at most ``limit``: (P, M), and which they are.

    Their number is fixed, so that processes can exchange slots without
    first asking each other how many there are.
    """
    order = true_first(active)[:, : min(limit, active.shape[1])]
    return order, active.take_along_dim(order, dim=1)


def true_first(mask: Tensor) -> Tensor:
    """All places along the last axis of a mask, the true ones in front, in order."""
    # Stable, so that slots stay in the order of their prototypes; ``nonzero`` would be shorter, but
    # the host would wait for the number of rows.
    return mask.int().sort(dim=-1, descending=True, stable=True).indices


def by_direction(values: Tensor) -> Tensor:
    """What belongs to the slots of each view, (P, M, ...), as (2, R, ...)."""
    return values.reshape(2, -1, *values.shape[2:])


class CommonSlots:
    """The slots that student and teacher have in common.

    Unless there is room for all, their number travels to the host as soon as it is known, and is
    not waited for until :meth:`places` needs it: work that is queued in between keeps the device
    busy.
    """

    def __init__(self, slots: SlotPlaces, room: SlotRoom) -> None:
        self._first = slots.common_first
        self._counts = HostCopy(slots.common_count) if room == "common" else None

    def places(self) -> Tensor:
        """Where they lie in each direction, (Q, 2), and behind them some that are not common."""
        if self._counts is None:
            return self._first.mT  # (R, 2)
        room = room_for(max(self._counts.read()))
        return mark_any_length(self._first.mT[:room])


def room_for(slots: int) -> int:
    """Rows for so many common slots, and some more.

    Products of a shape that did not occur before take the host longer than the device.
    """
    return -(-max(slots, 1) // _ROOM_STEP) * _ROOM_STEP


def gather_keys(slots: Tensor, taken: Tensor) -> tuple[list[Keys], int]:
    """The teacher's slots of both directions from all processes; where this one's begin.

    Of (2, R, D) slots those are keys whose room is ``taken``, (2, R) bool.
    """
    keys = []
    for mine, used in zip(slots, taken, strict=True):
        # Bytes, since not every backend sends booleans.
        usable = gather_rows(used.to(torch.uint8)).bool()  # (N,)
        keys.append(keys_of(gather_rows(mine), usable))
    return keys, rank() * slots.shape[1]
