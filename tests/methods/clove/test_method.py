"""CLoVE as a method: what is compared with what, and who moves when."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from builders.tasks.tiny_backbone import TinyBackbone
from torch import Tensor, nn

from clove_ssl.config.views import ViewsConfig
from clove_ssl.losses import clove_loss, matched_cosine_loss
from clove_ssl.methods.base import Progress
from clove_ssl.methods.clove.cell_terms import scattered_cells
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.clove.method import CLoVE
from clove_ssl.methods.config import MatchingConfig, ProjectorConfig, TeacherConfig
from clove_ssl.optimizers import LARS
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry, match_cells

IMAGES = 3
START = Progress(step=0, total_steps=10)
VARIANTS = {
    "release": LossConfig(),
    "paper": LossConfig(form="paper"),
    "l2": LossConfig(kind="l2"),
    "inter": LossConfig(negatives="inter", queue_size=10),
    "inter-avg": LossConfig(negatives="inter-avg", queue_size=10),
}


def config_of(loss: LossConfig | None = None, **changes: object) -> CLoVEConfig:
    config = CLoVEConfig(
        views=ViewsConfig(global_size=24, local_size=12, local_count=2),
        projector=ProjectorConfig(hidden=10, out=8),
        attention=AttentionConfig(heads=2),
        loss=loss or LossConfig(),
    )
    return replace(config, **changes)


def method_of(config: CLoVEConfig) -> CLoVE:
    torch.manual_seed(0)
    method = CLoVE(config, TinyBackbone()).double()  # type: ignore[arg-type]
    with torch.no_grad():  # a teacher unlike its student, so that mistaking them shows
        for parameter in method.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


def batch_of(config: CLoVEConfig, seed: int = 0, *, apart: bool = False) -> ViewBatch:
    """Random crops of 100 x 80 pixel images; ``apart`` puts them where nothing matches."""
    g = torch.Generator().manual_seed(seed)
    views = []
    for number, spec in enumerate(config.view_specs()):
        corner = (
            torch.rand(IMAGES, 2, generator=g, dtype=torch.float64) * 30 + 1000 * apart * number
        )
        extent = torch.rand(IMAGES, 2, generator=g, dtype=torch.float64) * 20 + 30
        geometry = CropGeometry(
            boxes=torch.cat([corner, corner + extent], dim=1),
            flipped=torch.rand(IMAGES, generator=g) < 0.5,
            flipped_vertically=torch.zeros(IMAGES, dtype=torch.bool),
            image_size=torch.tensor([[80, 100]]).expand(IMAGES, 2),
        )
        pixels = torch.randn(IMAGES, 3, spec.size, spec.size, generator=g, dtype=torch.float64)
        views.append(View(pixels, geometry, spec.role))
    return ViewBatch(tuple(views), torch.arange(IMAGES))


def term_by_term(method: CLoVE, batch: ViewBatch, *, joint: bool = True) -> dict[str, list[Tensor]]:
    """The loss of every pair of views, one call each, from the method's own networks."""
    config = method.config

    def by_view(network: nn.Module, views: list[View]) -> list[Tensor]:
        pixels = [view.pixels for view in views]
        if joint:
            return list(network(torch.cat(pixels)).split(IMAGES))
        return [network(images) for images in pixels]

    def loss(context: Tensor, target: Tensor, student: View, teacher: View) -> Tensor:
        matches = match_cells(
            student.geometry.signed_boxes(config.matching.coordinates),
            teacher.geometry.signed_boxes(config.matching.coordinates),
            tuple(context.shape[2:]),
            tuple(target.shape[2:]),
            config.matching.threshold,
            unit=config.matching.unit,
        )
        context, target = F.normalize(context, dim=1), F.normalize(target, dim=1)
        if config.loss.kind == "l2":
            return matched_cosine_loss(context, target, matches)
        reduction = "mean" if config.loss.form == "paper" else "sum"
        form = config.loss.form
        return clove_loss(context, target, matches, form=form, pair_reduction=reduction)

    large = [view for view in batch.views if view.role == "global"]
    small = [view for view in batch.views if view.role == "local"]
    targets = by_view(method.teacher, large)
    terms: dict[str, list[Tensor]] = {"global": [], "local": []}
    for i, context in enumerate(by_view(method.encoder, large)):
        for j, target in enumerate(targets):
            if i != j:
                mixed = method.attention(context)
                terms["global"].append(loss(mixed, target, large[i], large[j]))
    for i, context in enumerate(by_view(method.encoder, small) if small else []):
        for j, target in enumerate(targets):
            terms["local"].append(loss(method.attention(context), target, small[i], large[j]))
    return terms


def still_teacher(config: CLoVEConfig) -> CLoVEConfig:
    return replace(config, teacher=TeacherConfig(momentum=1.0))


@pytest.mark.parametrize(
    "config",
    [
        config_of(),
        config_of(views=ViewsConfig(global_size=24, local_count=0)),
        config_of(views=ViewsConfig(global_count=3, global_size=24, local_size=12, local_count=1)),
        config_of(joint_views=False),
        config_of(LossConfig(form="paper")),
        config_of(LossConfig(kind="l2")),
        config_of(attention=AttentionConfig(kind="plain", heads=4)),
        config_of(matching=MatchingConfig(threshold=0.5, unit="query", coordinates="pixel")),
    ],
    ids=["default", "2-view", "3-large", "separate", "paper", "l2", "plain", "matching"],
)
def test_the_loss_is_the_mean_of_the_terms_of_all_pairs(config: CLoVEConfig) -> None:
    config = still_teacher(config)
    method, batch = method_of(config), batch_of(config)
    terms = term_by_term(method, batch, joint=config.joint_views)
    both = terms["global"] + terms["local"]
    assert len(both) == config.loss_terms()
    loss = method(batch, START).loss
    torch.testing.assert_close(loss, torch.stack(both).mean(), rtol=1e-10, atol=1e-10)


def test_joint_and_separate_views_are_normalised_differently() -> None:
    losses = []
    for joint in (True, False):
        config = still_teacher(config_of(joint_views=joint))
        losses.append(method_of(config)(batch_of(config), START).loss.item())
    assert losses[0] != pytest.approx(losses[1], abs=1e-6)


def test_local_weight_weighs_the_terms_of_small_views() -> None:
    config = still_teacher(config_of(LossConfig(local_weight=0.25)))
    method, batch = method_of(config), batch_of(config)
    terms = term_by_term(method, batch)
    expected = (sum(terms["global"]) + 0.25 * sum(terms["local"])) / (2 + 0.25 * 4)
    torch.testing.assert_close(method(batch, START).loss, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("apart", [False, True], ids=["overlapping", "apart"])
def test_every_trained_parameter_gets_a_finite_gradient(variant: str, apart: bool) -> None:
    config = config_of(VARIANTS[variant])
    method = method_of(config)
    method(batch_of(config, apart=apart), START).loss.backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is None) == name.startswith("teacher."), name
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_metrics_are_finite_detached_scalars_and_contain_the_headline(variant: str) -> None:
    config = config_of(VARIANTS[variant])
    method = method_of(config)
    output = method(batch_of(config), START)
    assert set(method.headline) <= set(output.metrics)
    assert ("loss_excess" in output.metrics) == (variant != "l2")
    for name, value in output.metrics.items():
        assert value.ndim == 0, name
        assert torch.isfinite(value), name
        assert not value.requires_grad, name


def test_metrics_explain_the_release_loss() -> None:
    config = config_of(views=ViewsConfig(global_size=24, local_count=0))
    output = method_of(config)(batch_of(config), START)
    figures = output.metrics
    matched = 1 - figures["images_without_match"]
    expected = 2 * figures["cos_negative"] - 4 * figures["cos_positive"] * matched
    assert figures["loss_excess"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert output.loss.item() == pytest.approx(100 + figures["loss_excess"].item(), abs=1e-9)


def test_views_without_overlap_show_up_in_the_metrics() -> None:
    config = config_of()
    metrics = method_of(config)(batch_of(config, apart=True), START).metrics
    assert metrics["images_without_match"] == metrics["cells_without_match"] == 1
    assert metrics["positives_per_image_global"] == metrics["positives_per_image_local"] == 0
    assert metrics["cos_positive"] == 0


def teacher_weights(method: CLoVE) -> Tensor:
    return nn.utils.parameters_to_vector(method.teacher.parameters()).clone()


def test_the_teacher_moves_once_per_step_before_its_closing_forward() -> None:
    config = config_of()
    method, batch = method_of(config), batch_of(config)
    before = teacher_weights(method)
    method(batch, replace(START, closes_step=False))
    assert torch.equal(teacher_weights(method), before)
    method(batch, START)
    student = nn.utils.parameters_to_vector(method.encoder.parameters())
    expected = 0.99 * before + 0.01 * student
    torch.testing.assert_close(teacher_weights(method), expected)
    method.after_step(START)
    torch.testing.assert_close(teacher_weights(method), expected)


def test_the_teacher_can_move_after_the_step_instead() -> None:
    config = config_of(teacher=TeacherConfig(update="after-step"))
    method = method_of(config)
    before = teacher_weights(method)
    method(batch_of(config), START)
    assert torch.equal(teacher_weights(method), before)
    method.after_step(START)
    assert not torch.equal(teacher_weights(method), before)


def test_in_eval_mode_a_forward_pass_changes_nothing() -> None:
    config = config_of(VARIANTS["inter"])
    method = method_of(config).eval()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method(batch_of(config), START)
    method.after_step(START)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_the_teachers_momentum_follows_a_cosine_over_the_run() -> None:
    method = method_of(config_of())
    momenta = [method.teacher_momentum(Progress(step, 10)) for step in (0, 5, 10)]
    assert momenta == pytest.approx([0.99, 0.995, 1.0])


def test_an_eval_mode_teacher_normalises_with_averaged_statistics() -> None:
    config = config_of(teacher=TeacherConfig(mode="eval"))
    method = method_of(config)
    method.train()
    method(batch_of(config), replace(START, closes_step=False))
    theirs = method.encoder.projector.norm1.running_mean.clone()  # when the closing pass begins
    method(batch_of(config), START)
    mine = method.teacher.module.projector.norm1.running_mean
    torch.testing.assert_close(mine, 0.01 * theirs)


@pytest.mark.parametrize("kind", ["inter", "inter-avg"])
def test_the_queue_gets_one_unit_row_per_large_view_and_image_once_per_step(kind: str) -> None:
    config = still_teacher(config_of(replace(VARIANTS[kind], queue_size=20)))
    method = method_of(config)
    batches = [batch_of(config, seed) for seed in range(2)]
    method(batches[0], replace(START, closes_step=False))
    method(batches[1], START)
    assert method.queue is not None
    assert method.queue.filled == 0
    method.after_step(START)
    assert method.queue.filled == 2 * 2 * IMAGES
    rows = method.queue.entries[method.queue.usable()]
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows), dtype=torch.float64))
    for number, row in enumerate(rows):
        batch, image, view = batches[number // 6], (number % 6) // 2, number % 2
        pixels = torch.cat([v.pixels for v in batch.views if v.role == "global"])
        cells = method.teacher(pixels).split(IMAGES)[view][image].flatten(1)  # (D, L)
        candidates = cells if kind == "inter" else cells.mean(1, keepdim=True)
        cosines = row @ F.normalize(candidates, dim=0)
        assert cosines.max().item() == pytest.approx(1.0, abs=1e-9)
    method.after_step(START)
    assert method.queue.filled == 2 * 2 * IMAGES


def test_negatives_come_from_the_queue_once_it_holds_some() -> None:
    config = still_teacher(config_of(VARIANTS["inter"]))
    method, batch = method_of(config), batch_of(config)
    empty = method(batch, START)
    assert empty.metrics["cos_negative"] == 0
    assert empty.metrics["cells_short_of_negatives"] == 1
    method.after_step(START)
    method(batch, START)
    method.after_step(START)
    full = method(batch, START)
    assert full.metrics["cos_negative"] != 0
    assert full.metrics["cells_short_of_negatives"] == 0


def test_scattered_cells_repeat_exactly_and_cover_the_map_evenly() -> None:
    maps, index, views = torch.zeros(1, 1, 7, 7), torch.arange(2000), torch.arange(2)
    cells = scattered_cells(index, views, 5, maps)
    assert torch.equal(cells, scattered_cells(index, views, 5, maps))
    assert not torch.equal(cells, scattered_cells(index, views, 6, maps))
    counts = cells.bincount(minlength=49)
    assert len(counts) == 49
    expected = 4000 / 49
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 85  # 0.1 % of even draws exceed this with 48 degrees of freedom
    first, second = cells.split(2000)
    assert (first == second).float().mean() < 0.05  # views choose on their own


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_restored_method_continues_exactly(variant: str) -> None:
    config = config_of(VARIANTS[variant])
    method, twin = method_of(config), method_of(config)
    train(method, steps=2)
    twin.load_state_dict(method.state_dict())
    batch = batch_of(config, seed=7)
    assert torch.equal(method(batch, START).loss, twin(batch, START).loss)


def train(method: CLoVE, *, steps: int) -> list[float]:
    trained = [p for p in method.parameters() if p.requires_grad]
    optimizer = LARS(trained, lr=1.0, trust=0.02)
    losses = []
    for step in range(steps):
        progress = Progress(step, steps)
        output = method(batch_of(method.config), progress)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        method.after_step(progress)
        losses.append(output.loss.item())
    return losses


@pytest.mark.parametrize("variant", ["release", "paper", "l2"])
def test_training_on_one_batch_lowers_the_loss(variant: str) -> None:
    losses = train(method_of(config_of(VARIANTS[variant])), steps=12)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_reads_nothing_back_from_the_device(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Meta tensors have no values: reading one on the host would raise. Autocast knows no such
    # device, and switching it off has no part in this.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    config = config_of(VARIANTS[variant])
    method = method_of(config).to("meta")
    output = method(batch_of(config).to("meta"), START)
    output.loss.backward()
    method.after_step(START)
    assert output.loss.device.type == "meta"


def test_health_figures_are_finite_and_named() -> None:
    config = config_of()
    method = method_of(config)
    output = method(batch_of(config), START)
    assert output.artifacts["embeddings"].shape == (IMAGES * 36, 8)
    figures = method.health(output)
    assert set(figures) == {
        "feature_std",
        "effective_rank",
        "attention_entropy",
        "teacher_distance",
    }
    assert all(torch.isfinite(value) and value.ndim == 0 for value in figures.values())
    assert not any(value.requires_grad for value in figures.values())
    assert 1 <= figures["effective_rank"] <= 8


def test_the_exported_branch_is_the_configured_one() -> None:
    student = method_of(config_of())
    assert student.export_backbone() is student.encoder.backbone is student.backbone
    teacher = method_of(config_of(export="teacher"))
    assert teacher.export_backbone() is teacher.teacher.module.backbone


def test_the_state_dict_holds_every_tensor_once() -> None:
    method = method_of(config_of(VARIANTS["inter"]))
    roots = {name.split(".")[0] for name in method.state_dict()}
    assert roots == {"encoder", "attention", "teacher", "queue"}
    assert sum(name.endswith("backbone.conv.weight") for name in method.state_dict()) == 2


def test_views_are_those_of_the_config() -> None:
    config = config_of()
    assert method_of(config).views() == config.view_specs()
