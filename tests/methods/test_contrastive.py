"""InfoNCE, correspondence and prediction against slow references and cases worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references.methods.contrastive import slow_info_nce, slow_nearest
from torch import Tensor

from clove_ssl.methods.byol.method import prediction_loss
from clove_ssl.methods.contrastive import contrast, info_nce, most_similar_cells


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@given(
    rows=st.integers(1, 5),
    negatives=st.integers(1, 7),
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
    seed=st.integers(0, 1000),
)
def test_info_nce_is_the_formula(rows: int, negatives: int, temperature: float, seed: int) -> None:
    query, positive = units(2, rows, 4, seed=seed)
    bank = units(negatives, 4, seed=seed + 1)
    loss = info_nce(query, positive, bank, temperature=temperature)
    expected = slow_info_nce(query, positive, bank, temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_hand_worked_case() -> None:
    query = torch.tensor([[1.0, 0.0]])
    bank = torch.tensor([[0.0, 1.0], [-1.0, 0.0], [0.6, 0.8]])
    result = contrast(query, torch.tensor([[0.8, 0.6]]), bank, temperature=0.5)
    others = math.exp(0) + math.exp(-2) + math.exp(1.2)
    assert result.loss.item() == pytest.approx(math.log(1 + others / math.exp(1.6)))
    assert result.positive_cosine.item() == pytest.approx(0.8)
    assert result.negative_cosine.item() == pytest.approx(-0.4 / 3)
    assert result.found.item()
    worse = contrast(query, torch.tensor([[0.28, 0.96]]), bank, temperature=0.5)
    assert not worse.found.item()


def test_leading_dimensions_do_not_matter() -> None:
    query, positive, bank = units(3, 5, 4), units(3, 5, 4, seed=1), units(6, 4, seed=2)
    by_cell = contrast(query, positive, bank, temperature=0.2)
    by_row = contrast(query.flatten(0, 1), positive.flatten(0, 1), bank, temperature=0.2)
    assert by_cell.loss.shape == (3, 5)
    for a, b in zip(by_cell, by_row, strict=True):
        torch.testing.assert_close(a.flatten(), b)


def test_info_nce_has_the_gradient_of_its_value() -> None:
    query = units(3, 4).requires_grad_()
    positive, bank = units(3, 4, seed=1).requires_grad_(), units(5, 4, seed=2)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return contrast(a, b, bank, temperature=0.2).loss

    assert torch.autograd.gradcheck(loss, (query, positive))


def test_a_tiny_temperature_does_not_overflow() -> None:
    query = units(2, 4).float()
    loss = info_nce(query, -query, query, temperature=1e-3)
    assert loss.item() == pytest.approx(2000, rel=1e-3)


@pytest.mark.parametrize("bank", [torch.zeros(0, 4), torch.zeros(3, 5), torch.zeros(4)])
def test_a_bank_that_does_not_fit_is_refused(bank: Tensor) -> None:
    with pytest.raises(ValueError, match="negatives"):
        info_nce(units(2, 4).float(), units(2, 4).float(), bank, temperature=0.2)


def test_a_positive_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match="alike"):
        info_nce(units(2, 4), units(1, 4), units(3, 4), temperature=0.2)
    with pytest.raises(ValueError, match="alike"):
        prediction_loss(units(2, 4), units(1, 4))


class LowPrecisionProducts:
    """Counts what autocast would do, on machines that have no fast bf16 products."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_autocast: list[bool] = []
        product = Tensor.__matmul__

        def noting(a: Tensor, b: Tensor) -> Tensor:
            self.under_autocast.append(torch.is_autocast_enabled("cpu"))
            return product(a, b)

        monkeypatch.setattr(Tensor, "__matmul__", noting)


def test_half_precision_inputs_are_compared_in_fp32_under_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products = LowPrecisionProducts(monkeypatch)
    query, bank = units(2, 3, 4).bfloat16(), units(6, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = contrast(query[0], query[1], bank, temperature=0.2)
        most_similar_cells(query.reshape(1, 4, 2, 3), query.reshape(1, 4, 3, 2))
    assert products.under_autocast == [False] * 3
    wide = contrast(query[0].float(), query[1].float(), bank.float(), temperature=0.2)
    assert result.loss.dtype == torch.float32
    assert torch.equal(result.loss, wide.loss)


def test_corresponding_cells_worked_by_hand() -> None:
    # Key cells point east, north, west and north-east, with lengths that must not matter.
    keys = torch.tensor([[[1.0, 0.0, -9.0, 0.1], [0.0, 5.0, 0.0, 0.1]]]).reshape(1, 2, 2, 2)
    # Query cells: nearly east, steep, south-west, and exactly 45 degrees.
    queries = torch.tensor([[[2.0, 0.1, -3.0, 7.0], [0.2, 3.0, -1.0, 7.0]]]).reshape(1, 2, 2, 2)
    assert most_similar_cells(queries, keys).tolist() == [[0, 1, 2, 3]]


def test_corresponding_cells_are_those_of_the_slow_search() -> None:
    queries, keys = units(2, 3, 12).reshape(2, 3, 3, 4), units(2, 3, 6, seed=1).reshape(2, 3, 2, 3)
    found = most_similar_cells(queries.requires_grad_(), keys)
    assert found.tolist() == slow_nearest(queries.detach(), keys)
    assert not found.requires_grad


def test_the_prediction_loss_is_the_squared_distance_of_unit_vectors() -> None:
    prediction, target = units(5, 4), units(5, 4, seed=1)
    distance = (prediction - target).square().sum(1).mean()
    torch.testing.assert_close(prediction_loss(prediction, target), distance)
    assert torch.autograd.gradcheck(prediction_loss, (prediction.requires_grad_(), target))


def test_the_prediction_loss_worked_by_hand() -> None:
    target = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    prediction = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])  # distances 0, root 2 and 2
    assert prediction_loss(prediction, target) == (0 + 2 + 4) / 3


def test_the_prediction_loss_is_computed_in_fp32() -> None:
    prediction, target = units(2, 50, 64).bfloat16()
    loss = prediction_loss(prediction, target)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, prediction_loss(prediction.float(), target.float()))
