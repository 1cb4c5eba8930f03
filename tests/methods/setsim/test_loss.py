"""SetSim's sets and loss against slow references and cases worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references.methods.sets import slow_attention_pairs, slow_set_loss
from torch import Tensor

from clove_ssl.methods.contrastive import contrast
from clove_ssl.methods.setsim.loss import (
    attention_pairs,
    cell_cosines,
    contrast_sets,
    foreground,
    with_nearest,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def units(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(random(*shape, seed=seed), dim=-1)


def some(*shape: int, seed: int = 0, share: float = 0.4) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def test_cells_that_stand_out_worked_by_hand() -> None:
    # Mean squares 0, 4, 8 and 10, scaled to 0, 0.4, 0.8 and 1.
    channels = torch.tensor([[0.0, 2.0, 4.0, math.sqrt(20)], [0.0, -2.0, 0.0, 0.0]])
    feature_map = channels.reshape(1, 2, 2, 2)
    assert foreground(feature_map, 0.7).tolist() == [[False, False, True, True]]
    assert foreground(feature_map, 0.35).tolist() == [[False, True, True, True]]
    assert foreground(feature_map + 0, 0.0).all()


def test_nothing_stands_out_of_a_flat_map() -> None:
    assert not foreground(torch.full((2, 3, 2, 2), 0.5), 0.7).any()


def test_pairs_stand_out_on_both_sides_and_look_alike() -> None:
    # Strong cells 0 and 1 here, 1 and 2 there; only (0, 1) point the same way.
    query = torch.tensor([[3.0, 0.0, 0.1], [0.0, 3.0, 0.1]]).reshape(1, 2, 1, 3)
    key = torch.tensor([[0.1, 3.0, -2.9], [0.0, 0.1, -0.6]]).reshape(1, 2, 1, 3)
    cosines = cell_cosines(query, key)
    pairs = attention_pairs(query, key, cosines, attention=0.7, likeness=0.2)
    assert pairs.nonzero().tolist() == [[0, 0, 1]]
    everything = attention_pairs(query, key, cosines, attention=0.7, likeness=-1.0)
    assert everything.nonzero()[:, 1:].tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]


@given(seed=st.integers(0, 1000), attention=st.floats(0.05, 0.95), likeness=st.floats(-0.5, 0.5))
def test_pairs_are_those_of_the_slow_search(seed: int, attention: float, likeness: float) -> None:
    query, key = random(2, 2, 4, 3, 3, seed=seed)
    fast = attention_pairs(
        query, key, cell_cosines(query, key), attention=attention, likeness=likeness
    )
    assert torch.equal(
        fast, slow_attention_pairs(query, key, attention=attention, likeness=likeness)
    )


def test_the_nearest_cell_joins_the_sets_that_are_asked_for() -> None:
    cosines = torch.tensor([[[0.1, 0.9, 0.3], [0.8, 0.2, 0.1]]])
    pairs = torch.tensor([[[True, False, False], [False, False, False]]])
    assert torch.equal(with_nearest(pairs, cosines, "none"), pairs)
    assert with_nearest(pairs, cosines, "matched").int().tolist() == [[[1, 1, 0], [0, 0, 0]]]
    assert with_nearest(pairs, cosines, "all").int().tolist() == [[[1, 1, 0], [1, 0, 0]]]


def test_a_hand_worked_loss() -> None:
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    keys = torch.tensor([[[0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]]])
    pairs = torch.tensor([[[True, True, False], [False, False, False]]])
    bank = torch.tensor([[0.6, 0.8], [0.0, -1.0]])
    result = contrast_sets(query, keys, pairs, bank, temperature=0.5)
    total = math.exp(1.6) + math.exp(0) + math.exp(1.2) + math.exp(0)
    assert result.loss.item() == pytest.approx(math.log(total) - (1.6 + 0) / 2)
    assert result.positive_cosine.item() == pytest.approx(0.4)
    assert result.pairs.item() == 2
    assert result.unmatched_cells.item() == 0.5


@given(seed=st.integers(0, 1000), temperature=st.sampled_from([0.1, 0.2, 1.0]))
def test_the_loss_is_the_formula(seed: int, temperature: float) -> None:
    query, keys = units(2, 2, 4, 3, seed=seed)
    bank, pairs = units(5, 3, seed=seed + 1), some(2, 4, 4, seed=seed)
    result = contrast_sets(query, keys, pairs, bank, temperature=temperature)
    expected = slow_set_loss(query, keys, pairs, bank, temperature)
    assert result.loss.tolist() == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_the_loss_has_the_gradient_of_its_value() -> None:
    query, keys = units(2, 2, 4, 3).requires_grad_()
    pairs, bank = some(2, 4, 4), units(5, 3, seed=1)
    pairs[1] = False  # an image without a set, whose gradient is zero

    def loss(q: Tensor, k: Tensor) -> Tensor:
        return contrast_sets(q, k, pairs, bank, temperature=0.2).loss

    assert torch.autograd.gradcheck(loss, (query.detach().requires_grad_(), keys.detach()))


def test_an_image_without_a_set_counts_as_zero_or_not_at_all() -> None:
    query, keys = units(2, 2, 4, 3)
    pairs = some(2, 4, 4)
    pairs[0] = False
    query.requires_grad_()
    kept, skipped = (
        contrast_sets(query, keys, pairs, units(5, 3), temperature=0.2, unmatched_images=rule)  # type: ignore[arg-type]
        for rule in ("keep", "skip")
    )
    assert kept.loss[0] == 0
    torch.testing.assert_close(kept.term_losses(), kept.loss[1:] / 2)
    torch.testing.assert_close(skipped.term_losses(), kept.loss[1:])
    (gradient,) = torch.autograd.grad(kept.loss.sum(), query)
    assert torch.isfinite(gradient).all()
    assert (gradient[0] == 0).all()


def test_a_set_of_one_is_info_nce() -> None:

    query, keys = units(2, 2, 4, 3)
    bank = units(5, 3, seed=1)
    pairs = torch.eye(4, dtype=torch.bool).expand(2, -1, -1)
    result = contrast_sets(query, keys, pairs, bank, temperature=0.2)
    torch.testing.assert_close(
        result.loss, contrast(query, keys, bank, temperature=0.2).loss.mean(1)
    )


def test_half_precision_is_compared_in_fp32() -> None:
    query, keys = units(2, 2, 4, 3).bfloat16()
    bank, pairs = units(5, 3).bfloat16(), some(2, 4, 4)
    maps = query.mT.reshape(2, 3, 2, 2), keys.mT.reshape(2, 3, 2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = contrast_sets(query, keys, pairs, bank, temperature=1e-2)
        cosines = cell_cosines(*maps)
    wide = contrast_sets(query.float(), keys.float(), pairs, bank.float(), temperature=1e-2)
    assert result.loss.dtype == cosines.dtype == torch.float32
    assert torch.equal(result.loss, wide.loss)
    assert torch.isfinite(result.loss).all()
    assert torch.equal(cosines, cell_cosines(*(each.float() for each in maps)))
