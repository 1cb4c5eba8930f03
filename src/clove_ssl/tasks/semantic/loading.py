"""Images with label maps for semantic segmentation: scaled, cropped, mirrored, batched.

A training batch is a pure function of (seed, positions). Where a crop reaches over the border of
its image, the pixels are the mean colour and the labels :data:`IGNORE`.

Dimensions: B images, S side of a crop, H x W pixels of a test image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from clove_ssl.data.labels.pixels import IGNORE, DenseLabels
from clove_ssl.data.loading import InOrder, read_ahead
from clove_ssl.data.order import ImageOrder, view_uniforms
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading
from clove_ssl.tasks.loading.batches import LoadedBatches
from clove_ssl.tasks.loading.images import Refusal
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, resize_image
from clove_ssl.tasks.semantic.config import VOCSemanticConfig

MEAN_COLOUR = tuple(map(round, PIXEL_MEAN))


@dataclass(frozen=True)
class SemanticBatch:
    """Images of one size with their label maps; test batches hold one image."""

    images: Tensor  # (B, 3, S, S) uint8 RGB
    labels: Tensor  # (B, S, S) uint8; (B, H, W) in tests, of the original image
    keys: Tensor  # (B,) int64, numbers of the images

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> SemanticBatch:
        """The batch on ``device``."""
        return SemanticBatch(
            self.images.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            self.keys,
        )

    def pin_memory(self) -> SemanticBatch:
        """The batch in page-locked memory, as data loaders ask for."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


class _TrainingCrops(Dataset[SemanticBatch | Refusal]):
    """Batches by the positions of their images in the row of training images."""

    def __init__(self, source: DenseLabels, config: VOCSemanticConfig, order: ImageOrder) -> None:
        self._source, self._config, self._order = source, config, order

    def __getitem__(self, positions: range) -> SemanticBatch | Refusal:
        draws = self._order.draws(positions.start, positions.stop)
        crops = []
        for epoch, index in zip(draws.epochs.tolist(), draws.indices.tolist(), strict=True):
            try:
                image, labels = self._source.load(index)
            except UserError as error:
                return Refusal(str(error))
            # All four for every crop, whichever are used: an image looks the same whatever its
            # batch.
            numbers = view_uniforms(self._order.seed, epoch, index, 4)
            crops.append(_crop(image, labels, self._config, numbers.tolist()))
        images, maps = (torch.stack(column) for column in zip(*crops, strict=True))
        return SemanticBatch(images, maps, torch.from_numpy(draws.indices))


class _WholeImages(Dataset[SemanticBatch | Refusal]):
    """Test images one by one, in their own size unless they are too large."""

    def __init__(self, source: DenseLabels, config: VOCSemanticConfig) -> None:
        self._source, self._longest = source, config.test_longest

    def __getitem__(self, index: int) -> SemanticBatch | Refusal:
        try:
            image, labels = self._source.load(index)
        except UserError as error:
            return Refusal(str(error))
        return whole_image(image, labels, longest=self._longest, number=index)


def whole_image(image: Tensor, labels: Tensor, *, longest: int, number: int) -> SemanticBatch:
    """An image (3, H, W), smaller where it is too large, with the labels (H, W) of all pixels."""
    shrink = min(1.0, longest / max(labels.shape))
    shape = (max(1, round(shrink * labels.shape[0])), max(1, round(shrink * labels.shape[1])))
    return SemanticBatch(resized(image, shape)[None], labels[None], torch.tensor([number]))


def load_crops(
    source: DenseLabels, config: VOCSemanticConfig, reading: Reading
) -> LoadedBatches[SemanticBatch]:
    """All training micro-batches of this process."""
    order = ImageOrder(len(source), reading.seed)
    batches = reading.batch_order(order)
    steps = range(reading.start_step, reading.stop_step)
    positions = InOrder(batches.positions, steps, micro_batches=batches.micro_batches)
    return _load(_TrainingCrops(source, config, order), positions, reading)


def load_whole_images(
    source: DenseLabels, config: VOCSemanticConfig, reading: Reading
) -> LoadedBatches[SemanticBatch]:
    """Every image once, dealt to the processes in turn."""
    numbers = range(reading.rank, len(source), reading.processes)
    return _load(_WholeImages(source, config), numbers, reading)


def _load(
    images: Dataset[SemanticBatch | Refusal], places: Iterable[object], reading: Reading
) -> LoadedBatches[SemanticBatch]:
    loader = read_ahead(
        images,
        places,
        workers=reading.workers,
        prefetch=reading.prefetch,
        pin_memory=reading.pin_memory,
    )
    return LoadedBatches(loader)


def _crop(
    image: Tensor, labels: Tensor, config: VOCSemanticConfig, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """A random square (3, S, S) and its labels (S, S); four numbers in [0, 1) decide."""
    low, high = config.scales
    scale = low + (high - low) * numbers[0]
    height, width = (max(1, round(scale * length)) for length in labels.shape)
    image, labels = resized(image, (height, width)), resized_labels(labels, (height, width))
    if numbers[3] < 0.5:
        image, labels = image.flip(-1), labels.flip(-1)
    side = config.crop
    top, left = (
        _offset(length, side, at) for length, at in ((height, numbers[1]), (width, numbers[2]))
    )
    crop = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(3, 1, 1).repeat(1, side, side)
    crop_labels = torch.full((side, side), IGNORE, dtype=torch.uint8)
    rows, columns = min(side, height), min(side, width)
    crop[:, :rows, :columns] = image[:, top : top + rows, left : left + columns]
    crop_labels[:rows, :columns] = labels[top : top + rows, left : left + columns]
    return crop, crop_labels


def _offset(length: int, side: int, number: float) -> int:
    """Where a crop begins; at 0 where the image is smaller than the crop."""
    return int(number * (max(0, length - side) + 1))


def resized(image: Tensor, shape: tuple[int, int]) -> Tensor:
    """An image (3, H, W) in another size."""
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    return torch.from_numpy(resize_image(pixels, shape).copy()).permute(2, 0, 1)


def resized_labels(labels: Tensor, shape: tuple[int, int]) -> Tensor:
    """Nearest neighbours: a mixture of two classes is no class."""
    picture = Image.fromarray(labels.numpy())
    resized = picture.resize((shape[1], shape[0]), Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(resized))
