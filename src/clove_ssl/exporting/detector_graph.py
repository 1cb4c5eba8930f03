"""A whole detector as one graph: pixels in, boxes, scores and classes out, suppression included.

The detector itself asks the host how many regions are left at every turn, which a graph cannot.
Here all counts are fixed: rows that hold nothing are filled up, and carry a score below every
threshold. What remains is the same arithmetic on the same weights, so results agree but for the
order in which numbers are summed.

Dimensions: B images, H x W pixels of the batch, P candidates of a level, R regions of an image,
K classes, D detections of an image, M x M pixels of a mask, S x S cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.tasks.rcnn.boxes import ROI_WEIGHTS, RPN_WEIGHTS, decode_boxes, has_area
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.features import BOX_SIDE, HEAD_SIDE, C4Features
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD
from clove_ssl.tasks.rcnn.proposals.rpn import cell_corners
from clove_ssl.tasks.rcnn.regions.pooling import assign_levels, pool_regions
from clove_ssl.weights.export.graphs import Graph

Suppress = Callable[[Tensor, Tensor, float], Tensor]
"""From boxes (G, N, 4) and scores (G, N) of G groups, and an overlap, to those that stay: (G, N)
bool. Boxes of different groups do not meet; a score below 0 takes no part."""

_NOTHING = -1e9  # the logit of a row that only fills up


class DetectorGraph(Graph):
    """A detector as a function from a batch of images to a tuple of tensors.

    Args:
        detector: The detector, which is put into eval mode.
        suppress: How overlapping boxes are dropped.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, detector: Detector, suppress: Suppress) -> None:
        super().__init__()
        self.detector = detector.eval()
        self.suppress = suppress
        self.outputs = outputs = ["boxes", "scores", "classes", "counts"]
        if detector.mask_head is not None:
            outputs.append("masks")
        if detector.keypoint_head is not None:
            outputs.append("keypoint_maps")
        # Buffers, so that they travel with the graph; not persistent, as checkpoints have none of
        # them.
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).view(3, 1, 1), persistent=False)
        layout = detector.proposer.layout
        for number, sizes in enumerate(layout.sizes):
            cell = torch.tensor(cell_corners(sizes, layout.ratios))
            self.register_buffer(f"cell_{number}", cell, persistent=False)

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        """Images uint8 (B, 3, H, W) and their heights and widths (B, 2) -> the named outputs.

        A smaller image lies in the upper left corner; what is right of it and below is not read.
        """
        levels = self.detector.features(self._pixels(images, sizes))
        limits = _limits(sizes)  # (B, 1, 4)
        proposals, usable = self._propose(levels, limits)  # (B, R, 4), (B, R)
        boxes, scores, classes = self._classify(levels, proposals, usable, limits)
        counts = (scores > 0).sum(dim=1)
        return boxes, scores, classes, counts, *self._heads(levels, boxes, classes)

    def _pixels(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Normalised pixels, zero outside the images, with sides of the asked multiple."""
        height, width = images.shape[-2:]
        rows = torch.arange(height, device=images.device) < sizes[:, :1]  # (B, H)
        columns = torch.arange(width, device=images.device) < sizes[:, 1:]  # (B, W)
        inside = (rows[:, :, None] & columns[:, None, :])[:, None]  # (B, 1, H, W)
        pixels = (images.to(torch.float32) - self.mean) / self.std
        pixels = torch.where(inside, pixels, 0.0)
        multiple = self.detector.config.size_multiple
        return F.pad(pixels, (0, -width % multiple, 0, -height % multiple))

    def _propose(self, levels: Sequence[Tensor], limits: Tensor) -> tuple[Tensor, Tensor]:
        """The best regions of every image, and which of them are no fillers."""
        config = self.detector.proposer.config
        found = [self._best(number, level) for number, level in enumerate(levels)]
        boxes, logits, kept = [], [], []
        for candidates, scores in found:
            clipped = torch.minimum(candidates.clamp(min=0), limits)  # (B, P, 4)
            # Half of it, so that rounding in another program cannot bring a filler above.
            usable = (scores > _NOTHING / 2) & has_area(clipped)  # (B, P)
            clipped = torch.where(usable[..., None], clipped, 0.0)
            # Candidates come best first, so their places rank them, without ties.
            count = clipped.shape[1]
            ranks = torch.arange(count, 0, -1, device=clipped.device, dtype=clipped.dtype)
            ranks = torch.where(usable, ranks.expand_as(scores), -1.0)
            stays = self.suppress(clipped, ranks, config.nms_overlap) & usable
            boxes.append(clipped)
            logits.append(torch.where(stays, scores, _NOTHING))
            kept.append(stays)
        joined = torch.cat(logits, dim=1)
        best = joined.topk(min(config.test_after_nms, joined.shape[1]), dim=1)
        rows = best.indices[..., None].expand(-1, -1, 4)
        return torch.cat(boxes, dim=1).gather(1, rows), best.values > _NOTHING / 2

    def _best(self, number: int, level: Tensor) -> tuple[Tensor, Tensor]:
        """The best candidates of a level: boxes (B, P, 4) and logits (B, P)."""
        proposer = self.detector.proposer
        count = proposer.config.test_before_nms
        logits, offsets = proposer.head(level)
        anchors = self._anchors(number, level)
        # With fillers there are always enough, whatever the size of the image.
        logits = F.pad(logits, (0, count), value=_NOTHING)
        top = logits.topk(count, dim=1)
        offsets = F.pad(offsets, (0, 0, 0, count))
        anchors = F.pad(anchors, (0, 0, 0, count))
        moves = offsets.gather(1, top.indices[..., None].expand(-1, -1, 4))
        return decode_boxes(anchors[top.indices], moves, weights=RPN_WEIGHTS), top.values

    def _anchors(self, number: int, level: Tensor) -> Tensor:
        """Anchors of a map (B, C, h, w): (h*w*A, 4)."""
        stride = self.detector.proposer.layout.strides[number]
        cell: Tensor = getattr(self, f"cell_{number}")
        height, width = level.shape[-2:]
        y = torch.arange(height, device=level.device, dtype=torch.float32) * stride
        x = torch.arange(width, device=level.device, dtype=torch.float32) * stride
        shifts = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (h, w, 2)
        return (shifts[:, :, None, None] + cell.view(-1, 2, 2)).reshape(-1, 4)

    def _classify(
        self, levels: Sequence[Tensor], proposals: Tensor, usable: Tensor, limits: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes (B, D, 4), scores (B, D) and classes (B, D), best first; fillers have score 0."""
        read_out, regions = self.detector.config.read_out, proposals.shape[1]
        maps = self._region_maps(levels, proposals, BOX_SIDE)
        logits, offsets = self.detector.predict_boxes(maps)
        classes = logits.shape[1] - 1
        decoded = decode_boxes(proposals.flatten(0, 1), offsets, weights=ROI_WEIGHTS)
        decoded = decoded.view(-1, regions, classes, 4).transpose(1, 2)  # (B, K, R, 4)
        decoded = torch.minimum(decoded.clamp(min=0), limits[:, None])
        scores = logits.softmax(dim=1)[:, :-1].view(-1, regions, classes).transpose(1, 2)
        wanted = (scores > read_out.score_above) & usable[:, None]  # (B, K, R)
        scores = torch.where(wanted, scores, -1.0)
        stays = self.suppress(decoded.flatten(0, 1), scores.flatten(0, 1), read_out.nms_overlap)
        alive = torch.where(stays.view_as(scores), scores, -1.0).flatten(1)  # (B, K*R)
        best = alive.topk(min(read_out.detections, classes * regions), dim=1)
        rows = best.indices[..., None].expand(-1, -1, 4)
        found = best.values > 0  # (B, D)
        boxes = decoded.flatten(1, 2).gather(1, rows)
        return (
            torch.where(found[..., None], boxes, 0.0),
            torch.where(found, best.values, 0.0),
            torch.where(found, best.indices // regions, 0),
        )

    def _heads(
        self, levels: Sequence[Tensor], boxes: Tensor, classes: Tensor
    ) -> tuple[Tensor, ...]:
        """Masks in their boxes (B, D, M, M), and maps of keypoints (B, D, P, S, S)."""
        detector, count = self.detector, boxes.shape[1]
        if detector.mask_head is None and detector.keypoint_head is None:
            return ()
        maps = self._region_maps(levels, boxes, HEAD_SIDE)
        outputs = []
        if detector.mask_head is not None:
            outputs.append(detector.mask_head(maps, classes.flatten()).sigmoid())
        if detector.keypoint_head is not None:
            outputs.append(detector.keypoint_head(maps))
        return tuple(each.unflatten(0, (-1, count)) for each in outputs)

    def _region_maps(self, levels: Sequence[Tensor], boxes: Tensor, side: int) -> Tensor:
        """Regions (B, R, 4) as a head sees them: (B*R, C, S, S)."""
        features, regions = self.detector.features, _numbered(boxes)
        if isinstance(features, C4Features):
            maps: Tensor = features.region_maps(levels, regions)
            return maps
        usual = levels[:-1]
        chosen = assign_levels(regions[:, 1:], levels=len(usual))  # (B*R,)
        total: Tensor | None = None
        for number, (level, stride) in enumerate(zip(usual, features.strides, strict=False)):
            mine = (chosen == number)[:, None]
            # A region of another level has no area here, and costs next to nothing.
            own = torch.cat([regions[:, :1], torch.where(mine, regions[:, 1:], 0.0)], dim=1)
            pooled = pool_regions(level, own, stride=stride, size=side, rule=features.rule)
            pooled = torch.where(mine[..., None, None], pooled, 0.0)
            total = pooled if total is None else total + pooled
        assert total is not None
        return total


def _limits(sizes: Tensor) -> Tensor:
    """The largest x, y, x, y in images of these heights and widths (B, 2): (B, 1, 4)."""
    corner = sizes.flip(1).to(torch.float32)  # (B, 2) x, y
    return torch.cat([corner, corner], dim=1)[:, None]


def _numbered(boxes: Tensor) -> Tensor:
    """Boxes (B, R, 4) with the number of their image in front: (B*R, 5)."""
    images = torch.arange(boxes.shape[0], device=boxes.device, dtype=boxes.dtype)
    column = images[:, None, None].expand(-1, boxes.shape[1], 1)
    return torch.cat([column, boxes], dim=2).flatten(0, 1)
