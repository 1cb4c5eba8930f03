"""ReSim: contrast whole images, and windows of two views that show the same place.

Windows are slid over the first view and looked up in the second. Both are read
from a feature pyramid on top of the backbone (levels c4 and c3) and compared
there; windows that are not wholly inside the second view do not count. Whole
images are contrasted with a queue, as in MoCo.

Dimensions: B images, D channels of an image's embedding, C of the pyramid, N
windows, G groups of images, S negatives of a group.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from clove_ssl.backbones.build import STAGES, Backbone
from clove_ssl.errors import UserError
from clove_ssl.layers.collectives import gather_rows, mean_count
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.contrastive import Contrast, mean_of_counted
from clove_ssl.methods.heads import MLPHead
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.queued import QueuedMethod
from clove_ssl.methods.resim.config import ReSimConfig, WindowConfig
from clove_ssl.methods.resim.loss import averaged_cells, contrast_windows
from clove_ssl.methods.resim.networks import PartialPyramid, forward_parts_shuffled, precise_pool
from clove_ssl.methods.resim.windows import Counterparts, find_windows, sliding_windows
from clove_ssl.methods.teacher_student import BackboneEncoder, contrast_metrics
from clove_ssl.views.batch import View, ViewBatch

PYRAMID_STAGES = ("c3", "c4", "c5")


class Embedded(NamedTuple):
    """One view as an encoder sees it."""

    image: Tensor  # (B, D), not yet of unit length
    c4: Tensor  # (B, C, h, w)
    c3: Tensor  # (B, C, 2h, 2w)


class WindowPair(NamedTuple):
    """The windows of one level in both views."""

    here: Tensor  # (N, 4) in pixels of the first view, the same for all images
    there: Counterparts  # in pixels of the second view


class WindowEncoder(BackboneEncoder):
    """A backbone with a head for images and a pyramid for windows."""

    def __init__(self, backbone: Backbone, config: ReSimConfig) -> None:
        super().__init__(backbone)
        _check_stage(backbone)
        channels = {stage: backbone.channels[stage] for stage in PYRAMID_STAGES}
        self.head = MLPHead(backbone.out_channels, config.head.hidden, config.head.out)
        self.pyramid = PartialPyramid(channels, config.pyramid_channels, levels=("c4", "c3"))

    def forward(self, images: Tensor) -> Embedded:
        """Embed (B, 3, H, W) images."""
        maps = self.backbone(images)
        levels = self.pyramid(maps)
        return Embedded(self.head(maps["c5"].mean((2, 3))), levels["c4"], levels["c3"])


class ReSim(QueuedMethod[WindowEncoder]):
    """Region similarity representation learning (Xiao et al., 2021)."""

    headline = ("accuracy", "cos_positive", "cos_positive_c4")

    def __init__(self, config: ReSimConfig, backbone: Backbone) -> None:
        super().__init__(config, WindowEncoder(backbone, config))
        self.config = config
        self.queue = KeyBank(config.queue_size, config.head.out)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        first, second = batch.views
        self.before_targets(progress)
        # The teacher first, then its maps are all that stays of it.
        key = self._key(second.pixels)
        query = self.encoder(first.pixels)
        images = self.contrast_with_queue(
            query.image, key.image, self.queue, temperature=self.config.temperature
        )
        loss, metrics = images.loss.mean(), contrast_metrics(images)
        metrics["loss_global"] = loss.detach()
        for level, options, maps in (
            ("c4", self.config.c4, (query.c4, key.c4)),
            ("c3", self.config.c3, (query.c3, key.c3)),
        ):
            windows = self._windows(options, first, second)
            result = self._contrast_level(level, options, windows, *maps)
            between = self._mean_over_windows(result.loss, windows.there.inside)
            loss = loss + options.weight * between
            metrics[f"loss_{level}"] = between.detach()
            metrics |= window_metrics(result, windows.there.inside, level)
        return StepOutput(loss, metrics, {"embeddings": query.image.detach()})

    def _key(self, images: Tensor) -> Embedded:
        teacher = self.teacher.module
        return Embedded(*forward_parts_shuffled(teacher, images, **self.shuffling()))

    def _windows(self, options: WindowConfig, first: View, second: View) -> WindowPair:
        size, device = self.config.views.global_size, first.pixels.device
        windows = sliding_windows(size, options.window, options.stride, device=device)
        here, there = (view.geometry.signed_boxes("pixel").to(device) for view in (first, second))
        return WindowPair(windows, find_windows(windows, here, there, size=size))

    def _contrast_level(
        self, level: str, options: WindowConfig, windows: WindowPair, query: Tensor, key: Tensor
    ) -> Contrast:
        """Every window of one level against its counterpart and the cells of other images."""
        stride = self.backbone.strides[level]
        return contrast_windows(
            unit_vectors(precise_pool(query, windows.here[None], stride=stride)),  # (B, N, C)
            # Counterparts lie between cells, so they are pooled by area, not by sampled points: the
            # same piece of the image gives the same mean wherever the grid falls.
            unit_vectors(precise_pool(key, windows.there.boxes, stride=stride)),  # (B, N, C)
            negatives_of(key, options.negative_images),
            temperature=self.config.temperature,
        )

    def _mean_over_windows(self, losses: Tensor, inside: Tensor) -> Tensor:
        """Windows weigh the same on all processes, however many of them each one has."""
        # Gradients are averaged over processes, so a mean over own windows would weigh those more
        # that landed where there are few.
        count = mean_count(inside.sum())
        return mean_of_counted(losses, inside, count=count)


def negatives_of(key_map: Tensor, images: int) -> Tensor:
    """Cells of groups of ``images`` images, or with 0 of all processes as one group: (G, S, C)."""
    cells = averaged_cells(key_map)  # (B, S', C)
    if not images:
        return gather_rows(cells.flatten(0, 1))[None]
    images = min(images, len(cells))
    if len(cells) % images:
        fitting = next(each for each in range(images, 0, -1) if len(cells) % each == 0)
        raise UserError(
            f"Negatives of windows come from {images} images (negative_images), and the "
            f"{len(cells)} images each process handles at a time cannot be divided by that. Give "
            f"--method.c3.negative-images {fitting} or another --micro-batch."
        )
    return cells.reshape(len(cells) // images, -1, cells.shape[2])


def window_metrics(result: Contrast, inside: Tensor, level: str) -> dict[str, Tensor]:
    """What explains a level's loss: similarities of the windows that count, and their share."""
    return {
        f"cos_positive_{level}": mean_of_counted(result.positive_cosine, inside),
        f"cos_negative_{level}": mean_of_counted(result.negative_cosine, inside),
        f"windows_kept_{level}": inside.float().mean(),
    }


def _check_stage(backbone: Backbone) -> None:
    if backbone.stage != STAGES[-1]:
        raise UserError(
            f"backbone.stage is {backbone.stage}, but ReSim's pyramid needs the maps "
            f"{', '.join(PYRAMID_STAGES)}. Leave out --backbone.stage."
        )
