"""A whole segmenter as one graph: pixels in, a class for every pixel out.

Dimensions: B images, H x W pixels, K classes, h x w cells of the last map.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD
from clove_ssl.tasks.semantic.model import SemanticNetwork
from clove_ssl.weights.export.graphs import Graph


class SegmenterGraph(Graph):
    """A segmenter as a function from images of one size to classes.

    Args:
        network: The model, which is put into eval mode.
    """

    mean: Tensor
    std: Tensor
    outputs = ("classes",)

    def __init__(self, network: SemanticNetwork) -> None:
        super().__init__()
        self.network = network.eval()
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images uint8 (B, 3, H, W) -> classes int64 (B, H, W)."""
        network = self.network
        pixels = (images.to(torch.float32) - self.mean) / self.std
        logits = network.predictor(network.head(network.backbone.features(pixels)))
        size = (images.shape[2], images.shape[3])
        enlarged = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
        return (enlarged.argmax(dim=1),)
