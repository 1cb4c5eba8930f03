"""Networks without memory."""

from __future__ import annotations

import torch
from torch import nn

from clove_ssl.backbones.build import outlined


def test_shapes_are_there_and_values_are_not() -> None:
    state = torch.get_rng_state()
    with outlined():
        network = nn.Sequential(nn.Conv2d(3, 10**6, 3), nn.BatchNorm2d(10**6), nn.Linear(5, 10**9))
    assert all(parameter.is_meta for parameter in network.parameters())
    assert network[0].weight.shape == (10**6, 3, 3, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_that_is_built_later_has_its_values() -> None:
    with outlined():
        nn.Linear(2, 2)
    assert nn.Linear(2, 2).weight.std() > 0
