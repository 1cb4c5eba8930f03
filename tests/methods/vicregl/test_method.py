"""VICRegL: its terms and its matches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders.batches.two_views import two_views
from builders.tasks.tiny_backbone import TinyBackbone
from references.methods import variance as slow
from torch import Tensor

from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.variance import (
    VarianceWeights,
    covariance_penalty,
    global_terms,
    local_terms,
    location_distances,
    nearest_cells,
    variance_hinge,
    ways_of,
)
from clove_ssl.methods.vicregl.config import VICRegLConfig
from clove_ssl.methods.vicregl.method import VICRegL
from clove_ssl.views.geometry import cell_centers

START = Progress(step=0, total_steps=10)
PAIRS = [(0, 1), (1, 0)]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def alone(rows: Tensor) -> Tensor:
    """The gather of a single process."""
    return rows


def config_of(**changes: object) -> VICRegLConfig:
    config = VICRegLConfig(
        views=ViewsConfig(global_size=16, local_count=0),
        global_width=9,
        local_width=5,
        matches=(6, 3),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def method_of(config: VICRegLConfig) -> VICRegL:
    torch.manual_seed(0)
    return VICRegL(config, TinyBackbone()).double()  # type: ignore[arg-type]


def local_of(maps: list[Tensor], places: list[Tensor], matches: tuple[int, int]) -> Tensor:
    return local_terms(
        maps, places, PAIRS, matches=matches, weights=VarianceWeights(), gather=alone
    ).total()


@pytest.mark.parametrize("shape", [(6, 4), (4, 4), (4, 6), (2, 9)], ids=str)
def test_the_terms_are_the_formulas(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    rows = random(*shape) * 0.7
    assert variance_hinge(rows).item() == pytest.approx(slow.variance(rows))
    assert covariance_penalty(rows).item() == pytest.approx(slow.covariance(rows))
    less = covariance_penalty(rows, "subtracted").item()
    assert less == pytest.approx(slow.covariance(rows, less_chance=True), abs=1e-12)


@pytest.mark.parametrize("images", [3, 8, 40])
def test_without_chance_a_batch_of_any_size_says_on_average_what_is_true(images: int) -> None:
    g = torch.Generator().manual_seed(0)
    independent = torch.randn(20_000, images, 12, generator=g, dtype=torch.float64)
    assert covariance_penalty(independent).item() == pytest.approx(11 / (images - 1), rel=0.01)
    assert covariance_penalty(independent, "subtracted").item() == pytest.approx(0, abs=0.02)
    first = independent[..., :1]
    mixed = torch.cat([first, 0.6 * first + 0.8 * independent[..., 1:2]], dim=2)
    known = 0.6**2 * (1 + 1 / (images - 1) - 2 / (images - 1) ** 2)  # of normal numbers
    assert covariance_penalty(mixed, "subtracted").item() == pytest.approx(known, abs=0.02)


def test_two_images_have_chance_and_nothing_else() -> None:
    torch.manual_seed(0)
    rows = random(2, 9)
    assert covariance_penalty(rows) > 1
    assert covariance_penalty(rows, "subtracted").item() == pytest.approx(0, abs=1e-12)


def test_larger_embeddings_pay_twice_the_invariance_and_four_times_the_covariance() -> None:
    torch.manual_seed(0)
    a, b = 0.4 * random(8, 5), 0.4 * random(8, 5)
    larger = torch.ones((), dtype=torch.float64, requires_grad=True)
    terms = global_terms([larger * a, larger * b], PAIRS, weights=VarianceWeights(), gather=alone)
    (slope,) = torch.autograd.grad(terms.total(), larger)
    # No channel is as spread as it should be, so what the hinge gains is what is left of its 25.
    balance = 2 * terms.invariance + 4 * terms.covariance - (25 - terms.variance)
    assert slope.item() == pytest.approx(balance.item(), abs=0.02)


def test_a_constant_batch_has_full_variance_loss_and_no_covariance() -> None:
    rows = torch.ones(5, 3, dtype=torch.float64)
    assert variance_hinge(rows).item() == pytest.approx(0.99)  # 1 - sqrt(1e-4)
    assert covariance_penalty(rows) == 0


def test_two_channels_that_repeat_each_other_are_penalised() -> None:
    column = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)  # variance 1
    repeated = torch.stack([column, column], dim=1)
    assert variance_hinge(repeated) == 0
    assert covariance_penalty(repeated).item() == pytest.approx(1.0)  # (1 + 1) / 2


def test_the_closest_pairs_come_in_the_order_of_their_cells() -> None:
    here = torch.tensor([[[0.0, 0.0], [5.0, 0.0], [9.0, 0.0]]])
    there = torch.tensor([[[9.5, 0.0], [0.1, 0.0]]])
    found = nearest_cells(location_distances(here, there), 2)
    assert found.here.tolist() == [[0, 2]]
    assert found.there.tolist() == [[1, 0]]
    everyone = nearest_cells(location_distances(here, there))
    assert everyone.there.tolist() == [[1, 0, 0]]


def test_the_loss_on_cells_is_the_formula() -> None:
    torch.manual_seed(0)
    maps, places = [random(4, 6, 3), random(4, 5, 3)], [random(4, 6, 2), random(4, 5, 2)]
    expected = slow.local_loss(maps, places, PAIRS, (3, 2))
    assert local_of(maps, places, (3, 2)).item() == pytest.approx(expected, abs=1e-9)


def test_more_matches_than_cells_are_all_cells() -> None:
    torch.manual_seed(0)
    maps, places = [random(4, 6, 3), random(4, 5, 3)], [random(4, 6, 2), random(4, 5, 2)]
    assert torch.equal(local_of(maps, places, (99, 99)), local_of(maps, places, (6, 6)))


def test_gradients_are_right() -> None:
    torch.manual_seed(0)
    places = [random(3, 4, 2), random(3, 4, 2)]

    def local(a: Tensor, b: Tensor) -> Tensor:
        return local_of([a, b], places, (2, 1))

    def whole(a: Tensor, b: Tensor) -> Tensor:
        return global_terms([a, b], PAIRS, weights=VarianceWeights(), gather=alone).total()

    check = torch.autograd.gradcheck
    assert check(local, [random(3, 4, 3).requires_grad_() for _ in PAIRS])
    assert check(whole, [(0.3 * random(4, 3)).requires_grad_() for _ in PAIRS])
    assert check(whole, [(0.3 * random(3, 5)).requires_grad_() for _ in PAIRS])


def test_mixed_precision_does_not_reach_the_losses() -> None:
    torch.manual_seed(0)
    maps, places = list(torch.randn(2, 4, 6, 3)), list(torch.randn(2, 4, 6, 2))
    expected = local_of(maps, places, (3, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(local_of(maps, places, (3, 2)), expected)


@pytest.mark.parametrize("mirrored", [True, False])
def test_the_method_adds_up_its_parts(mirrored: bool) -> None:
    config = config_of(mirror_grid=mirrored)
    method, batch = method_of(config), two_views(config)
    output = method(batch, START)
    seen = [method.encoder(view.pixels) for view in batch.views]
    maps = [each.cells.detach().flatten(1, 2) for each in seen]
    geometries = [view.geometry for view in batch.views]
    boxes = [g.signed_boxes("pixel") if mirrored else g.boxes for g in geometries]
    places = [cell_centers(each, (4, 4)) for each in boxes]
    local = slow.local_loss(maps, places, PAIRS, config.matches)
    a, b = (each.vectors.detach() for each in seen)
    whole = 25 * float((a - b).square().mean())
    whole += sum(25 * slow.variance(v) + slow.covariance(v) for v in (a, b)) / 2
    assert output.metrics["loss_local"].item() == pytest.approx(local, abs=1e-8)
    assert output.metrics["loss_global"].item() == pytest.approx(whole, abs=1e-8)
    assert output.loss.item() == pytest.approx(0.75 * whole + 0.25 * local, abs=1e-8)


def test_small_views_are_compared_with_both_large_ones() -> None:
    config = config_of(views=ViewsConfig(global_size=16, local_count=2, local_size=8))
    method, batch = method_of(config), two_views(config)
    output = method(batch, START)
    seen = [method.encoder(view.pixels) for view in batch.views]
    maps = [each.cells.detach().flatten(1, 2) for each in seen]
    assert [cells.shape[1] for cells in maps] == [16, 16, 4, 4]
    places = [
        cell_centers(view.geometry.signed_boxes("pixel"), each.cells.shape[1:3])
        for view, each in zip(batch.views, seen, strict=True)
    ]
    pairs = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)]
    local = slow.local_loss(maps, places, pairs, config.matches)
    vectors = [each.vectors.detach() for each in seen]
    whole = sum(25 * float((vectors[i] - vectors[j]).square().mean()) for i, j in pairs) / 6
    whole += sum(25 * slow.variance(v) + slow.covariance(v) for v in vectors) / 4
    assert output.metrics["loss_local"].item() == pytest.approx(local, abs=1e-8)
    assert output.metrics["loss_global"].item() == pytest.approx(whole, abs=1e-8)


def test_mirroring_the_grid_changes_matches_of_mirrored_views() -> None:
    config = config_of()
    batch = two_views(config)
    assert batch.views[0].geometry.flipped.any()
    release = config_of(mirror_grid=False)
    losses = [method_of(each)(batch, START).metrics for each in (config, release)]
    assert losses[0]["loss_global"] == losses[1]["loss_global"]
    assert losses[0]["loss_local"] != losses[1]["loss_local"]


def test_cells_are_expanded_one_by_one_and_keep_their_place() -> None:
    config = config_of()
    method = method_of(config).eval()
    pixels = two_views(config).views[0].pixels
    maps = method.backbone.features(pixels)
    expected = method.encoder.cell_expander(maps[:, :, 1, 2])
    torch.testing.assert_close(method.encoder(pixels).cells[:, 1, 2], expected)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="global-count 2"):
        VICRegLConfig(views=ViewsConfig(global_count=3))


def test_a_single_image_is_refused_in_words() -> None:
    config = config_of()
    with pytest.raises(UserError, match="--micro-batch of 2"):
        method_of(config)(two_views(config, images=1), Progress(0, 10))


def test_two_views_that_form_two_pairs_share_their_ways_of_matching() -> None:
    assert set(ways_of(PAIRS, [49, 49], (20, 20)).values()) == {2}
    released = ways_of(PAIRS, [49, 49], (20, 4))
    assert {way[2]: times for way, times in released.items()} == {None: 2, 20: 1, 4: 1}
    assert {way[2] for way in ways_of([(0, 2), (1, 2)], [49, 49, 9], (20, 20))} == {None, 20, 9}
    assert released.total() == 4 * len(PAIRS)
