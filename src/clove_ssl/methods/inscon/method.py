"""InsCon, after the abstract: MoCo on images of several photos, with pull and push of cells.

Only the abstract of the paper is known here; what it leaves open is our choice
and listed in docs/methods/inscon.md. Photos of the batch are laid out in one
image. Each photo's region of the student's map is averaged and contrasted with
the same photo's region in the teacher's map of the other view, against a queue;
each cell has to find the cells that show its place among all of that map.

Dimensions: B photos, P of them in an image, M = B / P images, C channels of the backbone, D of an
embedding, L cells of a photo.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.errors import UserError
from clove_ssl.layers.collectives import mean_count
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.compiled import EncoderInputs
from clove_ssl.methods.contrastive import mean_of_counted
from clove_ssl.methods.densecl.method import DenseEncoder, DenseTerm, Embedded
from clove_ssl.methods.inscon.config import InsConConfig
from clove_ssl.methods.inscon.loss import (
    PullAndPush,
    matches_in_images,
    pull_and_push,
)
from clove_ssl.methods.inscon.mosaic import assemble, split_regions
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.queued import QueuedMethod
from clove_ssl.methods.teacher_student import contrast_metrics
from clove_ssl.methods.two_views import match_both_ways
from clove_ssl.views.batch import ViewBatch


class InsCon(QueuedMethod[DenseEncoder]):
    """Instance consistency on multi-instance images (Yang et al., 2022), after the abstract."""

    headline = ("accuracy", "cos_positive", "cos_positive_dense")

    def __init__(self, config: InsConConfig, backbone: Backbone) -> None:
        _check_tile(config.mosaic.tile, backbone.strides[backbone.stage])
        super().__init__(config, DenseEncoder(backbone, config.head, config.dense_head))
        self.config = config
        self.layout = (config.mosaic.rows, config.mosaic.columns)
        self.queue = KeyBank(config.queue_size, config.head.out)

    def encoder_inputs(self, batch: ViewBatch) -> EncoderInputs:
        """Images of first views for the student, groups of those of second views for the teacher.

        The teacher's are those of a step in which nothing is shifted.
        """
        first, second = (self.images_of(view.pixels) for view in batch.views)
        return EncoderInputs([first], self.key_passes(second))

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        first, second = batch.views
        self.before_targets(progress)
        key = self._key(second.pixels, progress)
        query = self._query(first.pixels)
        photos = self.contrast_with_queue(
            query.image, key.image, self.queue, temperature=self.config.temperature
        )
        cells = self.compare_cells(query, key, batch)
        share, between_photos = self.config.dense_weight, photos.loss.mean()
        metrics = {
            **cells.metrics,
            **contrast_metrics(photos),
            "loss_global": between_photos.detach(),
            "loss_dense": cells.loss.detach(),
        }
        loss = (1 - share) * between_photos + share * cells.loss
        return StepOutput(loss, metrics, {"embeddings": query.image.detach()})

    def images_of(self, pixels: Tensor, shift: int = 0) -> Tensor:
        """Views of photos (B, 3, H, W) as images of several: (M, 3, rows * t, columns * t)."""
        return assemble(pixels, self.layout, self.config.mosaic.tile, shift=shift)

    def shift_at(self, progress: Progress) -> int:
        """By how many places the teacher's photos lie elsewhere than the student's."""
        mosaic = self.config.mosaic
        return progress.step % mosaic.photos if mosaic.places == "shifted" else 0

    def step_kind(self, progress: Progress) -> int:
        """Where the teacher's photos lie."""
        return self.shift_at(progress)

    def compare_cells(self, query: Embedded, key: Embedded, batch: ViewBatch) -> DenseTerm:
        """Pull cells that show the same place together, and push all others of the image away."""
        photos = self.config.mosaic.photos
        grid = (query.feature_map.shape[2], query.feature_map.shape[3])
        matches = match_both_ways(batch, grid, self.config.matching)[: len(query.cells)]
        result = pull_and_push(
            _by_image(query.cells, photos),
            _by_image(key.cells, photos),
            matches_in_images(matches, photos),
            temperature=self.config.dense_temperature,
        )
        # Cells weigh the same on all processes, however many with a match each one has.
        count = mean_count(result.counted.sum())
        loss = mean_of_counted(result.loss, result.counted, count=count)
        return DenseTerm(loss, {**cell_metrics(result), **match_metrics(matches)})

    def _query(self, pixels: Tensor) -> Embedded:
        maps = self.encoder(self.images_of(pixels))  # (M, C, rows * h, columns * w)
        return self.encoder.embed(split_regions(maps, self.layout))

    @torch.no_grad()
    def _key(self, pixels: Tensor, progress: Progress) -> Embedded:
        shift = self.shift_at(progress)
        maps = self.keys_of(self.images_of(pixels, shift))
        return self.teacher.module.embed(split_regions(maps, self.layout, shift=shift))


def cell_metrics(result: PullAndPush) -> dict[str, Tensor]:
    """What explains the loss between cells: similarities, and how often a match is found."""
    return {
        "cos_positive_dense": mean_of_counted(result.positive_cosine, result.counted),
        "cos_negative_dense": result.negative_cosine.mean(),
        "accuracy_dense": mean_of_counted(result.found.to(result.loss.dtype), result.counted),
    }


def match_metrics(matches: Tensor) -> dict[str, Tensor]:
    """How many cells of photos match, of (B, L, L) matches."""
    pairs = matches.sum((1, 2))  # (B,)
    return {
        "positives_per_image_global": pairs.float().mean(),
        "images_without_match": (pairs == 0).float().mean(),
        "cells_without_match": (~matches.any(2)).float().mean(),
    }


def _by_image(cells: Tensor, photos: int) -> Tensor:
    """Cells of photos (B, L, D) as unit vectors of images (M, P * L, D)."""
    return unit_vectors(cells).reshape(-1, photos * cells.shape[1], cells.shape[2])


def _check_tile(tile: int, stride: int) -> None:
    if tile % stride:
        fitting = max(stride, tile - tile % stride)
        raise UserError(
            f"method.mosaic.tile={tile} is no multiple of the backbone's stride {stride}: some "
            f"cells would show two photos. Give --method.mosaic.tile {fitting}."
        )
