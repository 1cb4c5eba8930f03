"""The kernels of CLoVE's ranking loss give what torch gives, image by image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.methods.cells import CellLoss
from clove_ssl.methods.clove.config import RankingOptions
from clove_ssl.methods.clove.loss import rank_cells, rank_views

pytestmark = NEEDS_KERNELS

PER_IMAGE = ("loss", "positive_cosine", "negative_cosine", "unmatched_cells", "short_cells")


def pairs_of(views: int, *, small: bool) -> list[tuple[int, int]]:
    return [(i, j) for j in range(2) for i in range(views) if small or i != j]


def random_case(
    images: int, views: int, grids: tuple[int, int], channels: int, *, small: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Unit maps of both networks, and matches: none in the first image, all in the last cell."""
    generator = torch.Generator().manual_seed(3)
    side, other = grids
    context = torch.randn(views * images, channels, side, side, generator=generator)
    target = torch.randn(2 * images, channels, other, other, generator=generator)
    terms = len(pairs_of(views, small=small))
    matches = torch.rand(terms, images, side**2, other**2, generator=generator) < 0.05
    matches[:, 0] = False
    matches[:, -1, -1] = True  # so that this query has no negative at all
    matches[:, -1, 0, 5:] = True  # and this one too few
    return F.normalize(context, dim=1), F.normalize(target, dim=1), matches.flatten(0, 1)


def rank_pairs(
    context: Tensor,
    target: Tensor,
    matches: Tensor,
    *,
    images: int,
    small: bool,
    options: RankingOptions,
) -> CellLoss:
    """All pairs of views by torch, in float64."""
    views, others = context.split(images), target.split(images)
    pairs = pairs_of(len(views), small=small)
    joined = torch.cat([views[i] for i, _ in pairs]), torch.cat([others[j] for _, j in pairs])
    return rank_cells(*(maps.double() for maps in joined), matches, options=options)


def assert_like_torch(
    images: int, views: int, grids: tuple[int, int], channels: int, *, small: bool,
    options: RankingOptions,
) -> None:  # fmt: skip
    case = [part.to(DEVICE) for part in random_case(images, views, grids, channels, small=small)]
    results, gradients = [], []
    for rank in (rank_views, rank_pairs):
        context = case[0].clone().to(memory_format=torch.channels_last).requires_grad_()
        result = rank(context, case[1], case[2], images=images, small=small, options=options)
        weights = torch.linspace(1, 2, len(result.loss), device=DEVICE)
        (result.loss * result.counted * weights).sum().backward()
        assert context.grad is not None
        results.append(result)
        gradients.append(context.grad)
    for name in PER_IMAGE:
        ours, theirs = (getattr(result, name).double() for result in results)
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=2e-5), name
    assert torch.equal(results[0].pairs, results[1].pairs)
    assert torch.equal(results[0].counted, results[1].counted)
    # Of two candidates that are equal up to rounding, each way may take another one.
    close = gradients[0].isclose(gradients[1], rtol=1e-4, atol=1e-6).all(1)
    assert close.float().mean() > 0.999


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("small", [False, True])
def test_tiny_views(*, small: bool) -> None:
    assert_like_torch(2, 2, (3, 4), 16, small=small, options=RankingOptions())


def test_tiny_views_that_spare_cells_without_a_match() -> None:
    options = RankingOptions(negative_queries="matched", unmatched_images="skip", drop=0, top_k=3)
    assert_like_torch(2, 3, (4, 4), 16, small=True, options=options)


def test_tiny_maps_with_what_is_no_number_give_no_number() -> None:
    context, target, matches = random_case(2, 2, (3, 3), 16, small=False)
    context[1, :, 0, 0] = torch.nan
    matches[1, 0] = False
    case = [part.to(DEVICE) for part in (context, target, matches)]
    result = rank_views(*case, images=2, small=False, options=RankingOptions())
    assert result.loss.isnan().any()


@full_size
@pytest.mark.parametrize(
    ("views", "grids", "small"),
    [(2, (10, 10), False), (2, (6, 10), True), (2, (5, 5), False), (6, (3, 7), True),
     (2, (14, 14), False)],
)  # fmt: skip
def test_views_of_runs(views: int, grids: tuple[int, int], *, small: bool) -> None:
    assert_like_torch(32, views, grids, 256, small=small, options=RankingOptions())


@full_size
def test_the_same_maps_give_the_same_bits() -> None:
    case = [part.to(DEVICE) for part in random_case(64, 2, (10, 10), 256, small=False)]
    twice = [
        rank_views(*case, images=64, small=False, options=RankingOptions()).loss for _ in range(2)
    ]
    assert torch.equal(*twice)
