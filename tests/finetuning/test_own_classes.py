"""Runs on data of one's own: fitted to the data, evaluated on the way, the best model kept."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.interruptions import crash_after
from builders.runs.tiny_finetuning import SIDE, tiny_finetuning

from clove_ssl import cli, load_finetuned
from clove_ssl.config import files
from clove_ssl.config.finetuning import (
    EvaluationConfig,
    FinetuneConfig,
    LabelledDataConfig,
    protocol,
)
from clove_ssl.errors import UserError
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.finetuning.best import BestModel
from clove_ssl.finetuning.fitting import CPU_MINUTES, with_schedule
from clove_ssl.finetuning.plan import plan_finetuning
from clove_ssl.finetuning.trial import Pace
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.detection.scenes import write_coco_scenes
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable, write_scores


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco_scenes(root, "train", count=6, size=SIDE)
    write_coco_scenes(root, "test", count=3, size=SIDE)
    return root


def tiny(task: str, out: Path, root: Path, *, every: int = 2) -> FinetuneConfig:
    return replace(
        tiny_finetuning(task, out),
        evaluation=EvaluationConfig(precise_norm_batches=1, pictures=2, every=every, best=True),
        data=LabelledDataConfig(root=root, workers=0),
    )


HEADLINES = {
    "detect": "box_AP",
    "instances": "mask_AP",
    "keypoints": "keypoints_AP",
}


@pytest.mark.parametrize("task", HEADLINES)
def test_a_task_runs_from_own_files_to_a_model(
    tmp_path: Path, scenes: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = finetuning.finetune(tiny(task, tmp_path / "run", scenes))
    run = RunDirectory(result.run)
    said = capsys.readouterr().out
    assert result.finished
    assert next(iter(result.scores)) == HEADLINES[task]
    assert "protocol" not in said
    assert "time           about" in said
    assert list(run.pictures.glob("*.png"))
    assert not list(run.path.glob("evaluations/*/export/*"))
    model = load_finetuned(run.path)
    assert "person" in model.class_names
    model.predict(sorted((scenes / "images/test").glob("*.png"))[0])
    config = files.load(FinetuneConfig, run.config)
    assert config.lr is not None
    assert config.evaluation.every == 2
    before = run.scores.read_text()
    assert cli.main(["score", str(run.path)]) == 0
    assert run.scores.read_text() == before


def test_boxes_alone_train_a_box_detector(tmp_path: Path, scenes: Path) -> None:
    for split in ("train", "test"):
        content = json.loads((scenes / f"annotations/instances_{split}.json").read_text())
        for entry in content["annotations"]:
            del entry["segmentation"]
        (tmp_path / f"{split}.json").write_text(json.dumps(content))
    data = LabelledDataConfig(
        train_annotations=tmp_path / "train.json",
        train_images=scenes / "images/train",
        test_annotations=tmp_path / "test.json",
        test_images=scenes / "images/test",
        workers=0,
    )
    task = tiny_finetuning("instances", tmp_path / "run").task.build()
    read = task.read(data)
    assert "boxes alone are learned" in read.problems[-1]
    fitted: Any = task.adapted(read, on_gpu=False)
    assert not fitted.detector.masks
    assert fitted.build().labels == "boxes"


def test_a_resumed_run_decides_as_the_uninterrupted_one(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finetuning.finetune(tiny("segment", tmp_path / "whole", scenes, every=1))
    assert next(iter(whole.scores)) == "pixels_mIoU"
    config = tiny("segment", tmp_path / "part", scenes, every=1)
    crash_after(1, monkeypatch, config, finetuning.finetune)
    assert not RunDirectory(config.out).scores.is_file()
    resumed = finetuning.resume(config.out)
    assert resumed.scores == whole.scores
    assert load_finetuned(resumed.run).class_names[0] == "background"


def evaluated(run: RunDirectory, scores: dict[int, float]) -> None:
    for step, value in scores.items():
        table = ScoreTable("box", "a rule", {"AP": value}, {})
        write_scores(run.evaluation(step).scores, Scores((table,), images=1))
        run.evaluation(step).predictions.mkdir(parents=True)
        run.evaluation(step).model.parent.mkdir(parents=True)
        run.evaluation(step).model.write_text(str(step))
        run.evaluation(step).backbone.write_text(str(step))


def test_the_best_model_is_kept_and_patience_counts_from_the_first_decay(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    config = protocol("detect", tmp_path, "random")
    config = replace(
        config, iterations=100, evaluation=EvaluationConfig(every=10, best=True, patience=2)
    )
    best = BestModel(run, plan_finetuning(config, images=9, processes=1), patience=2)
    evaluated(run, {10: 0.1, 20: 0.4, 30: 0.3, 40: 0.2, 50: 0.2, 60: 0.2, 70: 0.2, 80: 0.2})
    assert best.keep(20)
    assert not best.keep(60)
    assert not best.ends_after(60), "the learning rate falls at 70 for the first time"
    assert not best.ends_after(80)
    assert [path.parts[-3] for path in run.path.glob("evaluations/*/export/*.safetensors")][:1] == [
        "iteration-000000020"
    ]
    evaluated(run, {90: 0.1})
    assert best.ends_after(90)
    assert best.hand_out(90) == 20
    assert run.model.read_text() == "20"
    assert best.hand_out(90) == 20, "an interrupted end can be repeated"


def test_a_full_disk_at_the_very_end_is_told_and_the_end_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = RunDirectory(tmp_path)
    config = replace(protocol("detect", tmp_path, "random"), iterations=10)
    best = BestModel(run, plan_finetuning(config, images=9, processes=1), patience=None)
    evaluated(run, {10: 0.1})
    (run.evaluation(10).predictions / "detections.json").write_text("[]")
    with monkeypatch.context() as patch:
        patch.setattr("clove_ssl.finetuning.best.shutil.copyfile", full)
        with pytest.raises(UserError, match=r"the disk is full.*clove resume"):
            best.hand_out(10)
    assert not run.scores.exists()
    assert best.hand_out(10) == 10
    assert (run.predictions / "detections.json").read_text() == "[]"


DATA = TaskData(None, None, train_images=1000, test_images=100, class_names=("cup",))


def scheduled(pace: Pace, *, on_gpu: bool = True, images: int = 1000, **changes: Any) -> Any:
    config = replace(protocol("detect", Path("RUN"), "random"), batch_size=16, **changes)
    return with_schedule(config, replace(DATA, train_images=images), pace, on_gpu=on_gpu)


def test_the_schedule_follows_the_data_and_the_budget() -> None:
    pace = Pace(step=0.1, evaluation=3.0)
    assert scheduled(pace).iterations == 40 * 1000 / 16
    assert scheduled(pace, images=100_000).iterations == 12 * 100_000 / 16
    assert scheduled(pace, images=64).iterations == 150 * 64 / 16
    assert scheduled(pace, epochs=8).iterations == 500
    five = scheduled(pace, minutes=5.0)
    count = -(-five.iterations // five.evaluation.every)
    assert 240 < five.iterations * 0.1 + count * 3.0 <= 300
    assert five.minutes is None
    assert five.lr == 0.02
    assert five.warmup_iterations == five.iterations // 10
    slow = scheduled(Pace(step=5.0, evaluation=60.0), on_gpu=False)
    assert slow.iterations * 5 < 60 * CPU_MINUTES
    assert scheduled(Pace(step=5.0, evaluation=60.0), on_gpu=False, epochs=40).iterations == 2500
    with pytest.raises(UserError, match="0.5 minutes are too short.*Give --minutes"):
        scheduled(Pace(step=5.0, evaluation=60.0), minutes=0.5)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("coco-fpn", ("--minutes", "5"), "--minutes is for own classes"),
        ("detect", ("--minutes", "5", "--epochs", "3"), "Give one of them"),
        ("detect", (), "detect is for your own classes and has no built-in scenes"),
    ],
)
def test_what_makes_no_sense_is_refused(
    task: str,
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = ["finetune", task, "--backbone", "random", "--architecture", "resnet18"]
    assert cli.main([*start, "--out", str(tmp_path / "run"), "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_schedule_for_thousands_of_images_is_no_silent_choice(
    tmp_path: Path, scenes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_finetuning("coco-fpn", tmp_path / "run", iterations=2000)
    config = replace(config, data=LabelledDataConfig(root=scenes, workers=0))
    with pytest.raises(_Begun):
        _announced(config)
    said = " ".join(capsys.readouterr().out.split())
    assert "2,000 steps of 2 are 667 epochs of 6 images" in said
    assert "clove finetune detect" in said


class _Begun(Exception):
    """Training was about to begin."""


def _announced(config: FinetuneConfig) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def begin(*_: object, **__: object) -> None:
            raise _Begun

        patch.setattr("clove_ssl.finetuning.run.EvaluatedRun.train", begin)
        finetuning.finetune(config)
