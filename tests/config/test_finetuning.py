"""Protocols of the downstream tasks: complete, strict, and open about what a user changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clove_ssl import cli
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.finetuning.plan import plan_finetuning
from clove_ssl.registry import TASKS
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.weights.safetensors_file import save_backbone


def of(task: str, **changes: Any) -> FinetuneConfig:
    return replace(protocol(task, Path("RUN"), "random"), **changes)


def test_the_sheets_of_the_protocols() -> None:
    voc, coco, points = (of(task) for task in ("voc-c4", "coco-fpn", "coco-keypoints"))
    assert (voc.solver.iterations, voc.solver.steps) == (24_000, (18_000, 22_000))
    assert voc.solver.warmup_iterations == 100
    assert (coco.solver.iterations, coco.solver.steps) == (90_000, (60_000, 80_000))
    assert coco.solver.warmup_iterations == 1000
    for config in (voc, coco, points):
        solver, task = config.solver, config.task
        assert isinstance(task, DetectionConfig)
        assert (solver.lr, solver.batch_size, solver.momentum) == (0.02, 16, 0.9)
        assert (solver.weight_decay, solver.warmup_factor, solver.decay) == (1e-4, 0.001, 0.1)
        assert (task.test_side, task.longest, config.precision) == (800, 1333, "fp32")
        assert (task.detector.frozen_stages, task.detector.backbone_norm) == (0, "batch")
        assert config.evaluation.precise_norm_batches == 200
    assert voc.task.train_sides == tuple(range(480, 801, 32))
    assert coco.task.train_sides == (640, 672, 704, 736, 768, 800)
    assert coco.task.detector.box.convs == 4
    assert points.task.detector.box.loss_beta == 0.5
    assert points.task.detector.proposals.train_after_nms == 1500
    assert not of("voc-c4").task.detector.masks
    assert of("coco-c4").task.detector.masks


@pytest.mark.parametrize("task", TASKS.names())
def test_a_config_survives_its_file(tmp_path: Path, task: str) -> None:
    config = of(task, batch_size=4, lr=0.1)
    files.save(config, tmp_path / "config.yaml")
    assert files.load(FinetuneConfig, tmp_path / "config.yaml") == config


@pytest.mark.parametrize("task", TASKS.names())
def test_the_published_protocol_has_no_difference_to_name(task: str) -> None:
    assert of(task).differences() == []


def test_a_shorter_run_keeps_the_shape_of_the_schedule() -> None:
    plan = plan_finetuning(of("coco-fpn", iterations=900), images=100, processes=1)
    assert (plan.total_steps, plan.warmup_steps, plan.decay_steps) == (900, 90, (600, 800))
    rate = plan.lr()
    assert rate(0) == pytest.approx(0.02 * 0.001)
    assert rate(90) == rate(599) == 0.02
    assert rate(600) == pytest.approx(0.002)
    assert rate(899) == pytest.approx(0.0002)


@pytest.mark.parametrize(
    ("task", "changes", "warmup", "said"),
    [
        ("coco-fpn", {"iterations": 30_000}, 1000, ""),
        ("coco-fpn", {"iterations": 180_000}, 1000, ""),
        ("coco-fpn", {"iterations": 2000}, 200, "200 steps of warm-up instead of 1,000, at"),
        ("voc-c4", {"iterations": 2000}, 100, ""),
        ("voc-semantic", {"iterations": 2000}, 0, ""),
        ("coco-fpn", {"iterations": 10, "warmup_iterations": 7}, 7, "instead of 1,000, as asked"),
        ("coco-fpn", {"warmup_iterations": 0}, 0, "0 steps of warm-up instead of 1,000"),
    ],
)
def test_a_shorter_run_keeps_its_warm_up_up_to_a_tenth(
    task: str, changes: dict[str, int], warmup: int, said: str
) -> None:
    config = of(task, **changes)
    assert plan_finetuning(config, images=100, processes=1).warmup_steps == warmup
    differences = " ".join(config.differences())
    assert said in differences
    assert ("warm-up" in differences) == bool(said)


def test_another_batch_moves_the_rate_and_not_the_schedule() -> None:
    config = of("voc-c4", batch_size=8)
    plan = plan_finetuning(config, images=100, processes=2)
    assert (plan.peak_lr, plan.total_steps, plan.micro_batch) == (0.01, 24_000, 4)
    said = " ".join(config.differences())
    assert "8 images a step instead of 16" in said
    assert "0.01 instead of 0.02" in said
    assert "stays at 24,000" in said


def test_a_rate_that_was_asked_for_is_taken_as_it_is() -> None:
    config = of("voc-c4", batch_size=8, lr=0.5)
    assert config.peak_lr == 0.5
    assert any("as asked" in difference for difference in config.differences())


def test_settings_behind_the_protocol_are_named_when_they_change() -> None:
    config = of("cityscapes-fpn", micro_batch=2)
    detector = replace(config.task.detector, frozen_stages=0)
    solver = replace(config.solver, steps=(9000, 12_000))
    said = " ".join(
        replace(config, task=replace(config.task, detector=detector), solver=solver).differences()
    )
    assert "task.detector.frozen-stages 0 (published: 2)" in said
    assert "solver.steps 9000 12000 (published: 18000)" in said
    assert "see those instead of all 8" in said
    densepose = of("coco-densepose")
    assert not replace(densepose, task=replace(densepose.task, surface=Path("x"))).differences()


def test_evaluations_fall_on_their_iterations() -> None:
    config = of("voc-c4", iterations=10)
    config = replace(config, evaluation=replace(config.evaluation, every=4))
    plan = plan_finetuning(config, images=100, processes=1)
    assert list(plan.evaluations(0)) == [4, 8, 10]
    assert list(plan.evaluations(8)) == [8, 10]
    assert [step for step in range(1, 11) if plan.writes_checkpoint(step)] == [4, 8, 10]


def test_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="--batch-size 15 or 18"):
        plan_finetuning(of("voc-c4"), images=100, processes=3)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    path = tmp_path / "backbone.safetensors"
    save_backbone(backbone, path, {"method": "clove", "config_hash": "0"})
    return path


BASE = ["finetune", "voc-semantic", "--out", "OUT", "--device", "cpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune"], "needs a task"),
        (["finetune", "voc-c5", "--out", "OUT"], "Did you mean 'voc-c4'?"),
        (BASE, "--backbone"),
        ([*BASE, "--backbone", "nowhere"], "nowhere does not exist"),
        ([*BASE, "--backbone", "random", "--architecture", "resnet5"], "resnet5"),
        ([*BASE, "--backbone", "random", "--data", "nowhere"], "nowhere"),
        ([*BASE, "--backbone", "random", "--fraction", "2"], "--fraction is 2; expected"),
        (
            [*BASE, "--backbone", "random", "--iterations", "0"],
            "--iterations is 0; expected a whole number from 1",
        ),
        ([*BASE, "--backbone", "random", "--lr", "-1"], "above 0"),
        ([*BASE, "--backbone", "random", "--precision", "bf16"], "needs a GPU"),
        ([*BASE, "--backbone", "random", "--micro-batch", "5"], "micro_batch=5"),
        ([*BASE, "--backbone", "WEIGHTS", "--architecture", "resnet34"], "holds a resnet18"),
        ([*BASE, "--backbone", "random", "--data.train-annotations", "a.json"], "VOC folder"),
        (["finetune", "coco-fpn", *BASE[2:], "--backbone", "random", "--data", "."], "COCO"),
        (
            ["finetune", "coco-c4", *BASE[2:], "--backbone", "random", "--data.train-lists", "a"],
            "has no lists",
        ),
        (["score", "OUT"], "does not exist"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_mistakes_are_named_before_anything_is_written(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    weights: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"OUT": str(tmp_path / "out"), "WEIGHTS": str(weights)}
    try:
        code = cli.main([places.get(argument, argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.err + captured.out).split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "names", [("--steps", "--warmup-steps"), ("--iterations", "--warmup-iterations")]
)
def test_steps_have_one_name_and_the_old_one_is_still_read(
    tmp_path: Path, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[FinetuneConfig] = []
    monkeypatch.setattr(
        "clove_ssl.finetuning.seeds.finetune", lambda config, **_: started.append(config)
    )
    lengths = [names[0], "40", names[1], "3"]
    assert cli.main([*BASE, "--backbone", "random", "--out", str(tmp_path), *lengths]) == 0
    assert (started[0].total_iterations, started[0].warmup) == (40, 3)
    assert "iterations: 40\n" in files.to_yaml(started[0])  # as the files of older runs have it
    assert not any("iteration" in each for each in started[0].differences())
