"""``clove bench TASK`` on images small enough for a test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders.tasks.tiny_detectors import tiny_config

from clove_ssl import cli
from clove_ssl.bench import finetuning
from clove_ssl.bench.config import TaskBenchConfig
from clove_ssl.bench.finetuning import TaskBench, run_task_bench
from clove_ssl.config.finetuning import LabelledDataConfig, protocol
from clove_ssl.study.costs import read_speeds

WITHOUT_GPU = ["floor", "step, kernel by kernel", "reading, in this process", "end to end"]


def tiny_bench(name: str, out: Path | None = None, **changes: object) -> TaskBenchConfig:
    return TaskBenchConfig(
        task=replace(protocol(name, Path(), "random").task, **changes),
        data=LabelledDataConfig(scenes_train=4, scenes_test=1, scenes_size=32, workers=0),
        architecture="resnet18",
        batch=2,
        steps=1,
        device="cpu",
        out=out,
    )


@pytest.fixture(autouse=True)
def few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "DIFFERENT", 2)


def test_a_task_is_named_like_a_recipe_and_all_its_parts_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    words = ["--device", "cpu", "--architecture", "resnet18", "--batch", "2", "--steps", "1"]
    few = ["--data.scenes-train", "4", "--data.scenes-test", "1", "--data.workers", "0"]
    rest = ["--task.crop", "33", "--out", str(results)]
    assert cli.main(["bench", "voc-semantic", *words, *few, *rest]) == 0
    assert "voc-semantic, resnet18, batch 2, cpu" in capsys.readouterr().out
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["name"] for line in lines] == WITHOUT_GPU
    assert {(line["task"], line["backbone"]) for line in lines} == {("voc-semantic", "resnet18")}
    assert all(line["images_per_second"] > 0 for line in lines)
    speed = read_speeds([results]).of_task("voc-semantic")
    assert speed is not None
    assert speed.images_per_second == lines[-1]["images_per_second"]


def test_a_detector_says_why_it_is_not_captured(capsys: pytest.CaptureFixture[str]) -> None:
    measured = run_task_bench(
        tiny_bench("coco-fpn", train_sides=(32,), longest=64, detector=tiny_config("fpn"))
    )
    assert [one.name for one in measured] == WITHOUT_GPU
    assert "steps are not captured: on a CPU" in capsys.readouterr().out


def test_the_floor_sees_as_many_pixels_as_the_largest_image(tmp_path: Path) -> None:
    config = tiny_bench("coco-fpn", train_sides=(32, 48), longest=64)
    task = config.task.build()
    with finetuning._labelled_data(config, task) as data:
        bench = TaskBench(config, task, data)
        for batch in bench._batches:
            tallest, widest = (max(each.shape[axis] for each in batch.images) for axis in (1, 2))
            assert bench._canvas(batch).shape == (2, 3, tallest, widest)
