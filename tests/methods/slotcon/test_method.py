"""SlotCon: overlap, formulas, and who is compared with whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from builders.batches.two_views import IMAGES, crops_of, two_views
from builders.tasks.tiny_backbone import TinyBackbone
from references.methods import slots as slow
from torch import Tensor
from torchvision.ops import roi_align

from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.slotcon import layout
from clove_ssl.methods.slotcon.config import SlotConConfig, SlotHeadConfig, SlotLossConfig
from clove_ssl.methods.slotcon.layout import active_first, room_for, true_first
from clove_ssl.methods.slotcon.loss import (
    contrast_slots,
    group_cells,
    keys_of,
    score_cells,
    slots_of,
    winners,
)
from clove_ssl.methods.slotcon.method import SlotCon, scores_of, slot_metrics
from clove_ssl.training.captured import why_not_captured
from clove_ssl.views.overlap import area_share, place_in_view, resample, shared_rectangle

START = Progress(step=0, total_steps=10)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def boxes(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def config_of(**changes: object) -> SlotConConfig:
    config = SlotConConfig(
        views=ViewsConfig(global_size=16, local_count=0),
        prototypes=7,
        head=SlotHeadConfig(hidden=10, out=8),
        teacher=TeacherConfig(momentum=1.0),  # a teacher that stands still can be compared with
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def method_of(config: SlotConConfig) -> SlotCon:
    torch.manual_seed(0)
    method = SlotCon(config, TinyBackbone()).double()  # type: ignore[arg-type]
    with torch.no_grad():  # large weights, and a teacher unlike its student
        for parameter in method.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        method.center.normal_(std=0.1)
    return method


def test_half_a_crop_is_shared_and_placed_in_both_views() -> None:
    left, right = boxes([0, 0, 40, 20]), boxes([20, 0, 60, 20])
    rectangle = shared_rectangle(left, right)
    assert rectangle.tolist() == [[20, 0, 40, 20]]
    assert area_share(rectangle, right).tolist() == [0.5]
    assert place_in_view(rectangle, left).tolist() == [[0.5, 0, 1, 1]]
    assert place_in_view(rectangle, right).tolist() == [[0, 0, 0.5, 1]]


def test_a_mirrored_view_is_walked_backwards() -> None:
    plain, mirrored = boxes([0, 0, 40, 20]), boxes([40, 0, 0, 20])
    rectangle = shared_rectangle(plain, mirrored)
    assert place_in_view(rectangle, mirrored).tolist() == [[1, 0, 0, 1]]
    maps = random(1, 2, 3, 3)
    assert torch.equal(resample(maps, place_in_view(rectangle, plain)), maps)
    assert torch.equal(resample(maps, place_in_view(rectangle, mirrored)), maps.flip(-1))


@pytest.mark.parametrize("box", [[50, 0, 60, 20], [40, 0, 60, 20], [0, 30, 40, 50]])
def test_views_apart_or_touching_share_nothing(box: list[float]) -> None:
    here = boxes([0, 0, 40, 20])
    assert area_share(shared_rectangle(here, boxes(box)), here).item() == 0


def test_resampling_is_roi_align_inside_the_map() -> None:
    torch.manual_seed(0)
    corners = torch.rand(20, 2, 2, dtype=torch.float64).sort(1).values  # low, high by x, y
    places = corners.flatten(1) * 0.99  # of a whole map rounding may make two samples of one
    maps = random(20, 3, 6, 5)
    scale = torch.tensor([5.0, 6.0, 5.0, 6.0], dtype=torch.float64)
    expected = roi_align(maps, list((places * scale)[:, None]), (6, 5), aligned=True)
    torch.testing.assert_close(resample(maps, places), expected, rtol=0, atol=1e-12)


def test_scores_are_cosines() -> None:
    cells, prototypes = random(2, 5, 2, 2), random(3, 5)
    found = score_cells(unit_vectors(cells, dim=1), unit_vectors(prototypes))
    assert found[1, 2, 0, 1].item() == pytest.approx(
        F.cosine_similarity(cells[1, :, 0, 1], prototypes[2], dim=0).item()
    )


def test_group_loss_and_slots_are_the_formulas() -> None:
    torch.manual_seed(0)
    student, teacher, center = random(2, 5, 2, 3), random(2, 5, 2, 3), random(5)
    expected = slow.group_loss(student, teacher, center, tq=0.1, tk=0.07)
    assert group_cells(student, teacher, center).mean().item() == pytest.approx(expected)
    projection = random(2, 4, 2, 3)
    torch.testing.assert_close(
        slots_of(projection, student), slow.slots(projection, student, 0.07), rtol=0, atol=1e-12
    )


def test_slots_of_some_prototypes_are_among_those_of_all() -> None:
    torch.manual_seed(0)
    projection, scores = random(2, 4, 2, 3), random(2, 5, 2, 3)
    some = torch.tensor([[4, 0], [1, 2]])
    expected = slots_of(projection, scores).take_along_dim(some[:, :, None], dim=1)
    found = slots_of(projection, scores, only=some)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def test_equal_certain_assignments_cost_nothing() -> None:
    scores = torch.zeros(1, 3, 1, 2, dtype=torch.float64)
    scores[0, 0, 0, 0] = scores[0, 2, 0, 1] = 10.0
    assert group_cells(scores, scores, torch.zeros(3)).item() == pytest.approx(0, abs=1e-12)


def test_active_slots_stand_in_front_in_order() -> None:
    active = torch.tensor([[False, True, False, False, True]])
    prototypes, taken = active_first(active, limit=3)
    assert prototypes[0, :2].tolist() == [1, 4]
    assert taken.tolist() == [[True, True, False]]


def all_of(values: Tensor) -> Tensor:
    return torch.ones(len(values), dtype=torch.bool)


def test_only_usable_keys_are_negatives() -> None:
    queries, keys = torch.eye(2, dtype=torch.float64)[:1], torch.eye(2, dtype=torch.float64)
    label = torch.tensor([0])
    one = contrast_slots(
        queries, keys_of(keys, torch.tensor([True, False])), label, all_of(queries)
    )
    assert one.loss == 0
    assert one.cosine == 1
    two = contrast_slots(queries, keys_of(keys, all_of(keys)), label, all_of(queries))
    expected = 0.4 * torch.log1p(torch.exp(torch.tensor(-5.0, dtype=torch.float64)))
    assert two.loss.item() == pytest.approx(expected.item())


def test_without_a_common_slot_the_loss_is_zero() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    keys = keys_of(random(4, 3), torch.ones(4, dtype=torch.bool))
    assert contrast_slots(random(0, 3), keys, none, none.bool()).loss == 0
    assert contrast_slots(random(2, 3), keys, none.new_zeros(2), none.new_zeros(2).bool()).loss == 0


def test_queries_that_do_not_count_change_nothing() -> None:
    torch.manual_seed(0)
    keys = keys_of(random(4, 3), torch.tensor([True, True, True, False]))
    queries, labels = random(3, 3).requires_grad_(), torch.tensor([1, 3, 0])
    counted = torch.tensor([True, False, True])  # the one whose own key does not count
    found = contrast_slots(queries, keys, labels, counted)
    found.loss.backward()
    assert queries.grad is not None
    assert queries.grad[1].tolist() == [0, 0, 0]
    assert queries.grad.isfinite().all()
    fewer = contrast_slots(queries[counted], keys, labels[counted], all_of(labels[counted]))
    torch.testing.assert_close(found.loss, fewer.loss)
    torch.testing.assert_close(found.cosine, fewer.cosine)


def test_gradients_of_all_losses_are_right() -> None:
    torch.manual_seed(0)
    teacher, center, keys = random(2, 4, 2, 2), random(4), random(6, 3)
    usable = torch.tensor([True, True, False, True, True, True])
    labels, counted = torch.tensor([0, 3, 2, 1]), torch.tensor([True, True, False, True])
    places = boxes([0.1, 0.2, 0.8, 0.9], [0.9, 0.0, 0.3, 0.5])

    def group(scores: Tensor) -> Tensor:
        aligned = resample(scores, places)
        return group_cells(aligned, teacher, center, student_temperature=1.0)

    def contrast(queries: Tensor) -> Tensor:
        found = contrast_slots(queries, keys_of(keys, usable), labels, counted, temperature=1.0)
        return found.loss

    def slots(projection: Tensor, prototypes: Tensor) -> Tensor:
        cells = unit_vectors(projection, dim=1)
        return slots_of(projection, score_cells(cells, unit_vectors(prototypes)), temperature=1.0)

    check = torch.autograd.gradcheck
    assert check(group, random(2, 4, 2, 2).requires_grad_())
    assert check(contrast, random(4, 3).requires_grad_())
    assert check(slots, (random(2, 3, 2, 2).requires_grad_(), random(4, 3).requires_grad_()))


def test_mixed_precision_does_not_reach_the_losses() -> None:
    torch.manual_seed(0)
    cells, prototypes, place = torch.randn(2, 3, 4, 4), torch.randn(5, 3), torch.rand(2, 4)
    usable, labels = torch.ones(5, dtype=torch.bool), torch.tensor([1, 4])

    def everything() -> list[Tensor]:
        scores = score_cells(cells, prototypes)
        slots = slots_of(cells, scores)
        contrast = contrast_slots(prototypes[:2], keys_of(slots[0], usable), labels, all_of(labels))
        return [scores, slots, resample(scores, place), contrast.loss]

    expected = everything()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = everything()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def slow_slot_loss(method: SlotCon, batch_views: tuple[Tensor, Tensor]) -> float:
    """One direction from the method's own networks, everything else by loops."""
    encoders = method.encoder, method.teacher.module
    projected = [encoder(view) for encoder, view in zip(encoders, batch_views, strict=True)]
    scores = [scores_of(p, e.prototypes) for p, e in zip(projected, encoders, strict=True)]
    mine, theirs = (
        slow.slots(maps.detach(), each.detach(), 0.07)
        for maps, each in zip(projected, scores, strict=True)
    )
    here, there = (slow.active(each) for each in scores)
    keys = {(b, k): theirs[b, k] for b in range(IMAGES) for k in there[b]}
    common = [(b, k) for b in range(IMAGES) for k in sorted(there[b] & here[b])]
    predicted = method.search.predictor(torch.stack([mine[b, k] for b, k in common])).detach()
    return slow.contrast(dict(zip(common, predicted, strict=True)), keys, 0.2)


def test_the_loss_on_slots_is_the_formula_in_both_directions() -> None:
    config = config_of(loss=SlotLossConfig(group_weight=0.0))
    method, batch = method_of(config), two_views(config)
    a, b = (view.pixels for view in batch.views)
    expected = slow_slot_loss(method, (a, b)) + slow_slot_loss(method, (b, a))
    output = method(batch, START)
    assert output.loss.item() == pytest.approx(expected, abs=1e-9)
    assert output.metrics["loss_slot"].item() == pytest.approx(expected, abs=1e-9)


def test_identical_views_group_their_whole_maps() -> None:
    config = config_of(loss=SlotLossConfig(group_weight=1.0))
    method, batch = method_of(config), two_views(config)
    batch = replace(batch, views=(batch.views[0], batch.views[0]))
    scores, targets = (
        scores_of(encoder(batch.views[0].pixels), encoder.prototypes)
        for encoder in (method.encoder, method.teacher.module)
    )
    expected = slow.group_loss(scores.detach(), targets, method.center, tq=0.1, tk=0.07)
    assert batch.views[0].geometry.flipped.any()  # and is un-mirrored on both sides alike
    assert method(batch, START).loss.item() == pytest.approx(2 * expected, abs=1e-9)


def test_pairs_without_overlap_have_no_loss_on_groups() -> None:
    config = config_of()
    output = method_of(config)(two_views(config, apart=True), START)
    assert output.metrics["images_without_overlap"] == 1
    assert output.metrics["loss_group"] == 0
    assert output.loss == output.metrics["loss_slot"] / 2


def test_a_pair_without_overlap_leaves_the_others_mean_alone() -> None:
    config = config_of(loss=SlotLossConfig(group_weight=1.0))
    method, batch = method_of(config), two_views(config)
    method.eval()  # with batch statistics every image would change with the batch
    kept = slice(0, IMAGES - 1)
    moved = batch.views[1].geometry.boxes.clone()
    moved[-1] += 1000
    views = (
        batch.views[0],
        replace(batch.views[1], geometry=replace(batch.views[1].geometry, boxes=moved)),
    )
    fewer = tuple(
        replace(
            view,
            pixels=view.pixels[kept],
            geometry=replace(
                view.geometry,
                boxes=view.geometry.boxes[kept],
                flipped=view.geometry.flipped[kept],
                flipped_vertically=view.geometry.flipped_vertically[kept],
            ),
        )
        for view in batch.views
    )
    with_apart = method(replace(batch, views=views), START).metrics
    without = method(replace(batch, views=fewer), START).metrics
    torch.testing.assert_close(with_apart["loss_group"], without["loss_group"])
    assert with_apart["images_without_overlap"].item() == pytest.approx(1 / IMAGES)


@pytest.mark.parametrize(("least", "counts"), [(0.01, True), (0.09, True), (0.11, False)])
def test_too_small_an_overlap_does_not_count(least: float, counts: bool) -> None:
    still = torch.zeros(1, dtype=torch.bool)
    first, second = (crops_of(boxes([x, 0]), boxes([40, 20]), still) for x in (0, 36))
    config = config_of(loss=SlotLossConfig(min_overlap=least))
    batch = two_views(config)
    views = tuple(
        replace(view, geometry=geometry)
        for view, geometry in zip(batch.views, (first, second), strict=True)
    )
    assert method_of(config)._shared_part(replace(batch, views=views)).exists.tolist() == [counts]


def test_the_centre_moves_once_per_step_towards_the_mean_score() -> None:
    config = config_of()
    method, batch = method_of(config), two_views(config)
    before = method.center.clone()
    method(batch, replace(START, closes_step=False))
    method(batch, START)
    assert torch.equal(method.center, before)
    method.after_step(START)
    teacher = method.teacher.module
    scores = torch.cat(
        [scores_of(teacher(view.pixels), teacher.prototypes) for view in batch.views]
    )
    expected = 0.9 * before + 0.1 * scores.mean((0, 2, 3))
    torch.testing.assert_close(method.center, expected)


def test_directions_are_predicted_together_but_normalised_apart() -> None:
    search = method_of(config_of()).search
    slots = random(2, 5, 8)
    counts = 5, 3
    common = [torch.arange(5) < count for count in counts]
    together = search.predict(slots, common)
    for found, rows, count in zip(together, slots, counts, strict=True):
        expected = search.predictor(rows[:count])
        torch.testing.assert_close(found[:count], expected, rtol=1e-9, atol=1e-9)


def outcome_of(config: SlotConConfig) -> list[Tensor]:
    """All that a step gives."""
    method, batch = method_of(config), two_views(config)
    output = method(batch, START)
    output.loss.backward()
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    return [output.loss.detach(), output.metrics["cos_slot"], *gradients, *method.buffers()]


@pytest.mark.parametrize("step", [1, 2, 5])
def test_room_for_more_slots_than_there_are_changes_nothing(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcome_of(config_of(slot_room="all"))
    monkeypatch.setattr(layout, "_ROOM_STEP", step)
    for found, each in zip(outcome_of(config_of()), expected, strict=True):
        torch.testing.assert_close(found, each, rtol=1e-9, atol=1e-11)


def test_with_room_for_all_slots_the_host_asks_for_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the host asks how many slots there are")

    monkeypatch.setattr(layout, "HostCopy", refuse)
    assert outcome_of(config_of(slot_room="all"))[0].isfinite()
    with pytest.raises(AssertionError, match="asks"):
        outcome_of(config_of())


def test_steps_with_room_for_all_slots_can_be_captured() -> None:
    method, batch = method_of(config_of(slot_room="all")), two_views(config_of())
    assert not why_not_captured(method)
    assert "common slots" in why_not_captured(method_of(config_of()))
    before = method.center.clone()
    method(batch, START)
    ((seen,),) = method.left_by_forward()  # what a replay has to hand on
    method.after_step(START)
    torch.testing.assert_close(method.center, before.lerp(seen, 0.1))


@pytest.mark.parametrize(("slots", "room"), [(0, 512), (1, 512), (512, 512), (513, 1024)])
def test_there_is_room_for_all_slots_and_some_more(slots: int, room: int) -> None:
    assert room_for(slots) == room


def test_metrics_count_slots_and_prototypes() -> None:
    scores = torch.zeros(2, 4, 1, 2)
    scores[0, 1], scores[1, 1, 0, 0], scores[1, 3, 0, 1] = 1.0, 1.0, 1.0
    assert winners(scores).tolist() == [[False, True, False, False], [False, True, False, True]]
    figures = slot_metrics(winners(scores))
    assert figures["slots_per_image"] == 1.5
    assert figures["prototypes_in_use"] == 0.5


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="local-count 0"):
        SlotConConfig(views=ViewsConfig())


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_true_places_of_a_mask_stand_in_front_in_order(share: float) -> None:
    mask = torch.rand(35, generator=torch.Generator().manual_seed(0)) < share
    places = true_first(mask)
    assert torch.equal(places[: mask.sum()], mask.nonzero()[:, 0])
    assert torch.equal(places.sort().values, torch.arange(35))
