"""A fully convolutional network: a backbone, two dilated convolutions, a class for every pixel.

Dimensions: B images, H x W pixels, K classes, h x w cells of the last map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.data.labels.pixels import IGNORE
from clove_ssl.layers.collectives import mean_count
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.rcnn.layers import start_for_relu, start_small
from clove_ssl.tasks.rcnn.pixels import stack_images
from clove_ssl.tasks.semantic.config import VOCSemanticConfig
from clove_ssl.tasks.semantic.loading import SemanticBatch
from clove_ssl.tasks.training_parts import parameter_groups

_MOST_LOGITS = 2**26  # of whole images at once: 256 MiB


class SemanticNetwork(TaskModel):
    """Classes of pixels, from the last map of a backbone.

    Args:
        config: Width and dilation of the head.
        backbone: The network below it.
        classes: Number of classes, background included.
    """

    predictors = ("predictor",)

    def __init__(self, config: VOCSemanticConfig, backbone: Backbone, *, classes: int) -> None:
        super().__init__()
        self._backbone = backbone
        width, dilation = config.head_width, config.head_dilation
        self.head = nn.Sequential(
            *_dilated_conv(backbone.out_channels, width, dilation),
            *_dilated_conv(width, width, dilation),
        )
        self.predictor = nn.Conv2d(width, classes, kernel_size=1)
        start_small(self.predictor, std=0.01)

    @property
    def backbone(self) -> Backbone:
        """The network that is fine-tuned."""
        return self._backbone

    def forward(self, images: Tensor) -> Tensor:
        """Images uint8 (B, 3, H, W) to class logits (B, K, h, w)."""
        pixels = stack_images(images.unbind(), multiple=1)
        logits: Tensor = self.predictor(self.head(self.backbone.features(pixels)))
        return logits.float()

    def losses(self, batch: SemanticBatch, *, step: int) -> dict[str, Tensor]:
        """Cross-entropy, its mean over the judged pixels of all processes."""
        labels = batch.labels.long()  # (B, H, W)
        logits = _enlarged(self(batch.images), labels.shape[1:])  # (B, K, H, W)
        # As rows, because the sum over maps does not repeat itself on a GPU.
        rows = logits.movedim(1, -1).flatten(0, 2)  # (B * H * W, K)
        total = F.cross_entropy(rows, labels.flatten(), ignore_index=IGNORE, reduction="sum")
        judged = mean_count((labels != IGNORE).sum()).clamp(min=1)
        return {"loss_pixel": total / judged.to(total.dtype)}

    @torch.no_grad()
    def predict(self, batch: SemanticBatch) -> list[tuple[int, Tensor]]:
        """The number of every image and its classes, uint8 (H, W)."""
        classes = _strongest(self(batch.images), batch.labels.shape[1:]).cpu()  # (B, H, W)
        return list(zip(batch.keys.tolist(), classes, strict=True))

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Norms get no decay, biases do."""
        return parameter_groups(self, weight_decay)

    def facts(self) -> Mapping[str, str]:
        """What the self-check shows."""
        return {
            "frozen stages": "none",
            "head": f"two 3x3 convolutions at stride {self.backbone.output_stride}",
        }


def _dilated_conv(channels: int, width: int, dilation: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation, bias=False)
    start_for_relu(conv)
    return [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]


def _strongest(logits: Tensor, size: torch.Size) -> Tensor:
    """The class of every pixel of the whole image: (B, K, h, w) -> uint8 (B, H, W)."""
    if math.prod(size) * logits.shape[0] * logits.shape[1] <= _MOST_LOGITS:
        return _enlarged(logits, size).argmax(1).to(torch.uint8)
    # Class by class: of a large photo, the logits of all of them would fill the memory.
    best = _enlarged(logits[:, :1], size)  # (B, 1, H, W)
    classes = torch.zeros_like(best, dtype=torch.uint8)
    for number in range(1, logits.shape[1]):
        other = _enlarged(logits[:, number : number + 1], size)
        classes.masked_fill_(other > best, number)
        best = torch.maximum(best, other)
    return classes[:, 0]


def _enlarged(logits: Tensor, size: torch.Size) -> Tensor:
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)
