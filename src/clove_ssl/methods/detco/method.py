"""DetCo: MoCo at four depths of the backbone, on whole views and on jigsaw patches.

Every stage has a head for whole views and one for the joined patches of a view,
and every head a queue. Three contrasts are summed at each stage: whole views
with whole views, patches with patches, and patches with the whole view.

Dimensions: B images in G groups, P patches of a view, M levels, C channels of a stage, D of an
embedding, S negatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import STAGES, Backbone
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.compiled import EncoderInputs
from clove_ssl.methods.contrastive import Contrast, contrast
from clove_ssl.methods.detco.config import DetCoConfig
from clove_ssl.methods.heads import MLPHead
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.queued import QueuedMethod
from clove_ssl.methods.teacher_student import BackboneEncoder, contrast_metrics
from clove_ssl.views.batch import View, ViewBatch, joined_pixels


class Embedded(NamedTuple):
    """One view and its patches at all levels, unit vectors."""

    whole: Tensor  # (B, M, D)
    patches: Tensor  # (B, M, D)


class LevelsEncoder(BackboneEncoder):
    """A backbone with two heads at every stage.

    Patches go through the backbone group by group of images, if there are groups, and in each of
    them patch by patch.
    """

    def __init__(self, backbone: Backbone, config: DetCoConfig) -> None:
        super().__init__(backbone)
        self.groups = 1
        widths, count = [backbone.channels[stage] for stage in STAGES], config.jigsaw.patches
        out, hidden, local = config.head.out, config.head.hidden, config.local_hidden
        self.whole_heads = nn.ModuleList(MLPHead(c, hidden or c, out) for c in widths)
        self.patch_heads = nn.ModuleList(
            MLPHead(count * c, local or count * c, out) for c in widths
        )

    def forward(self, images: Tensor) -> Tensor:
        """Whole views (B, 3, H, W), or their patches (B, P, 3, h, w), -> (B, M, D)."""
        if images.ndim == 4:
            rows = [each.mean((2, 3)) for each in self.backbone(images).values()]
            return _apply(self.whole_heads, rows)
        groups = self.groups if self.training else 1
        maps = self.backbone(_patch_by_patch(images, groups)).values()
        rows = [join_patches(each, images.shape[1], groups) for each in maps]
        return _apply(self.patch_heads, rows)


class DetCo(QueuedMethod[LevelsEncoder]):
    """Unsupervised contrastive learning for object detection (Xie et al., 2021)."""

    headline = ("accuracy", "cos_positive", "accuracy_patches")

    def __init__(self, config: DetCoConfig, backbone: Backbone) -> None:
        if backbone.stage != STAGES[-1]:
            raise UserError(
                f"DetCo has a loss on all four stages, but backbone.stage is {backbone.stage}. "
                "Leave out --backbone.stage."
            )
        super().__init__(config, LevelsEncoder(backbone, config))
        self.config = config
        size, out = config.queue_size, config.head.out
        self.whole_queues = LevelQueues(len(STAGES), size, out)
        self.patch_queues = LevelQueues(len(STAGES), size, out)

    def before_compilation(self) -> None:
        """Keep the patches of a group of keys together, too."""
        super().before_compilation()
        self.teacher.module.groups = self.groups_together

    def encoder_inputs(self, batch: ViewBatch) -> EncoderInputs:
        """The first view and its patches for the student, the second's for the teacher."""
        first, second = self._split(batch)
        return EncoderInputs(
            list(first), [group for images in second for group in self.key_passes(images)]
        )

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        (first, first_patches), (second, second_patches) = self._split(batch)
        self.before_targets(progress)
        key = Embedded(self._keys(second), self._keys(second_patches))
        embedded = self.encoder(first)  # (B, M, D)
        query = Embedded(unit_vectors(embedded), unit_vectors(self.encoder(first_patches)))
        contrasts = {
            "global": self._contrast(query.whole, key.whole, self.whole_queues),
            "local": self._contrast(query.patches, key.patches, self.patch_queues),
            # Patches meet the queue of whole views here, so keys of both kinds live in one space.
            "local_to_global": self._contrast(query.patches, key.whole, self.whole_queues),
        }
        if self.training:
            self.whole_queues.collect(key.whole)
            self.patch_queues.collect(key.patches)
        return self._output(contrasts, embedded[:, -1].detach())

    def _split(self, batch: ViewBatch) -> list[tuple[Tensor, Tensor]]:
        """Of both views the pixels (B, 3, H, W) and those of its patches (B, P, 3, h, w)."""
        count = self.config.jigsaw.patches
        pairs = []
        for number in range(2):
            start = 2 + number * count
            patches = _stacked(batch.views[start : start + count])
            pairs.append((batch.views[number].pixels, patches))
        return pairs

    def _keys(self, images: Tensor) -> Tensor:
        return unit_vectors(self.keys_of(images))

    def _contrast(self, query: Tensor, key: Tensor, queues: LevelQueues) -> Contrast:
        temperature = self.config.temperature
        return contrast_levels(query, key, queues.entries(), temperature=temperature)

    def _output(self, contrasts: dict[str, Contrast], embeddings: Tensor) -> StepOutput:
        losses = {
            f"loss_{name}": weigh_levels(each.loss, self.config.level_weights)
            for name, each in contrasts.items()
        }
        # Metrics of the last stage alone, which other methods have as well.
        deepest = {name: Contrast(*(x[:, -1] for x in each)) for name, each in contrasts.items()}
        patches = contrast_metrics(deepest["local"])
        metrics = {
            **contrast_metrics(deepest["global"]),
            **{f"{name}_patches": value for name, value in patches.items()},
            **{name: loss.detach() for name, loss in losses.items()},
        }
        return StepOutput(
            torch.stack(list(losses.values())).sum(), metrics, {"embeddings": embeddings}
        )


def contrast_levels(
    query: Tensor,  # (B, M, D) unit vectors
    positive: Tensor,  # (B, M, D) unit vectors
    negatives: Sequence[Tensor],  # M x (S, D) unit vectors
    *,
    temperature: float,
) -> Contrast:
    """The contrast of every image at every level: (B, M) each."""
    if query.shape[1] != len(negatives):
        raise ValueError(f"{query.shape[1]} levels of queries, {len(negatives)} of negatives")
    levels = [
        contrast(query[:, level], positive[:, level], bank, temperature=temperature)
        for level, bank in enumerate(negatives)
    ]
    return Contrast(*(torch.stack(values, dim=1) for values in zip(*levels, strict=True)))


def weigh_levels(losses: Tensor, weights: Sequence[float]) -> Tensor:
    """Mean over images of (B, M) losses, then the weighted sum over levels."""
    # Over images first, then weighed: all levels have equally many.
    by_level = losses.mean(0)  # (M,)
    weighted = [weight * by_level[level] for level, weight in enumerate(weights)]
    return torch.stack(weighted).sum()


def join_patches(maps: Tensor, patches: int, groups: int = 1) -> Tensor:
    """Maps (G * P * B / G, C, h, w), patch after patch, as one row per image: (B, P * C)."""
    rows = maps.mean((2, 3)).view(groups, patches, -1, maps.shape[1])  # (G, P, B / G, C)
    return rows.transpose(1, 2).flatten(2).flatten(0, 1)


def _stacked(patches: tuple[View, ...]) -> Tensor:
    """P views as (B, P, 3, h, w), in the memory they have where they lie side by side."""
    together = joined_pixels(patches)  # (P * B, 3, h, w)
    return together.view(len(patches), -1, *together.shape[1:]).transpose(0, 1)


def _patch_by_patch(patches: Tensor, groups: int) -> Tensor:
    """(B, P, 3, h, w) as (G * P * B / G, 3, h, w), with the memory layout that views come in."""
    grouped = patches.view(groups, -1, *patches.shape[1:])  # (G, B / G, P, 3, h, w)
    together = grouped.transpose(1, 2).flatten(0, 2)
    # Shuffled patches are copied here, which would lose the layout that convolutions are fast in.
    interleaved = patches.stride(2) == 1
    return together.contiguous(memory_format=torch.channels_last) if interleaved else together


def _apply(heads: nn.ModuleList, rows: list[Tensor]) -> Tensor:
    """One head per level: M x (B, C) -> (B, M, D)."""
    return torch.stack([head(row) for head, row in zip(heads, rows, strict=True)], dim=1)


class LevelQueues(nn.Module):
    """M queues that are fed together."""

    def __init__(self, levels: int, size: int, dim: int) -> None:
        super().__init__()
        self.banks = nn.ModuleList(KeyBank(size, dim) for _ in range(levels))

    def entries(self) -> list[Tensor]:
        """The negatives of every level, M x (S, D)."""
        return [bank.entries for bank in self._each()]

    def collect(self, rows: Tensor) -> None:
        """Keep the keys (B, M, D) of a micro-batch until the step is done."""
        for bank, level in zip(self._each(), rows.unbind(1), strict=True):
            bank.collect(level)

    def _each(self) -> Iterator[KeyBank]:
        for bank in self.banks:
            assert isinstance(bank, KeyBank)
            yield bank
