"""Statistics of batch norms after some passes, against Detectron2's precise batch norm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from clove_ssl.tasks.precise_norm import estimate_statistics

pytestmark = pytest.mark.golden


class OneProcess:
    def sum(self, values: Tensor) -> Tensor:
        return values


def network(recorded: dict[str, Tensor]) -> nn.Sequential:
    first, second = (nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 5, 3, 2, bias=False))
    layers = nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.BatchNorm2d(5))
    with torch.no_grad():
        first.weight.copy_(recorded["conv1_weight"])
        second.weight.copy_(recorded["conv2_weight"])
        layers[1].weight.copy_(recorded["bn1_weight"])
        layers[1].bias.copy_(recorded["bn1_bias"])
    return layers


def test_statistics_are_the_recorded_ones(golden) -> None:
    arrays = golden("detectron2/12_precise_bn.npz")
    recorded = {name: torch.from_numpy(array) for name, array in arrays.items() if array.ndim}
    layers = network(recorded)
    count = int(arrays["num_batches"])

    def passes() -> Iterator[int]:
        for number in range(count):
            layers(recorded[f"batch{number}"])
            yield number

    assert estimate_statistics(layers, passes(), OneProcess()) == count
    for name, norm in (("bn1", layers[1]), ("bn2", layers[4])):
        for field in ("running_mean", "running_var"):
            mine = getattr(norm, field)
            torch.testing.assert_close(mine, recorded[f"{name}_{field}"], rtol=0, atol=1e-5)
        assert norm.momentum == arrays[f"{name}_momentum_after"]
