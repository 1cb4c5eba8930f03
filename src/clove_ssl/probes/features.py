"""Images of one size and their frozen features, alike for trained and for random backbones.

Whatever its shape, an image is scaled to a square, as the labels of its pixels are; so every probe
and every backbone sees the same pixels.

A random network's batch norm has seen no image, so its running statistics (mean
0, variance 1) fit nothing, while a trained network's fit its training images.
Neither is the network's merit; so before anything is measured the statistics
of *every* backbone are taken afresh from the probe's own training images.

On a GPU that has bf16 the network runs in it; features are fp32 from there on.

Dimensions: N images of S x S pixels, B of them in a batch, D channels, h x w cells.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.backbones.build import Backbone
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.labels.pixels import DenseLabels
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import SynchronizedBatchNorm2d, remade, replace_norms
from clove_ssl.layers.view_norm import NormByView
from clove_ssl.training.numerics import without_trials
from clove_ssl.views.batch import normalize

BATCH = 64
_MOST_THREADS = 4  # more only take Python's lock from each other: 16 are slower than one

T = TypeVar("T")


@dataclass(frozen=True)
class Pictures:
    """Images and label maps of one size."""

    images: Tensor  # (N, 3, S, S) uint8
    labels: Tensor  # (N, S, S) uint8
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and label maps, B at a time."""
        images, labels = torch.split(self.images, BATCH), torch.split(self.labels, BATCH)
        return zip(images, labels, strict=True)


def spread(count: int, limit: int) -> list[int]:
    """At most ``limit`` of the numbers below ``count``, evenly spread over them."""
    return [index * count // min(count, limit) for index in range(min(count, limit))]


def in_threads(make: Callable[[int], T], indices: Sequence[int]) -> list[T]:
    """``make`` of every index, in order; decoding and scaling leave Python's lock alone.

    Each works on one core: threads that bring threads of their own get in each other's way.
    """
    before = torch.get_num_threads()
    workers = min(_MOST_THREADS, os.cpu_count() or 1)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(make, indices))
    finally:
        torch.set_num_threads(before)  # later threads take the number that was set last


def load_pictures(labels: DenseLabels, *, size: int, limit: int) -> Pictures:
    """At most ``limit`` images with their labels, spread evenly over the set."""

    def one(index: int) -> tuple[Tensor, Tensor]:
        image, numbers = labels.load(index)
        return scale(image, size), scale_labels(numbers, size)

    images, maps = zip(*in_threads(one, spread(len(labels), limit)), strict=True)
    return Pictures(torch.stack(images), torch.stack(maps), tuple(labels.class_names))


def load_images(source: ImageSource, indices: Sequence[int], *, size: int) -> Tensor:
    """Some images of a source, (N, 3, S, S) uint8."""
    return torch.stack(in_threads(lambda index: scale(read_image(source, index), size), [*indices]))


def read_image(source: ImageSource, index: int) -> Tensor:
    """One image of a source, uint8 (3, H, W); a score must not depend on what was readable."""
    try:
        return decode(source.read(index))
    except (DecodeError, OSError) as error:
        raise UserError(
            f"{source.name(index)} cannot be probed: {error}. Repair or remove the file."
        ) from None


_MOST_PIXELS = 2**24  # between the two steps of a change of size


def scale(image: Tensor, size: int) -> Tensor:
    """An image (3, H, W) as uint8 (3, S, S)."""
    if image.shape[1:] == (size, size):
        return image
    if image.shape[1] * size > _MOST_PIXELS:  # rows are widened first: a column would fill memory
        lower = (size, image.shape[2])
        image = F.interpolate(image[None], lower, mode="bilinear", antialias=True)[0]
    return F.interpolate(image[None], (size, size), mode="bilinear", antialias=True)[0]


def scale_labels(labels: Tensor, size: int) -> Tensor:
    """A label map (H, W) as uint8 (S, S), without new classes between two others."""
    if labels.shape == (size, size):
        return labels
    # ``nearest-exact`` takes the pixel at the centre; plain ``nearest`` is shifted by half a pixel.
    numbers = F.interpolate(labels[None, None].float(), (size, size), mode="nearest-exact")
    return numbers[0, 0].byte()


_CALIBRATION_IMAGES = 128
_CALIBRATION_BATCH = 32
_TRAINED_WITH = (nn.SyncBatchNorm, SynchronizedBatchNorm2d, NormByView)


class FrozenFeatures:
    """A calibrated copy of a backbone that gives the maps of some stages as one.

    Args:
        backbone: Left as it is; the work happens on a copy.
        stages: Maps of several stages are scaled up to the finest and stacked.
        device: Where the copy works.
        seen: Is told after every batch how many images the copy has seen by then.
    """

    def __init__(
        self,
        backbone: Backbone,
        stages: Sequence[str],
        *,
        device: torch.device | str,
        seen: Callable[[int], None] = lambda count: None,
    ) -> None:
        _check_stages(backbone, stages)
        self._seen, self._count = seen, 0
        # A copy: probes run in the middle of a training, which must not notice.
        frozen = _plain(copy.deepcopy(backbone)).to(device, torch.float32).eval()
        self._backbone = frozen.to(memory_format=torch.channels_last)
        self._stages = list(stages)
        self.device = torch.device(device)
        if len(stages) == 1:
            self._backbone.stage = stages[0]

    @torch.no_grad()
    def calibrate(self, images: Tensor) -> None:
        """Replace the batch-norm statistics by those of some of ``images`` (N, 3, H, W)."""
        layers = [layer for layer in self._backbone.modules() if isinstance(layer, _BatchNorm)]
        if not layers:
            return
        for layer in layers:
            layer.reset_running_stats()
            # With a momentum the last batches would count most, and some of the reset values would
            # stay.
            layer.momentum = None  # a plain average over batches
            layer.train()
        for batch in _equal_batches(images):
            self(batch)
        self._backbone.eval()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, H, W) -> (B, D, h, w)."""
        features = self._features(images)
        self._count += len(images)
        self._seen(self._count)
        return features

    def _features(self, images: Tensor) -> Tensor:
        pixels = normalize(images.to(self.device), torch.float32, channels_last=True)
        # Trying kernels out would take longer than all else that a probe does.
        with without_trials(), _fast_numbers(self.device):
            if len(self._stages) == 1:
                return self._backbone.features(pixels).float()
            maps: dict[str, Tensor] = self._backbone(pixels)
        chosen = [maps[stage].float() for stage in self._stages]
        finest = max((feature_map.shape[2:] for feature_map in chosen), key=lambda size: size[0])
        scaled = [
            F.interpolate(feature_map, finest, mode="bilinear", align_corners=False)
            for feature_map in chosen
        ]
        return torch.cat(scaled, dim=1)

    def pooled(self, images: Tensor) -> Tensor:
        """One feature per image, the mean over its cells: uint8 (N, 3, H, W) -> (N, D)."""
        return torch.cat([self(batch).mean((2, 3)) for batch in torch.split(images, BATCH)])


def _fast_numbers(device: torch.device) -> AbstractContextManager[object]:
    """bf16 where the device has it."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast("cuda", torch.bfloat16) if has_bf16 else nullcontext()


def _equal_batches(images: Tensor) -> list[Tensor]:
    """Images spread over the whole set, in batches of one size, which weigh the same."""
    batch = min(_CALIBRATION_BATCH, len(images))
    count = min(_CALIBRATION_IMAGES, len(images)) // batch * batch
    return list(torch.split(images[spread(len(images), count)], batch))


def _check_stages(backbone: Backbone, stages: Sequence[str]) -> None:
    unknown = [stage for stage in stages if stage not in backbone.channels]
    if unknown or not stages:
        raise UserError(
            f"{backbone.name} has no stage {', '.join(unknown) or 'to probe'}; it has "
            f"{', '.join(backbone.channels)}. Name one or more of these."
        )


def _plain(backbone: Backbone) -> Backbone:
    """The same network in one piece with plain batch norm, for any batch in one process."""
    backbone.join()
    replace_norms(backbone, _plain_norm)
    return backbone


def _plain_norm(norm: _BatchNorm) -> _BatchNorm:
    return remade(norm, nn.BatchNorm2d) if isinstance(norm, _TRAINED_WITH) else norm
