"""The first stage as a module: anchors, head, losses and proposals in one place.

Dimensions: B images, N_l anchors of a level, N of all levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.config.detection import ProposalConfig
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.tasks.rcnn.boxes import image_borders
from clove_ssl.tasks.rcnn.objects import ObjectTable
from clove_ssl.tasks.rcnn.proposals.choose import (
    ProposalLimits,
    Proposals,
    ProposalTable,
    propose_table,
)
from clove_ssl.tasks.rcnn.proposals.rpn import (
    AnchorLayout,
    RPNHead,
    RPNLosses,
    label_anchors,
    rpn_losses,
    sample_anchors,
)

_REMEMBERED = 32  # sizes of images whose anchors stay; 4 MB each where images are large


class Scored(NamedTuple):
    """The anchors of all levels and what the head says about them."""

    logits: list[Tensor]  # levels x (B, N_l)
    offsets: list[Tensor]  # levels x (B, N_l, 4)
    anchors: list[Tensor]  # levels x (N_l, 4)


class RegionProposer(nn.Module):
    """The region proposal network.

    Args:
        config: Anchors and counts.
        in_channels: Channels of the maps.
        strides: Strides of the maps, the finest first; with several of them each has one size of
            anchors.
    """

    def __init__(
        self, config: ProposalConfig, in_channels: int, *, strides: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.config = config
        sizes = config.anchor_sizes
        of_level = (sizes,) if len(strides) == 1 else tuple((size,) for size in sizes)
        self.layout = AnchorLayout(strides=strides, sizes=of_level, ratios=config.anchor_ratios)
        self.head = RPNHead(in_channels, self.layout.anchors_per_cell()[0])
        self.keeps_anchors = True
        """Whether they are made once for a size; not where passes lie in the memory of graphs."""
        self._known_anchors: dict[tuple[object, torch.device], list[Tensor]] = {}

    def forward(self, levels: Sequence[Tensor]) -> Scored:
        """Maps (B, C, H, W) of all levels -> scores and offsets of their anchors."""
        outputs = [self.head(level) for level in levels]
        grids = [(level.shape[2], level.shape[3]) for level in levels]
        return Scored(
            logits=[at_least_fp32(logits) for logits, _ in outputs],
            offsets=[at_least_fp32(offsets) for _, offsets in outputs],
            anchors=self._anchors(tuple(grids), levels[0].device),
        )

    def _anchors(self, grids: tuple[tuple[int, int], ...], device: torch.device) -> list[Tensor]:
        """The anchors of maps of these sizes."""
        if not self.keeps_anchors:
            return self.layout.grids(grids, device=device)
        found = self._known_anchors.get((grids, device))
        if found is None:
            found = self.layout.grids(grids, device=device)
            if len(self._known_anchors) == _REMEMBERED:
                self._known_anchors.clear()
            self._known_anchors[grids, device] = found
        return found

    def losses(self, scored: Scored, truth: ObjectTable, *, priority: Tensor) -> RPNLosses:
        """The two losses; anchors are sampled by ``priority`` (B, N)."""
        anchors = torch.cat(scored.anchors)  # (N, 4)
        match = label_anchors(anchors, truth)  # (B, N)
        count = self.config.anchors_per_image
        return rpn_losses(
            torch.cat(scored.logits, dim=1),
            torch.cat(scored.offsets, dim=1),
            anchors=anchors,
            sampled=sample_anchors(match.label, priority, count=count),
            matched=match.matched,
            truth=truth,
            anchors_per_image=count,
        )

    def propose(self, scored: Scored, image_sizes: Sequence[tuple[int, int]]) -> list[Proposals]:
        """The best regions of every image, by the counts of training or of tests."""
        table = self.propose_table(scored, image_borders(image_sizes, scored.anchors[0]))
        return table.split(not_finite="raise" if self.training else "drop")

    def propose_table(self, scored: Scored, borders: Tensor) -> ProposalTable:
        """The same, without waiting for the device; images reach to ``borders`` (B, 4)."""
        return propose_table(
            [logits.detach() for logits in scored.logits],
            [offsets.detach() for offsets in scored.offsets],
            anchors=scored.anchors,
            borders=borders,
            limits=self.limits(),
        )

    def limits(self) -> ProposalLimits:
        """How many regions survive, in training or in tests."""
        config = self.config
        if self.training:
            return ProposalLimits(
                config.train_before_nms, config.train_after_nms, config.nms_overlap
            )
        return ProposalLimits(config.test_before_nms, config.test_after_nms, config.nms_overlap)
