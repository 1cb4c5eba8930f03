"""Batch norms whose weights and biases differ from channel to channel."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Norm = TypeVar("Norm", bound=_BatchNorm)


def varied_norm(kind: type[Norm], channels: int = 4, **options: object) -> Norm:
    """A batch norm in float64, the same for every call."""
    torch.manual_seed(1)
    norm = kind(channels, **options).double()  # type: ignore[arg-type]
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm
