"""Figures that tell a healthy run from a collapsing one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clove_ssl.methods.health import (
    attention_entropy,
    effective_rank,
    feature_std,
    parameter_distance,
)


@pytest.fixture
def noise() -> torch.Tensor:
    return torch.randn(2000, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_evenly_spread_features_have_spread_one_at_any_scale(noise: torch.Tensor) -> None:
    assert feature_std(noise).item() == pytest.approx(1.0, abs=0.03)
    assert feature_std(100 * noise).item() == pytest.approx(feature_std(noise).item())


def test_equal_features_have_no_spread_and_rank_one() -> None:
    rows = torch.ones(50, 16)
    assert feature_std(rows).item() == pytest.approx(0.0, abs=1e-6)
    assert effective_rank(rows).item() == pytest.approx(1.0, abs=1e-3)


def test_effective_rank_counts_equally_used_dimensions() -> None:
    assert effective_rank(torch.eye(16)).item() == pytest.approx(16)
    assert effective_rank(torch.eye(16)[:, :5]).item() == pytest.approx(5)


def test_effective_rank_falls_when_dimensions_shrink(noise: torch.Tensor) -> None:
    shrunk = noise * torch.logspace(0, -3, 16, dtype=torch.float64)
    assert 1 < effective_rank(shrunk) < 0.5 * effective_rank(noise)


def test_zero_features_give_finite_metrics() -> None:
    rows = torch.zeros(10, 4)
    assert feature_std(rows) == 0
    assert effective_rank(rows) == 1


def test_attention_entropy_is_one_when_uniform_and_zero_when_sharp() -> None:
    uniform = torch.full((2, 3, 9, 9), 1 / 9)
    assert attention_entropy(uniform).item() == pytest.approx(1.0)
    assert attention_entropy(torch.eye(9).expand(2, 3, 9, 9)) == 0
    half = torch.zeros(1, 1, 16, 16)
    half[..., :4] = 0.25  # a quarter of the cells: half of the entropy
    assert attention_entropy(half).item() == pytest.approx(0.5)
    assert attention_entropy(torch.ones(1, 1, 1, 1)) == 0


def test_parameter_distance_is_relative_to_the_first_network() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    with torch.no_grad():
        for mine, theirs in zip(a.parameters(), b.parameters(), strict=True):
            theirs.copy_(1.5 * mine)
    assert parameter_distance(a.parameters(), b.parameters()).item() == pytest.approx(0.5)
    assert parameter_distance(a.parameters(), a.parameters()) == 0


def test_half_precision_is_widened(noise: torch.Tensor) -> None:
    rows = noise.bfloat16()
    assert feature_std(rows).dtype == torch.float32
    assert effective_rank(rows).item() == pytest.approx(effective_rank(noise).item(), rel=1e-2)
