"""What a network sees beyond the edge of an image."""

from __future__ import annotations

from torch import nn


def pad_by_reflection(network: nn.Module) -> None:
    """Let every convolution continue its input by a mirror image instead of zeros.

    Zeros tell a network where the edge is, and so where in the view it looks. Weights fit
    both kinds, so what is exported runs with zeros again.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and any(module.padding):
            module.padding_mode = "reflect"
