"""Exact statistics of batch norms after training, from some passes over training batches.

Running averages lag behind the weights and forget quickly. Here every value of every pass has the
same weight: means and variances are those of all inputs of a layer pooled over all passes and
processes, whatever the sizes of the batches.

Dimensions: C channels, n values per channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.layers.fp32 import at_least_fp32


class Processes(Protocol):
    """Something that adds tensors over all processes, in place."""

    def sum(self, values: Tensor) -> Tensor:
        """Add ``values`` over all processes."""


class _Moments:
    """Count, mean and summed squared deviation of what a layer has seen, in float64."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(channels, dtype=torch.float64, device=device)
        self.deviation = torch.zeros_like(self.mean)
        self.seen = False

    def add(self, layer_input: Tensor) -> None:
        """Take in one batch (B, C, ...)."""
        if self.seen:
            raise ValueError("a batch norm that runs twice in a pass has no statistics of its own")
        self.seen = True
        rows = layer_input.detach().movedim(1, -1).flatten(0, -2)  # (n, C)
        if len(rows):
            variance, mean = torch.var_mean(at_least_fp32(rows), dim=0, correction=0)
            self.merge(len(rows), mean.double(), variance.double())

    def merge(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Pool with ``count`` values of a given mean and variance."""
        total = self.count + count
        shift = mean - self.mean
        self.deviation += variance * count + shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    def pool(self, processes: Processes) -> None:
        """Pool over all processes."""
        count = processes.sum(self.count.clone())
        mean = processes.sum(self.mean * self.count) / count
        spread = self.deviation + self.count * (self.mean - mean).square()
        self.count, self.mean, self.deviation = count, mean, processes.sum(spread)


@torch.no_grad()
def estimate_statistics(
    model: nn.Module, forward_batches: Iterable[object], processes: Processes
) -> int:
    """Replace the running statistics of all trained batch norms; returns the number of passes.

    Each item of ``forward_batches`` stands for one forward pass of ``model`` in train mode, which
    is made while the item is fetched: a generator that runs a batch and yields. All processes make
    the same number of passes. Layers that no pass reached keep what they have.
    """
    layers = [each for each in model.modules() if isinstance(each, _BatchNorm) and _tracks(each)]
    moments = [_Moments(each.num_features, _device(each)) for each in layers]
    passes = 0
    with ExitStack() as hooks:
        for layer, each in zip(layers, moments, strict=True):
            handle = layer.register_forward_pre_hook(_observer(each))
            hooks.callback(handle.remove)
        for _ in forward_batches:
            passes += 1
            for each in moments:
                each.seen = False
    for layer, each in zip(layers, moments, strict=True):
        each.pool(processes)
        _write(layer, each)
    return passes


def _tracks(layer: _BatchNorm) -> bool:
    return layer.training and layer.track_running_stats and layer.running_mean is not None


def _device(layer: _BatchNorm) -> torch.device:
    assert layer.running_mean is not None
    return layer.running_mean.device


def _observer(moments: _Moments) -> Any:
    def observe(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        moments.add(inputs[0])

    return observe


def _write(layer: _BatchNorm, moments: _Moments) -> None:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    if moments.count > 0:
        layer.running_mean.copy_(moments.mean)
        layer.running_var.copy_(moments.deviation / moments.count)
