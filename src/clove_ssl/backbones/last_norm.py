"""The size of the weights with which a network leaves its run.

A batch norm divides by the size of the weights in front of it, so features do not depend on it. How
fast the weights change afterwards does: a step of SGD turns weights w by lr * |gradient| / |w|, and
the gradient in front of a norm goes with 1 / |w|.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from clove_ssl.backbones.build import RESNET_PARTS, Backbone


@torch.no_grad()
def size_last_stage(backbone: Backbone, state: Mapping[str, Tensor]) -> None:
    """Give the last stage of ``state``, the weights of ``backbone``, the size that it asks for.

    Only what is written into a file or was just read from one, never what is still trained: LARS
    has sizes of its own.
    """
    if backbone.last_norm is None or backbone.parts != RESNET_PARTS:
        return
    stage = tuple(f"{part}." for part in backbone.parts[backbone.stage] if part.startswith("layer"))
    for name, weight in state.items():
        if name.startswith(stage) and weight.ndim == 4 and weight.any():
            fresh = math.sqrt(2 * weight.shape[1])  # the norm of a convolution that begins
            factor = backbone.last_norm * fresh / weight.norm()
            norm = _norm_behind(name.removesuffix(".weight"))
            weight.mul_(factor)
            state[f"{norm}.running_mean"].mul_(factor)
            state[f"{norm}.running_var"].mul_(factor * factor)


def _norm_behind(convolution: str) -> str:
    """The batch norm that follows a convolution in a block of a ResNet."""
    return convolution.replace(".conv", ".bn").replace(".downsample.0", ".downsample.1")
