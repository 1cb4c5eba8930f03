"""The second stage: which class a region shows and where exactly its object ends.

With K classes, class K is the background. There is one set of box offsets per class, none for the
background, in columns ``4 * class`` to ``4 * class + 3``.

Dimensions: R regions (of one image, or of all), G ground-truth boxes, D detections, C channels,
S x S cells of a pooled region, P keypoints.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import batched_nms

from clove_ssl.config.detection import BoxHeadConfig, KeypointHeadConfig, MaskHeadConfig
from clove_ssl.layers.ladder import by_rows
from clove_ssl.layers.layouts import vectors_of
from clove_ssl.tasks.rcnn.boxes import (
    FOREGROUND,
    ROI_WEIGHTS,
    UNUSED,
    Candidates,
    MatchRule,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    match_boxes,
    sample_labels,
)
from clove_ssl.tasks.rcnn.layers import Norm, NormedConv, start_for_relu, start_linear, start_small


class BoxHead(nn.Module):
    """Convolutions and fully connected layers that turn a region into a vector.

    Args:
        config: Numbers and widths of the layers.
        in_channels: Channels of a pooled region.
        side: Cells of its side.
        norm: Norm of the convolutions.
    """

    def __init__(self, config: BoxHeadConfig, in_channels: int, *, side: int, norm: Norm) -> None:
        super().__init__()
        self.convs = _convs(config.convs, in_channels, config.conv_width, norm=norm)
        channels = config.conv_width if config.convs else in_channels
        widths = [channels * side * side, *[config.fc_width] * config.fcs]
        self.fcs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.out_features = widths[-1]
        for layer in self.fcs:
            assert isinstance(layer, nn.Linear)
            start_linear(layer)

    def forward(self, regions: Tensor) -> Tensor:
        """(R, C, S, S) -> (R, out_features)."""
        vectors = vectors_of(self.convs(regions))  # (R, C * S * S)
        for layer in self.fcs:
            vectors = F.relu(layer(vectors))
        return vectors


class MaskHead(nn.Module):
    """Convolutions, an upsampling by two, and one map per class.

    Args:
        config: Number and width of the convolutions.
        in_channels: Channels of a pooled region.
        num_classes: Classes without the background.
        norm: Norm of the convolutions.
    """

    def __init__(
        self, config: MaskHeadConfig, in_channels: int, *, num_classes: int, norm: Norm
    ) -> None:
        super().__init__()
        self.convs = _convs(config.convs, in_channels, config.width, norm=norm)
        channels = config.width if config.convs else in_channels
        self.deconv = nn.ConvTranspose2d(channels, config.width, 2, stride=2)
        self.predictor = nn.Conv2d(config.width, num_classes, 1)
        start_for_relu(self.deconv)
        start_small(self.predictor, std=0.001)

    def forward(self, regions: Tensor, classes: Tensor) -> Tensor:
        """(R, C, S, S) -> logits of the classes (R,) alone: (R, 2S, 2S).

        With a thousand classes, the maps of all of them would take most of a training step.
        """
        maps = F.relu(by_rows(self.deconv, self.convs(regions)))  # (R, C, 2S, 2S)
        weights = self.predictor.weight[classes].flatten(1).to(maps.dtype)  # (R, C)
        bias = self.predictor.bias
        assert bias is not None
        return torch.einsum("rcyx,rc->ryx", maps, weights) + bias[classes, None, None]


class KeypointHead(nn.Module):
    """Convolutions, and an upsampling by four to one map per keypoint.

    Args:
        config: Number and width of the convolutions.
        in_channels: Channels of a pooled region.
        num_keypoints: Keypoints of an object.
    """

    def __init__(self, config: KeypointHeadConfig, in_channels: int, *, num_keypoints: int) -> None:
        super().__init__()
        self.convs = _convs(config.convs, in_channels, config.width, norm="none")
        channels = config.width if config.convs else in_channels
        self.deconv = nn.ConvTranspose2d(channels, num_keypoints, 4, stride=2, padding=1)
        start_for_relu(self.deconv)

    def forward(self, regions: Tensor) -> Tensor:
        """(R, C, S, S) -> logits (R, P, 4S, 4S)."""
        maps = by_rows(self.deconv, self.convs(regions))  # (R, P, 2S, 2S)
        return F.interpolate(maps, scale_factor=2, mode="bilinear", align_corners=False)


def _convs(count: int, in_channels: int, width: int, *, norm: Norm) -> nn.Sequential:
    layers = [
        NormedConv(width if number else in_channels, width, 3, norm=norm, relu=True)
        for number in range(count)
    ]
    for layer in layers:
        start_for_relu(layer)
    return nn.Sequential(*layers)


REGIONS_PER_IMAGE = 512
FOREGROUND_SHARE = 0.25
REGION_RULE = MatchRule(background_below=0.5, foreground_from=0.5)


class LabelledRegions(NamedTuple):
    """Regions of one image, or of several, and what they should become."""

    boxes: Tensor  # (..., R, 4)
    classes: Tensor  # (..., R) int64, K = background
    matched: Tensor  # (..., R) int64, rows of the ground truth; meaningless for background


class BoxLosses(NamedTuple):
    """The two terms of the loss."""

    classes: Tensor  # scalar
    offsets: Tensor  # scalar


class Detections(NamedTuple):
    """What was found in one image, the best first."""

    boxes: Tensor  # (D, 4)
    scores: Tensor  # (D,)
    classes: Tensor  # (D,) int64
    rows: Tensor  # (D,) int64, among the regions with finite numbers


class BoxPredictor(nn.Module):
    """Class scores and box offsets from the vector of a region.

    Args:
        in_features: Length of the vector.
        num_classes: Classes without the background.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(in_features, num_classes + 1)
        self.bbox_pred = nn.Linear(in_features, 4 * num_classes)
        start_small(self.cls_score, std=0.01)
        start_small(self.bbox_pred, std=0.001)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """(R, C) -> class logits (R, K+1) and offsets (R, 4K)."""
        return self.cls_score(regions), self.bbox_pred(regions)


def label_regions(
    boxes: Tensor,  # (..., R, 4) proposals, the ground truth among them
    truth: Tensor,  # (..., G, 4); rows without an area may fill up
    truth_classes: Tensor,  # (..., G)
    *,
    num_classes: int,
) -> LabelledRegions:
    """Give every region the class of its best ground truth, from an overlap of 0.5 on."""
    match = match_boxes(boxes, truth, REGION_RULE)
    background = match.label != FOREGROUND  # (..., R)
    if truth_classes.shape[-1] == 0:
        return LabelledRegions(boxes, torch.full_like(match.matched, num_classes), match.matched)
    classes = truth_classes.gather(-1, match.matched).masked_fill_(background, num_classes)
    return LabelledRegions(boxes, classes, match.matched)


def sample_regions(
    regions: LabelledRegions,
    priority: Tensor,  # (..., R)
    *,
    num_classes: int,
    count: int = REGIONS_PER_IMAGE,
    foreground_share: float = FOREGROUND_SHARE,
) -> Candidates:
    """Up to ``count`` regions of every image to train on, foreground first.

    Regions of a negative class are never taken.
    """
    label = (regions.classes != num_classes).to(torch.int8)  # (..., R)
    label.masked_fill_(regions.classes < 0, UNUSED)
    kinds = sample_labels(label, priority, count=count, foreground_share=foreground_share)
    return Candidates(*(torch.cat(column, dim=-1) for column in zip(*kinds, strict=True)))


def offset_targets(
    boxes: Tensor,  # (R, 4)
    truth: Tensor,  # (R, 4)
    classes: Tensor,  # (R,)
    *,
    num_classes: int,
) -> Tensor:
    """Offsets from regions to their objects; 0 for background: (R, 4)."""
    # Background counts as moved right. Its target may be NaN, so it must not reach the loss.
    foreground = (classes < num_classes)[:, None]  # (R, 1)
    return encode_boxes(boxes, truth, weights=ROI_WEIGHTS).where(foreground, 0)


def box_losses(
    logits: Tensor,  # (R, K+1)
    offsets: Tensor,  # (R, 4K)
    *,
    classes: Tensor,  # (R,)
    target: Tensor,  # (R, 4) of offset_targets, 0 for background
    beta: float = 0.0,
) -> BoxLosses:
    """Cross entropy and smooth L1 of the foreground's offsets, both the mean over *all* regions.

    ``beta`` is where smooth L1 turns from a parabola into a line; 0 is plain L1. A batch without
    regions has the loss 0, with a gradient.
    """
    sums = box_sums(logits, offsets, classes=classes, target=target, beta=beta)
    total = max(len(classes), 1)
    return BoxLosses(sums.classes / total, sums.offsets / total)


def box_sums(
    logits: Tensor,  # (R, K+1)
    offsets: Tensor,  # (R, 4K)
    *,
    classes: Tensor,  # (R,)
    target: Tensor,  # (R, 4)
    beta: float,
) -> BoxLosses:
    """The same as sums over the regions."""
    num_classes = logits.shape[1] - 1
    foreground = (classes < num_classes)[:, None]  # (R, 1)
    columns = classes.clamp(max=num_classes - 1)[:, None, None].expand(-1, 1, 4)  # (R, 1, 4)
    per_class = offsets.reshape(len(offsets), num_classes, 4)  # (R, K, 4)
    own = per_class.gather(1, columns)[:, 0].where(foreground, 0)  # (R, 4)
    distance = F.smooth_l1_loss(own, target, beta=beta, reduction="sum")
    return BoxLosses(F.cross_entropy(logits, classes, reduction="sum"), distance)


@torch.no_grad()
def detect(
    logits: Tensor,  # (R, K+1)
    offsets: Tensor,  # (R, 4K)
    *,
    boxes: Tensor,  # (R, 4) of one image
    image_size: tuple[int, int],
    score_above: float = 0.05,
    nms_overlap: float = 0.5,
    count: int = 100,
) -> Detections:
    """The objects of one image: at most ``count``, not twice the same object of a class.

    A region may become several objects of different classes. One with a box or score that is not
    finite is left out for all its classes, and ``rows`` counts the regions without it.
    """
    decoded = decode_boxes(boxes, offsets, weights=ROI_WEIGHTS)  # (R, 4K)
    scores = logits.to(decoded.dtype).softmax(dim=1)  # (R, K+1)
    finite = decoded.isfinite().all(dim=1) & scores.isfinite().all(dim=1)  # (R,)
    scores = scores[:, :-1]  # (R, K)
    decoded = clip_boxes(decoded.reshape(*scores.shape, 4), image_size)  # (R, K, 4)
    rows, classes = torch.nonzero((scores > score_above) & finite[:, None], as_tuple=True)
    candidates, candidate_scores = decoded[rows, classes], scores[rows, classes]
    keep = batched_nms(candidates, candidate_scores, classes, nms_overlap)[:count]
    among_finite = (finite.cumsum(0) - 1)[rows[keep]]
    return Detections(candidates[keep], candidate_scores[keep], classes[keep], among_finite)
