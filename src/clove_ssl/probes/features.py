"""Frozen features for probes, the same way for trained and for random backbones.

A random network's batch norm has seen no image, so its running statistics (mean
0, variance 1) fit nothing, while a trained network's fit its training images.
Neither is the network's merit; so before anything is measured the statistics
of *every* backbone are taken afresh from the probe's own training images.

On a GPU that has bf16 the network runs in it; features are fp32 from there on.

Dimensions: B images, D channels, h x w cells.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.backbones.build import Backbone
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import SynchronizedBatchNorm2d, remade, replace_norms
from clove_ssl.layers.view_norm import NormByView
from clove_ssl.probes.images import BATCH
from clove_ssl.training.repeatability import without_trials
from clove_ssl.views.batch import normalize

_CALIBRATION_IMAGES = 128
_CALIBRATION_BATCH = 32
_TRAINED_WITH = (nn.SyncBatchNorm, SynchronizedBatchNorm2d, NormByView)


class FrozenFeatures:
    """A calibrated copy of a backbone that gives the maps of some stages as one.

    Args:
        backbone: Left as it is; the work happens on a copy.
        stages: Maps of several stages are scaled up to the finest and stacked.
        device: Where the copy works.
    """

    def __init__(
        self, backbone: Backbone, stages: Sequence[str], *, device: torch.device | str
    ) -> None:
        _check_stages(backbone, stages)
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
            layer.momentum = None  # a plain average over batches
            layer.train()
        for batch in _equal_batches(images):
            self(batch)
        self._backbone.eval()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, H, W) -> (B, D, h, w)."""
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
    spread = torch.arange(count) * len(images) // count
    return list(torch.split(images[spread], batch))


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
