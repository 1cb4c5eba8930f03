"""SlotCon's losses: cells agree on prototypes, and slots recognise themselves in the other view.

A *score* is the cosine of a cell and a prototype. The softmax of the scores
assigns a cell to prototypes; the cells of a prototype, averaged, are its *slot*
in that image. A slot is *active* where its prototype wins at least one cell.

Scores are maps like any others, (B, K, h, w), but the scores of a cell lie side by side in
memory: nearly everything here goes over the prototypes of one cell.

Dimensions: B images, K prototypes, D channels, h x w cells, Q queries, N keys, M slots that are
asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.contrastive import mean_of_sum

ATTENTION_GUARD = 1e-6  # a prototype that no cell takes still has a mean, as in the released code


class Keys(NamedTuple):
    """Slots of the teacher, among which queries look for their own."""

    slots: Tensor  # (N, D) unit vectors
    barred: Tensor  # (N,) minus infinity for slots that do not count, 0 for all others


class SlotContrast(NamedTuple):
    """InfoNCE between slots, and what explains it."""

    loss: Tensor  # scalar
    cosine: Tensor  # scalar, mean between queries and their own keys, detached


def score_cells(cells: Tensor, prototypes: Tensor) -> Tensor:
    """Cosines of cells (B, D, h, w) and prototypes (K, D), all unit vectors: (B, K, h, w)."""
    with torch.autocast(cells.device.type, enabled=False):
        # One product for all images: torch would make one for each where rows are not in order.
        scores = _rows(cells).flatten(0, 1) @ prototypes.mT  # (B*h*w, K)
        by_image = scores.view(len(cells), -1, len(prototypes)).mT  # (B, K, h*w)
        return by_image.reshape(*by_image.shape[:2], *cells.shape[2:])


def _rows(maps: Tensor) -> Tensor:
    """The cells of (B, C, h, w) maps as rows, (B, h*w, C), in the same memory."""
    return maps.flatten(2).mT


def group_cells(
    student: Tensor,  # (B, K, h, w) scores of the shared part of a view
    teacher: Tensor,  # (B, K, h, w) scores of the same part of the other view
    center: Tensor,  # (K,)
    *,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.07,
) -> Tensor:
    """Cross entropy of the student's assignments against the teacher's centred ones: (B,)."""
    # Centring keeps one prototype from taking all cells, the lower temperature keeps assignments
    # from becoming even: each alone would collapse (as in DINO).
    centered = (_rows(teacher) - center) / teacher_temperature  # (B, h*w, K)
    guess = (_rows(student) / student_temperature).log_softmax(2)
    return -(centered.softmax(2) * guess).sum(2).mean(1)


def slots_of(
    projection: Tensor,  # (B, D, h, w)
    scores: Tensor,  # (B, K, h, w)
    temperature: float = 0.07,
    *,
    only: Tensor | None = None,  # (B, M) prototypes of each image, none twice
) -> Tensor:
    """Mean projection of the cells of each prototype, by their assignment: (B, K or M, D)."""
    with torch.autocast(scores.device.type, enabled=False):
        taken = (_rows(scores) / temperature).softmax(2)  # (B, h*w, K)
        if only is not None:
            # Behind the softmax, which runs over all prototypes: a slot must not depend on which
            # others are asked for.
            taken = taken.take_along_dim(only[:, None], dim=2)
        taken = taken + ATTENTION_GUARD
        share = taken / taken.sum(1, keepdim=True)
        return share.mT @ _rows(projection).to(share.dtype)


def winners(scores: Tensor) -> Tensor:
    """Which prototypes win at least one cell of an image: (B, K) bool."""
    # Without the softmax, which does not change who is largest.
    best = _rows(scores).argmax(2)  # (B, h*w)
    won = torch.zeros(scores.shape[:2], dtype=torch.bool, device=scores.device)
    return won.scatter(1, best, torch.ones_like(best, dtype=torch.bool))


def keys_of(slots: Tensor, usable: Tensor) -> Keys:
    """Keys from the teacher's slots (N, D), of which those count that are ``usable`` (N,) bool."""
    wide = at_least_fp32(slots)
    barred = torch.zeros_like(usable, dtype=wide.dtype).masked_fill(~usable, -torch.inf)
    return Keys(F.normalize(wide, dim=1), barred)


def contrast_slots(
    queries: Tensor,  # (Q, D) predictions from the student's slots
    keys: Keys,
    labels: Tensor,  # (Q,) each query's own key
    counted: Tensor,  # (Q,) bool, queries that count; others may have a key that does not
    *,
    temperature: float = 0.2,
    count: Tensor | None = None,
) -> SlotContrast:
    """InfoNCE times twice its temperature, averaged over queries that count; 0 without any.

    ``count`` replaces their number in the loss, where that is a mean over processes.
    """
    with torch.autocast(queries.device.type, enabled=False):
        sharp = F.normalize(queries.to(keys.slots.dtype), dim=1) / temperature
        # The bar is added by the product itself: a mask would be another (Q, N) tensor.
        logits = torch.addmm(keys.barred, sharp, keys.slots.mT)  # (Q, N)
        losses = F.cross_entropy(logits, labels, reduction="none")  # (Q,)
        cosines = logits.detach().gather(1, labels[:, None])[:, 0] * temperature
        # ``where``, not a product: values that do not count may be infinite, and times 0 be NaN.
        loss, cosine = (values.where(counted, 0.0).sum() for values in (losses, cosines))
        own = counted.sum()
        loss = mean_of_sum(loss, own if count is None else count)
        return SlotContrast(2 * temperature * loss, mean_of_sum(cosine, own))
