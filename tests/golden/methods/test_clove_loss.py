"""The ranking loss against one-term and whole-loss recordings of the released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from clove_ssl.losses import clove_loss, matched_cosine_loss
from clove_ssl.methods.clove.loss import RankingOptions, negatives_of_view, rank_cells
from clove_ssl.views.geometry import match_cells

pytestmark = pytest.mark.golden

Golden = Callable[[str], Mapping[str, np.ndarray]]
GROUPS = ["gg", "lg", "wide"]


class Term:
    """One group of clove_loss.npz as tensors."""

    def __init__(self, arrays: Mapping[str, np.ndarray], group: str) -> None:
        self.expected = {
            name.removeprefix(f"{group}."): value
            for name, value in arrays.items()
            if name.startswith(f"{group}.")
        }
        self.context = torch.from_numpy(self.expected["q"]).requires_grad_()
        self.target = torch.from_numpy(self.expected["k"]).requires_grad_()
        self.matches = torch.from_numpy(self.expected["mask"]).bool()
        self.settings = {
            "positive_weight": float(arrays["gamma"]),
            "margin": float(arrays["margin"]),
            "top_k": int(arrays["k_top"]),
            "drop": int(arrays["k_dropped"]),
        }

    def short_images(self) -> Tensor:
        return torch.from_numpy(np.isinf(self.expected["negatives"]))


@pytest.fixture
def term(golden: Golden, request: pytest.FixtureRequest) -> Term:
    return Term(golden("methods/clove_loss.npz"), request.param)


@pytest.mark.parametrize("term", GROUPS, indirect=True)
def test_loss_and_gradients_are_the_recorded_ones(term: Term) -> None:
    loss = clove_loss(
        term.context, term.target, term.matches, few_negatives="drop", **term.settings
    )
    loss.backward()
    assert loss.item() == pytest.approx(float(term.expected["loss"]), abs=1e-9)
    np.testing.assert_allclose(term.context.grad, term.expected["grad_q"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(term.target.grad, term.expected["grad_k"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("term", GROUPS, indirect=True)
def test_single_precision_stays_within_its_resolution(term: Term) -> None:
    loss = clove_loss(
        term.context.float(),
        term.target.float(),
        term.matches,
        few_negatives="drop",
        **term.settings,
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(float(term.expected["loss_float32"]), abs=2e-5)


@pytest.mark.parametrize("term", GROUPS, indirect=True)
def test_both_sides_of_every_image_are_the_recorded_ones(term: Term) -> None:
    result = rank_cells(
        term.context, term.target, term.matches, options=RankingOptions(**term.settings)
    )
    assert result.negative_cosine is not None
    enough = ~term.short_images()
    np.testing.assert_allclose(
        -2 * result.positive_cosine, term.expected["positives"], rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(
        -2 * result.negative_cosine[enough], term.expected["negatives"][enough], rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("term", GROUPS, indirect=True)
def test_hard_negatives_are_the_recorded_cells(term: Term) -> None:
    options = RankingOptions(**term.settings)
    queries, keys = (x.detach().flatten(2).mT for x in (term.context, term.target))
    result = negatives_of_view(queries, keys, term.matches, options)
    chosen = torch.from_numpy(term.expected["topk_index"])[..., options.drop :]
    recorded = (queries @ keys.mT).gather(2, chosen).mean(-1)
    enough = ~result.short
    torch.testing.assert_close(result.cosine[enough], recorded[enough], rtol=0, atol=1e-12)
    assert torch.equal(result.short.any(1), term.short_images())


@pytest.mark.parametrize("term", ["wide"], indirect=True)
def test_clamping_differs_only_on_images_short_of_negatives(term: Term) -> None:
    loss = clove_loss(term.context, term.target, term.matches, **term.settings)
    loss.backward()
    short = term.short_images()
    assert short.any()
    np.testing.assert_allclose(
        term.context.grad[~short], term.expected["grad_q"][~short.numpy()], rtol=0, atol=1e-9
    )
    assert (term.context.grad[short].abs().flatten(1).amax(1) > 0).all()
    assert loss > float(term.expected["loss"])


def test_the_whole_loss_is_the_mean_of_its_recorded_terms(golden: Golden) -> None:
    arrays = golden("methods/clove_triplet.npz")
    coords = torch.from_numpy(arrays["coords"])  # (views, B, 4)
    large = torch.from_numpy(arrays["global_student"]).requires_grad_()
    small = torch.from_numpy(arrays["local_student"]).requires_grad_()
    teacher = torch.from_numpy(arrays["global_teacher"])
    images = coords.shape[1]
    students = [*large.split(images), *small.split(images)]
    teachers = teacher.split(images)
    terms = []
    for i, j in arrays["pair_order"].tolist():
        grids = [(x.shape[2], x.shape[3]) for x in (students[i], teachers[j])]
        matches = match_cells(coords[i], coords[j], *grids, float(arrays["ratio"]))
        terms.append(
            clove_loss(
                students[i],
                teachers[j],
                matches,
                positive_weight=float(arrays["gamma"]),
                margin=float(arrays["margin"]),
                few_negatives="drop",
            )
        )
    loss = torch.stack(terms).mean()
    loss.backward()
    np.testing.assert_allclose(torch.stack(terms).detach(), arrays["terms"], rtol=0, atol=1e-9)
    assert loss.item() == pytest.approx(float(arrays["loss"]), abs=1e-9)
    np.testing.assert_allclose(large.grad, arrays["grad_global"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(small.grad, arrays["grad_local"], rtol=0, atol=1e-9)


def test_the_l2_loss_and_its_gradients_are_pixpros_recorded_ones(golden: Golden) -> None:
    arrays = golden("methods/pixpro.npz")
    for query, key, mask, loss_name in (
        ("q1", "k2", "mask12", "l12"),
        ("q2", "k1", "mask21", "l21"),
    ):
        context = torch.from_numpy(arrays[f"loss.{query}"]).requires_grad_()
        target = torch.from_numpy(arrays[f"loss.{key}"])
        loss = matched_cosine_loss(context, target, torch.from_numpy(arrays[f"loss.{mask}"]))
        loss.backward()
        assert loss.item() == pytest.approx(float(arrays[f"loss.{loss_name}"]), abs=2e-8)
        np.testing.assert_allclose(
            context.grad, arrays[f"loss.grad_{query}"], rtol=0, atol=2e-8, err_msg=query
        )
