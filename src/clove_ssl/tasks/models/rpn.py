"""The region proposal network: head, targets and losses. Its output is in ``proposals``.

Levels are flattened in the order of their anchors (row, column, anchor) and joined from the finest
to the coarsest, so that anchors, scores and offsets of an image are rows of the same number.

Dimensions: B images, A anchors per location, H x W cells, N anchors over all levels,
G ground-truth boxes of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.tasks.models.boxes import RPN_WEIGHTS, encode_boxes
from clove_ssl.tasks.models.matching import (
    BACKGROUND,
    FOREGROUND,
    UNUSED,
    Match,
    Order,
    match_boxes,
    sample_labels,
)

ANCHORS_PER_IMAGE = 256


class RPNLosses(NamedTuple):
    """The two terms of the loss."""

    objectness: Tensor  # scalar
    offsets: Tensor  # scalar


class RPNHead(nn.Module):
    """Scores and offsets of the anchors of every location, shared by all levels.

    Args:
        in_channels: Channels of the maps, kept by the hidden convolution.
        anchors: Anchors per location.
    """

    def __init__(self, in_channels: int, anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, 3, padding=1)
        self.objectness_logits = nn.Conv2d(in_channels, anchors, 1)
        self.anchor_deltas = nn.Conv2d(in_channels, 4 * anchors, 1)
        for layer in (self.conv, self.objectness_logits, self.anchor_deltas):
            nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> logits (B, H*W*A) and offsets (B, H*W*A, 4)."""
        hidden = F.relu(self.conv(feature_map))
        logits = flatten_logits(self.objectness_logits(hidden))
        return logits, flatten_offsets(self.anchor_deltas(hidden))


def flatten_logits(logits: Tensor) -> Tensor:
    """(B, A, H, W) -> (B, H*W*A)."""
    return logits.permute(0, 2, 3, 1).flatten(1)


def flatten_offsets(offsets: Tensor) -> Tensor:
    """(B, 4A, H, W), four channels per anchor -> (B, H*W*A, 4)."""
    images, channels, height, width = offsets.shape
    per_anchor = offsets.reshape(images, channels // 4, 4, height, width)
    return per_anchor.permute(0, 3, 4, 1, 2).flatten(1, 3)


def label_anchors(anchors: Tensor, truth: Tensor) -> Match:
    """Match the anchors (N, 4) of an image with its ground truth (G, 4).

    Anchors that reach over the border of the image take part like all others.
    """
    return match_boxes(anchors, truth, background_below=0.3, foreground_from=0.7, rescue=True)


def sample_anchors(label: Tensor, *, order: Order, count: int = ANCHORS_PER_IMAGE) -> Tensor:
    """Keep the labels (N,) of up to ``count`` anchors, half of them foreground; others -1."""
    foreground, background = sample_labels(label, count=count, foreground_share=0.5, order=order)
    sampled = torch.full_like(label, UNUSED)
    sampled[foreground] = FOREGROUND
    sampled[background] = BACKGROUND
    return sampled


def rpn_losses(
    logits: Tensor,  # (B, N)
    offsets: Tensor,  # (B, N, 4)
    *,
    anchors: Tensor,  # (N, 4)
    labels: Sequence[Tensor],  # B x (N,)
    matched: Sequence[Tensor],  # B x (N,) rows of the ground truth
    truth: Sequence[Tensor],  # B x (G_b, 4)
    anchors_per_image: int = ANCHORS_PER_IMAGE,
) -> RPNLosses:
    """Cross entropy of the used anchors and L1 distance of the foreground's offsets.

    Both are sums over ``anchors_per_image`` times B, however many anchors were sampled.
    """
    label = torch.stack(list(labels))  # (B, N)
    used, foreground = label >= 0, label == FOREGROUND  # (B, N)
    targets = torch.cat(
        [
            encode_boxes(anchors[here], boxes[index[here]], weights=RPN_WEIGHTS)
            for here, index, boxes in zip(foreground, matched, truth, strict=True)
        ]
    )  # (number of foreground anchors, 4)
    objectness = F.binary_cross_entropy_with_logits(
        logits[used], label[used].to(logits.dtype), reduction="sum"
    )
    distance = F.l1_loss(offsets[foreground], targets, reduction="sum")
    total = anchors_per_image * len(label)
    return RPNLosses(objectness / total, distance / total)
