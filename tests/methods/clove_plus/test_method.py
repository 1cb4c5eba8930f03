"""CLoVE Plus as a method: what is compared, and how its two losses are balanced."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.batches.two_views import crops_of, two_views
from builders.runs.method_runs import small_method, tiny_built
from hypothesis import given
from hypothesis import strategies as st
from references.methods.clove_plus import cell_loss, expanded, whole_loss
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress
from clove_ssl.methods.clove.cell_contrast import contrast_cells
from clove_ssl.methods.clove.config import LossConfig
from clove_ssl.methods.clove_plus.balance import GradientBalance
from clove_ssl.methods.clove_plus.config import BalanceConfig, CLoVEPlusConfig, WholeConfig
from clove_ssl.methods.clove_plus.loss import (
    contrast_images,
    counts_of_pairs,
    pairs_with_large,
)
from clove_ssl.methods.clove_plus.method import (
    CLoVEPlus,
    TaughtCLoVEPlus,
    beta_at,
    set_padding,
)
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.recipes import recipe
from clove_ssl.methods.variance import VarianceWeights, global_terms
from clove_ssl.pretraining.compile.method import compile_method, compile_pieces, cut
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import draw_views

IMAGES = 6
START = Progress(0, 100)
MEASURED = Progress(1, 100)
TAUGHT: dict[str, Any] = {"targets": "teacher", "teacher": TeacherConfig(momentum=1.0)}


def config_of(**changes: Any) -> CLoVEPlusConfig:
    config = small_method("clove-plus")
    assert isinstance(config, CLoVEPlusConfig)
    return replace(config, **changes)


def built(config: CLoVEPlusConfig) -> CLoVEPlus:
    method = tiny_built(config)
    assert isinstance(method, CLoVEPlus)
    return method


def identity(rows: Tensor) -> Tensor:
    return rows


@pytest.mark.parametrize("changes", [{}, TAUGHT], ids=["own targets", "teacher"])
@pytest.mark.parametrize("stages", [("c4", "c5"), ("c5",), ("c3", "c4", "c5")])
def test_the_loss_is_the_sum_of_two_losses_computed_term_by_term(
    stages: tuple[Any, ...], changes: dict[str, Any]
) -> None:
    config = config_of(stages=stages, **changes)
    method, batch = built(config), two_views(config, images=IMAGES)
    cells = cell_loss(method, batch)
    whole = whole_loss(expanded(method, batch), large=2)
    output = method(batch, START)
    torch.testing.assert_close(output.metrics["loss_cells"], cells.detach())
    torch.testing.assert_close(output.metrics["loss_whole"], whole.detach())
    torch.testing.assert_close(output.loss, cells + 3 * 0.03 * whole, rtol=1e-8, atol=0)


@pytest.mark.parametrize("joint", [True, False])
def test_own_targets_are_those_of_a_teacher_that_is_the_student(joint: bool) -> None:
    alike = TeacherConfig(momentum=0.0, final_momentum=0.0)
    configs = [
        config_of(joint_views=joint),
        config_of(joint_views=joint, targets="teacher", teacher=alike),
    ]
    own, taught = (built(config) for config in configs)
    assert isinstance(taught, TaughtCLoVEPlus)
    taught.load_state_dict(own.state_dict(), strict=False)  # has no teacher, which comes to follow
    batch = two_views(configs[0], images=IMAGES)
    losses = [method(batch, MEASURED).loss for method in (own, taught)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=0)
    for loss in losses:
        loss.backward()
    gradients = dict(taught.named_parameters())
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-9, atol=1e-12)


def test_files_of_before_the_choice_mean_the_teacher(tmp_path: Path) -> None:
    older = "teacher: {momentum: 0.9}"
    config = files.parse(
        PretrainConfig, f"out: run\nmethod: {{name: clove-plus, {older}}}", where=tmp_path
    )
    assert (config.method.has_teacher, config.method.exported_branch) == (True, "student")
    plain = files.parse(PretrainConfig, "out: run\nmethod: {name: clove-plus}", where=tmp_path)
    assert (plain.method.has_teacher, plain.method.exported_branch) == (False, None)
    again = files.parse(PretrainConfig, files.to_yaml(plain), where=tmp_path)
    assert again == plain


def test_small_views_can_be_left_out_of_the_loss_on_whole_images() -> None:
    config = config_of(whole=WholeConfig(width=9, small_views=False))
    method, batch = built(config), two_views(config, images=IMAGES)
    whole = whole_loss(expanded(method, batch)[:2], large=2)
    torch.testing.assert_close(method(batch, START).metrics["loss_whole"], whole.detach())


def test_whole_images_may_be_compared_only_where_they_are_flipped_alike() -> None:
    config = config_of(whole=WholeConfig(width=9, flips="alike"))
    method, batch = built(config), two_views(config, images=IMAGES)
    flipped = [view.geometry.flipped.tolist() for view in batch.views]
    whole = whole_loss(expanded(method, batch), large=2, flipped=flipped)
    output = method(batch, START)
    torch.testing.assert_close(output.metrics["loss_whole"], whole.detach())
    assert not torch.isclose(whole, whole_loss(expanded(method, batch), large=2))


def test_what_a_batch_shows_by_chance_can_be_left_out_of_covariances() -> None:
    config = config_of(whole=WholeConfig(width=9, chance="subtracted"))
    method, batch = built(config), two_views(config, images=IMAGES)
    whole = whole_loss(expanded(method, batch), large=2, less_chance=True)
    torch.testing.assert_close(method(batch, START).metrics["loss_whole"], whole.detach())
    assert not torch.isclose(whole, whole_loss(expanded(method, batch), large=2))


def test_views_that_are_all_flipped_alike_are_compared_as_ever() -> None:
    batch = two_views(config_of(), images=IMAGES)
    flipped = batch.views[0].geometry.flipped
    shared = tuple(
        replace(view, geometry=replace(view.geometry, flipped=flipped)) for view in batch.views
    )
    views = replace(config_of().views, shared_flip=True)
    losses = [
        built(config_of(views=views, whole=WholeConfig(width=9, flips=flips)))(
            replace(batch, views=shared), START
        ).loss
        for flips in ("any", "alike")
    ]
    torch.testing.assert_close(*losses)


@given(st.floats(0, 1), st.sampled_from([None, 0.0, 0.1, 0.5]))
def test_images_of_a_pair_count_as_much_as_all_would(chance: float, apart: float | None) -> None:
    views = ViewsConfig(
        local_count=1,
        flip_probability=chance,
        shared_flip=apart is not None,
        flips_apart=apart or 0.0,
    )
    numbers = np.random.default_rng(0).random((20_000, 3, UNIFORMS_PER_VIEW))
    drawn = draw_views(numbers, 9, 9, views.specs())
    seen = [view_that_is(torch.from_numpy(drawn.flip[:, view])) for view in range(3)]
    pairs = pairs_with_large(2, 1)
    for (i, j), counts in zip(pairs, counts_of_pairs(seen, pairs, views), strict=True):
        assert counts.mean().item() == pytest.approx(1, abs=0.05)
        assert torch.equal(counts > 0, seen[i].geometry.flipped == seen[j].geometry.flipped)


def test_shares_of_a_batch_add_up_to_its_distances() -> None:
    g = torch.Generator().manual_seed(0)
    vectors = list(torch.randn(2, 8, 3, generator=g, dtype=torch.float64))
    seen = [view_that_is(torch.rand(8, generator=g) < 0.5) for _ in vectors]
    counts = counts_of_pairs(seen, [(0, 1)], ViewsConfig())

    def distance(rows: slice) -> Tensor:
        return global_terms(
            [each[rows] for each in vectors],
            [(0, 1)],
            weights=VarianceWeights(),
            gather=identity,
            counts=[each[rows] for each in counts],
        ).invariance

    halves = [distance(rows) for rows in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(torch.stack(halves).mean(), distance(slice(0, 8)))


def view_that_is(flipped: Tensor) -> View:
    corner = torch.zeros(len(flipped), 2)
    return View(torch.empty(0), crops_of(corner, corner + 1, flipped), "global")


def test_every_large_view_is_paired_once_with_every_other_view() -> None:
    assert pairs_with_large(2, 0) == [(0, 1)]
    assert pairs_with_large(2, 2) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]


@pytest.mark.parametrize("kind", ["vicreg", "vicreg less chance", "infonce"])
@pytest.mark.parametrize("counted", [False, True])
def test_gradients_of_the_loss_on_whole_images_are_right(kind: str, counted: bool) -> None:
    g = torch.Generator().manual_seed(0)
    views = torch.randn(4, 5, 3, generator=g, dtype=torch.float64, requires_grad=True)
    pairs = pairs_with_large(2, 2)
    counts = list(torch.rand(len(pairs), 5, generator=g)) if counted else None

    def loss(views: Tensor) -> Tensor:
        how: dict[str, Any] = {"gather": identity, "counts": counts}
        if kind == "infonce":
            return contrast_images(list(views), pairs, temperature=0.2, **how)
        how["chance"] = "kept" if kind == "vicreg" else "subtracted"
        return global_terms(list(views), pairs, weights=VarianceWeights(), **how).total()

    assert torch.autograd.gradcheck(loss, views)


def test_image_contrast_is_the_cross_entropy_of_finding_the_same_image() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 3, generator=g, dtype=torch.float64)
    found = contrast_images([a, b], [(0, 1)], temperature=0.3, gather=identity)
    cosines = torch.nn.functional.cosine_similarity(a[:, None], b[None], dim=2) / 0.3
    right = torch.arange(5)
    both = [torch.nn.functional.cross_entropy(each, right) for each in (cosines, cosines.T)]
    torch.testing.assert_close(found, torch.stack(both).mean())


def gradient_at_first_maps(method: CLoVEPlus, batch: ViewBatch, ratio: float) -> Tensor:
    """What an ordinary backward pass leaves at the large views' map of the first stage."""
    twin = copy.deepcopy(method)
    twin.balance.ratio.fill_(ratio)
    backbone, caught = twin.encoder.backbone, []
    plain = backbone.maps

    def catching(images: Tensor) -> dict[str, Tensor]:
        maps = plain(images)
        maps[twin.encoder.stages[0]].retain_grad()
        caught.append(maps[twin.encoder.stages[0]])
        return maps

    backbone.maps = catching  # type: ignore[method-assign]
    twin(batch, START).loss.backward()  # a step that measures nothing
    large = caught[: len(twin.passes([v for v in batch.views if v.role == "global"]))]
    return torch.cat([maps.grad for maps in large if maps.grad is not None])


def brute_force_ratio(method: CLoVEPlus, batches: list[ViewBatch]) -> Tensor:
    """Both gradients from passes with and without the loss on whole images."""
    cells = [gradient_at_first_maps(method, batch, 0.0) for batch in batches]
    both = [gradient_at_first_maps(method, batch, 1.0) for batch in batches]
    whole = [(sum_ - own) / 3 for sum_, own in zip(both, cells, strict=True)]  # beta is 3
    return torch.cat(cells).norm() / torch.cat(whole).norm()


@pytest.mark.parametrize("stages", [("c4", "c5"), ("c5",)])
@pytest.mark.parametrize("joint", [True, False])
def test_the_balance_is_the_ratio_of_gradient_norms_at_the_first_map(
    stages: tuple[Any, ...], joint: bool
) -> None:
    config = config_of(stages=stages, joint_views=joint)
    method, batch = built(config), two_views(config, images=IMAGES)
    expected = brute_force_ratio(method, [batch])
    method(batch, MEASURED)
    assert method.balance.ratio.item() == pytest.approx(0.03)  # until the step is done
    method.after_step(MEASURED)
    torch.testing.assert_close(method.balance.ratio, expected, rtol=1e-6, atol=0)
    assert method.balance.measurements == 1


def test_micro_batches_are_measured_together() -> None:
    config = config_of()
    method = built(config)
    batches = [two_views(config, seed, images=IMAGES) for seed in range(2)]
    expected = brute_force_ratio(method, batches)
    for number, batch in enumerate(batches):
        method(batch, replace(MEASURED, closes_step=number == 1))
    method.after_step(MEASURED)
    torch.testing.assert_close(method.balance.ratio, expected, rtol=1e-6, atol=0)
    assert method.balance.measurements == 1


def test_measuring_changes_neither_loss_nor_gradients() -> None:
    config = config_of()
    methods = [built(config) for _ in range(2)]
    batch = two_views(config, images=IMAGES)
    for method, progress in zip(methods, (START, MEASURED), strict=True):
        method(batch, progress).loss.backward()
    for one, other in zip(*(method.parameters() for method in methods), strict=True):
        if one.grad is not None:
            assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]


def test_later_measurements_are_smoothed_and_steps_between_have_none() -> None:
    balance = GradientBalance(start=0.5, every=20, keep=0.7)
    assert [step for step in range(62) if balance.wants(step)] == [1, 21, 41, 61]
    x = torch.ones(1, requires_grad=True)
    found = []
    for slope in (2.0, 4.0):
        balance.note(slope * x.sum(), x.sum(), [x])
        balance.update()
        found.append(balance.ratio.item())
    assert found == pytest.approx([2.0, 0.7 * 2.0 + 0.3 * 4.0])
    balance.update()
    assert balance.ratio.item() == found[-1]


def test_a_measurement_that_is_not_finite_is_left_out() -> None:
    balance = GradientBalance(start=0.5, every=20, keep=0.7)
    x = torch.ones(1, requires_grad=True)
    balance.note(float("inf") * x.sum(), x.sum(), [x])
    balance.update()
    assert (balance.ratio.item(), balance.measurements.item()) == (0.5, 0)


def test_a_fixed_balance_never_moves() -> None:
    config = config_of(balance=BalanceConfig(kind="fixed", ratio=0.25))
    method, batch = built(config), two_views(config, images=IMAGES)
    loss = method(batch, MEASURED).loss
    method.after_step(MEASURED)
    assert method.balance.ratio.item() == 0.25
    expected = cell_loss(method, batch) + 3 * 0.25 * whole_loss(expanded(method, batch), large=2)
    torch.testing.assert_close(loss, expected, rtol=1e-8, atol=0)
    assert not method.goes_back_twice


def test_a_restored_method_continues_exactly() -> None:
    config = config_of(queue_stages=("c4",), loss=LossConfig(top_k=4, queue_size=20))
    method, twin = built(config), built(config)
    for step in range(3):
        method(two_views(config, step), Progress(step, 100)).loss.backward()
        method.after_step(Progress(step, 100))
    twin.load_state_dict(method.state_dict())
    assert twin.balance.ratio.item() != pytest.approx(0.03)
    batch = two_views(config, 7)
    assert torch.equal(method(batch, START).loss, twin(batch, START).loss)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [3, 3, 3]), ("linear", [3, 1.8, 1]), ("cosine", [3, 1.6909830, 1])],
)
def test_beta_follows_its_schedule(schedule: Any, expected: list[float]) -> None:
    config = WholeConfig(schedule=schedule, final_beta=1.0)
    found = [beta_at(config, Progress(step, 10)) for step in (0, 6, 10)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("changes", [{}, TAUGHT], ids=["own targets", "teacher"])
def test_a_step_has_the_weight_of_its_place_in_the_schedule(changes: dict[str, Any]) -> None:
    config = config_of(whole=WholeConfig(width=9, schedule="linear", final_beta=1.0), **changes)
    method, batch = built(config), two_views(config, images=IMAGES)
    metrics = method(batch, Progress(6, 10)).metrics
    whole = 0.03 * metrics["loss_whole"]
    late, early = Progress(8, 10), Progress(0, 10)
    method.before_forward(late)
    # As captured steps do it, which are prepared before they are replayed.
    prepared = method(batch, replace(early, prepared=True))
    for output, beta in ((method(batch, Progress(6, 10)), 1.8), (prepared, 1.4)):
        expected = metrics["loss_cells"] + beta * whole
        torch.testing.assert_close(output.loss.detach(), expected, rtol=1e-8, atol=0)
    assert "beta" not in method.state_dict()
    assert not method.why_not_captured()


def test_one_stage_can_have_negatives_of_other_images() -> None:
    config = config_of(queue_stages=("c4",), loss=LossConfig(top_k=4, queue_size=20))
    method = built(config)
    assert list(method.queues) == ["c4"]
    method(two_views(config, images=IMAGES), START)
    method.after_step(START)
    assert method.queues["c4"].filled == 2 * IMAGES


@pytest.mark.parametrize("kind", ["vicreg", "infonce"])
def test_a_single_image_is_refused_in_words(kind: Any) -> None:
    config = config_of(whole=WholeConfig(width=9, kind=kind))
    with pytest.raises(UserError, match="--micro-batch of 2"):
        built(config)(two_views(config, images=1), START)


@pytest.mark.parametrize("name", ["whole", "cells"])
def test_infonce_can_take_the_place_of_either_loss(name: str) -> None:
    changes: dict[str, Any] = {
        "whole": {"whole": WholeConfig(width=9, kind="infonce")},
        "cells": {"loss": LossConfig(kind="infonce", queue_size=20)},
    }[name]
    config = config_of(**changes)
    method = built(config)
    output = method(two_views(config, images=IMAGES), MEASURED)
    output.loss.backward()
    for key, parameter in method.named_parameters():
        assert (parameter.grad is None) == key.startswith("teacher."), key
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), key


@pytest.mark.parametrize("banked", [False, True])
def test_cell_contrast_is_the_mean_over_pairs_of_one_positive_among_negatives(
    banked: bool,
) -> None:
    g = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 2, 3, 2, 2, generator=g, dtype=torch.float64)
    context, target = torch.nn.functional.normalize(maps, dim=2)
    matches = torch.zeros(2, 4, 4, dtype=torch.bool)
    matches[0, 1, 2] = matches[0, 1, 3] = matches[0, 0, 0] = True
    bank = torch.nn.functional.normalize(torch.randn(5, 3, generator=g, dtype=torch.float64))
    usable = torch.tensor([True, True, False, True, False])
    extra = {"bank": bank, "bank_mask": usable} if banked else {}
    found = contrast_cells(context, target, matches, temperature=0.5, **extra)
    losses = []
    for query, key in matches[0].nonzero().tolist():
        vector = context[0].flatten(1)[:, query]
        others = bank[usable].T if banked else target[0].flatten(1)[:, ~matches[0, query]]
        near = (vector @ target[0].flatten(1)[:, key] / 0.5).exp()
        far = (vector @ others / 0.5).exp().sum()
        losses.append(-(near / (near + far)).log())
    assert found.loss[0].item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    assert found.loss[1] == 0


def test_cells_that_all_match_leave_finite_gradients_of_the_contrast() -> None:
    context = torch.randn(1, 3, 2, 2, requires_grad=True)
    matches = torch.ones(1, 4, 4, dtype=torch.bool)
    contrast_cells(context, context.detach(), matches, temperature=0.2).loss.sum().backward()
    assert context.grad is not None
    assert torch.isfinite(context.grad).all()


def test_reflection_changes_the_edges_alone() -> None:
    plain = torch.nn.Conv2d(1, 1, 3, padding=1)
    mirrored = copy.deepcopy(plain)
    set_padding(mirrored, "reflect")
    image = torch.rand(1, 1, 6, 6)
    one, other = plain(image), mirrored(image)
    torch.testing.assert_close(one[..., 1:-1, 1:-1], other[..., 1:-1, 1:-1])
    assert not torch.allclose(one[..., 0, :], other[..., 0, :])


def test_a_reflecting_backbone_has_the_same_weights_and_runs_in_pieces() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18")).train()
    names = list(backbone.state_dict())
    set_padding(backbone, "reflect")
    pieces = copy.deepcopy(backbone)
    compile_pieces(cut([pieces]), backend="eager")
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(
        pieces.features(images), backbone.features(images), atol=1e-4, rtol=1e-3
    )
    assert list(backbone.state_dict()) == names


@pytest.mark.parametrize("changes", [{}, TAUGHT], ids=["own targets", "teacher"])
def test_only_what_is_trained_reflects(changes: dict[str, Any]) -> None:
    views = ViewsConfig(global_size=64, local_count=0)
    plain, mirrored = (
        config_of(padding=padding, views=views, **changes).build(
            build_backbone(BackboneConfig(name="resnet18"))
        )
        for padding in ("zeros", "reflect")
    )
    assert isinstance(plain, CLoVEPlus)
    assert isinstance(mirrored, CLoVEPlus)
    mirrored.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 64)
    for one, other in zip(mirrored.eval().encoders(), plain.eval().encoders(), strict=True):
        assert torch.equal(one.backbone.features(images), other.backbone.features(images))
    for one, other in zip(mirrored.train().encoders(), plain.train().encoders(), strict=True):
        assert not torch.allclose(one.backbone.features(images), other.backbone.features(images))


def test_views_too_small_to_be_mirrored_are_refused() -> None:
    views = ViewsConfig(global_size=64, local_size=32)
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    with pytest.raises(UserError, match="views of 32 pixels"):
        config_of(views=views, padding="reflect").build(backbone)


def test_maps_of_stages_come_from_one_pass_also_in_pieces() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18")).train()
    backbone.hand_out(("c3", "c4", "c5"))
    pieces = copy.deepcopy(backbone)
    compile_pieces(cut([pieces]), backend="eager")
    images = torch.randn(2, 3, 64, 64)
    whole, found, parts = backbone(images), backbone.maps(images), pieces.maps(images)
    assert list(found) == list(parts) == ["c3", "c4", "c5"]
    for stage, each in found.items():
        torch.testing.assert_close(each, whole[stage], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(parts[stage], each, atol=1e-4, rtol=1e-3)
    gradients = [
        torch.autograd.grad(maps["c5"].square().mean(), maps["c4"])[0] for maps in (found, parts)
    ]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-2)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("network", ["resnet18", "timm:test_resnet"])
def test_a_compiled_step_that_measures_is_near_the_plain_one(network: str) -> None:
    torch.manual_seed(0)
    config = config_of(views=ViewsConfig(global_size=64, local_size=32, local_count=2))
    method = config.build(build_backbone(BackboneConfig(name=network))).train()
    cpu = torch.device("cpu")
    batch = synthetic_batch(method.views(), 4, device=cpu, dtype=torch.float32)
    compiled = copy.deepcopy(method)
    compile_method(compiled, backend="aot_eager")
    outputs = []
    for each in (method, compiled):
        output = each(batch, MEASURED)
        output.loss.backward()
        each.after_step(MEASURED)
        outputs.append(output.loss.detach())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    assert isinstance(method, CLoVEPlus)
    assert isinstance(compiled, CLoVEPlus)
    torch.testing.assert_close(compiled.balance.ratio, method.balance.ratio, rtol=1e-3, atol=0)
    for mine, theirs in zip(method.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-2, atol=1e-4)


def test_place_is_read_from_features_that_have_it_and_from_no_others() -> None:
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(64, 6, 5, 5, generator=g)
    assert all(value < 0.05 for value in health.place_shares(noise).values())
    rows = torch.linspace(0, 3, 5)[:, None].expand(64, 1, 5, 5)
    shares = health.place_shares(torch.cat([noise, rows], dim=1))
    assert shares["place_share_height"] > 0.95
    assert shares["place_share_width"] < 0.05
    assert all(value == 0 for value in health.place_shares(noise[:, :, :1, :1]).values())


def test_health_figures_are_finite_scalars() -> None:
    config = config_of()
    method = built(config)
    figures = method.health(method(two_views(config, images=IMAGES), START))
    assert {"place_share_height", "effective_rank", "attention_entropy"} <= set(figures)
    assert all(value.ndim == 0 and torch.isfinite(value) for value in figures.values())


def test_the_state_dict_holds_every_tensor_once() -> None:
    own = {"encoder", "attentions", "whole_head", "balance"}
    for changes, wanted in (({}, own), (TAUGHT, own | {"teacher"})):
        roots = {name.split(".")[0] for name in built(config_of(**changes)).state_dict()}
        assert roots == wanted


def test_a_stage_that_does_not_run_cannot_have_a_loss() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c4"))
    with pytest.raises(UserError, match="--method.stages c4"):
        CLoVEPlusConfig().build(backbone)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"stages": ()}, "at least one"),
        ({"stages": ("c4", "c4")}, "twice"),
        ({"queue_stages": ("c3",)}, "--method.stages"),
        ({"queue_stages": ("c4",), "loss": LossConfig(kind="l2")}, "l2, which has no negatives"),
        ({"teacher": TeacherConfig(momentum=0.9)}, "--method.targets teacher"),
        ({"export": "teacher"}, "--method.targets teacher"),
    ],
)
def test_choices_that_make_no_sense_are_refused(changes: dict[str, Any], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        CLoVEPlusConfig(**changes)


def test_what_is_said_of_the_losses_is_what_they_are() -> None:
    falling = WholeConfig(schedule="linear", final_beta=0.5)
    said = CLoVEPlusConfig(loss=LossConfig(kind="infonce"), whole=falling).summary()
    assert said["loss"] == "infonce, 14 terms"
    assert said["whole images"] == "vicreg, beta 3 to 0.5 (linear), balance measured"
    assert CLoVEPlusConfig().summary()["loss"] == "ranking (release form), 14 terms"


@pytest.mark.parametrize("size", ["r18-small", "r50-200ep"])
def test_recipes_differ_from_cloves_in_the_method_and_sizes_of_weights(size: str) -> None:
    plus, clove = (recipe(f"{name}-{size}", Path("run")) for name in ("clove-plus", "clove"))
    assert plus.backbone == replace(clove.backbone, stem_scale=16.0, last_norm=0.5)
    assert replace(plus, method=clove.method, backbone=clove.backbone) == clove
    assert plus.method.view_specs() == clove.method.view_specs()
