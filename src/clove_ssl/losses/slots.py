"""SlotCon's losses: cells agree on prototypes, and slots recognise themselves in the other view.

A *score* is the cosine of a cell and a prototype. The softmax of the scores
assigns a cell to prototypes; the cells of a prototype, averaged, are its *slot*
in that image. A slot is *active* where its prototype wins at least one cell.

Dimensions: B images, K prototypes, D channels, h x w cells, Q queries, N keys,
M = min(K, h * w) slots of an image that can be active at most.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ATTENTION_GUARD = 1e-6  # a prototype that no cell takes still has a mean, as in the released code


class ActiveSlots(NamedTuple):
    """The active slots of every image, in front of unused places up to M."""

    slots: Tensor  # (B, M, D)
    usable: Tensor  # (B, M) bool
    position: Tensor  # (B, K) where an active slot stands among the M


class SlotContrast(NamedTuple):
    """InfoNCE between slots, and what explains it."""

    loss: Tensor  # scalar
    cosine: Tensor  # scalar, mean between queries and their own keys, detached


def score_cells(projection: Tensor, prototypes: Tensor) -> Tensor:
    """Cosines of cells (B, D, h, w) and prototypes (K, D): (B, K, h, w), in fp32 or better."""
    wide = torch.promote_types(projection.dtype, torch.float32)
    with torch.autocast(projection.device.type, enabled=False):
        cells = F.normalize(projection.to(wide), dim=1)
        return torch.einsum("bdhw,kd->bkhw", cells, F.normalize(prototypes.to(wide), dim=1))


def group_cells(
    student: Tensor,  # (B, K, h, w) scores of the shared part of a view
    teacher: Tensor,  # (B, K, h, w) scores of the same part of the other view
    center: Tensor,  # (K,)
    *,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.07,
) -> Tensor:
    """Cross entropy of the student's assignments against the teacher's centred ones: (B,)."""
    centered = (teacher - center[:, None, None]) / teacher_temperature
    guess = (student / student_temperature).log_softmax(1)
    return -(centered.softmax(1) * guess).sum(1).mean((1, 2))


def slots_of(projection: Tensor, scores: Tensor, temperature: float = 0.07) -> Tensor:
    """Mean projection of the cells of each prototype, by their assignment: (B, K, D)."""
    with torch.autocast(scores.device.type, enabled=False):
        taken = (scores / temperature).softmax(1).flatten(2) + ATTENTION_GUARD  # (B, K, h*w)
        share = taken / taken.sum(-1, keepdim=True)
        return share @ projection.to(share.dtype).flatten(2).mT


def winners(scores: Tensor) -> Tensor:
    """Which prototypes win at least one cell of an image: (B, K) bool."""
    best = scores.argmax(1).flatten(1)  # (B, h*w)
    won = torch.zeros(scores.shape[:2], dtype=torch.bool, device=scores.device)
    return won.scatter(1, best, torch.ones_like(best, dtype=torch.bool))


def collect_active(slots: Tensor, active: Tensor, limit: int) -> ActiveSlots:
    """Move the active of (B, K, D) slots to the front of at most ``limit`` places.

    The number of places is fixed, so that processes can exchange them without
    first asking each other how many there are.
    """
    places = min(limit, slots.shape[1])
    order = active.int().sort(dim=1, descending=True, stable=True).indices[:, :places]  # (B, M)
    return ActiveSlots(
        slots=slots.take_along_dim(order[:, :, None], dim=1),
        usable=active.take_along_dim(order, dim=1),
        position=active.cumsum(1) - 1,
    )


def contrast_slots(
    queries: Tensor,  # (Q, D) predictions from the student's slots
    keys: Tensor,  # (N, D) the teacher's slots
    usable: Tensor,  # (N,) bool, keys that count
    labels: Tensor,  # (Q,) each query's own key
    *,
    temperature: float = 0.2,
) -> SlotContrast:
    """InfoNCE times twice its temperature, averaged over the queries; 0 without a query."""
    with torch.autocast(queries.device.type, enabled=False):
        wide = torch.promote_types(queries.dtype, torch.float32)
        cosines = F.normalize(queries.to(wide), dim=1) @ F.normalize(keys.to(wide), dim=1).mT
        logits = (cosines / temperature).masked_fill(~usable, -torch.inf)  # (Q, N)
        loss = F.cross_entropy(logits, labels, reduction="sum") / max(1, len(queries))
        own = cosines.detach().take_along_dim(labels[:, None], dim=1)
        return SlotContrast(2 * temperature * loss, own.sum() / max(1, len(queries)))
