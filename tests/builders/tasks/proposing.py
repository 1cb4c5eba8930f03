"""Regions of images with the least that a test wants to know of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from clove_ssl.tasks.labels.polygons import PackedOutlines, begin_masks
from clove_ssl.tasks.rcnn.boxes import image_borders
from clove_ssl.tasks.rcnn.proposals.choose import ProposalLimits, Proposals, propose_table


def propose(
    logits: Sequence[Tensor],  # levels x (B, N_l)
    offsets: Sequence[Tensor],  # levels x (B, N_l, 4)
    *,
    anchors: Sequence[Tensor],  # levels x (N_l, 4)
    image_sizes: Sequence[tuple[int, int]],
    limits: ProposalLimits,
    not_finite: Literal["raise", "drop"],
) -> list[Proposals]:
    """The best regions of every image, best first."""
    borders = image_borders(image_sizes, anchors[0])
    table = propose_table(logits, offsets, anchors=anchors, borders=borders, limits=limits)
    return table.split(not_finite=not_finite)


def masks_in_boxes(
    outlines: PackedOutlines,
    objects: Tensor,  # (R,) which object a region shows
    boxes: Tensor,  # (R, 4)
    *,
    size: int,
) -> Tensor:
    """The part of an object inside a box, stretched to ``size x size``: (R, size, size) bool."""
    totals = outlines.object_sizes[:, objects].sum(dim=1).tolist()
    return begin_masks(outlines, objects, boxes, size=size, totals=totals).read()
