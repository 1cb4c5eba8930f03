"""``clove bench`` on a network small enough for a test: what it measures and what it writes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from builders.batches.compiling import activation_memory_in_use
from builders.batches.view_batches import made_up_photos
from builders.runs.method_runs import small_method
from builders.runs.tiny_runs import tiny_method
from PIL import Image

from clove_ssl import cli
from clove_ssl.bench import data as benchmark_data
from clove_ssl.bench import run as benchmark_run
from clove_ssl.bench.command import Bench, run_bench
from clove_ssl.bench.config import BenchConfig
from clove_ssl.bench.run import measure_runs
from clove_ssl.bench.step import slope
from clove_ssl.bench.ways import measure_other_kinds, measure_way, other_kinds
from clove_ssl.config.pretraining import BackboneConfig, DataConfig, PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.cores import available_cores
from clove_ssl.errors import UserError
from clove_ssl.methods.pixpro.config import InstanceConfig
from clove_ssl.runs import directory
from clove_ssl.runs.metrics import Metrics
from clove_ssl.study.costs import read_speeds


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_data, "DIFFERENT", 4)
    monkeypatch.setattr(benchmark_data, "REPEATS", 4)


def tiny_bench(out: Path | None = None) -> BenchConfig:
    views = ViewsConfig(global_size=32, local_count=2, local_size=32)
    return BenchConfig(
        backbone=BackboneConfig(name="timm:test_resnet"),
        method=replace(tiny_method(), views=views),
        batch=2,
        workers=0,
        steps=1,
        run_steps=3,
        device="cpu",
        out=out,
    )


def test_every_part_is_measured_and_written(tmp_path: Path) -> None:
    measured = run_bench(tiny_bench(tmp_path / "results.jsonl"))
    written = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["name"] for line in written] == [one.name for one in measured]
    names = [one.name.strip() for one in measured]
    assert names[0].startswith("end to end (waits ")
    assert names[1:3] == ["floor", "step"]
    stages = {"forward", "backward", "optimizer", "teacher update", "loss, matching, predictor"}
    assert stages | {"networks with heads"} <= set(names)
    assert measured[0].first_call_seconds > 1.0  # Python and torch were loaded
    by_difference = "  loss, matching, predictor"  # of so small a network it may be lost in noise
    assert all(one.images_per_second > 0 for one in measured if one.name != by_difference)
    assert {line["device"] for line in written} == {"cpu"}


def test_steps_that_measure_are_timed_by_themselves() -> None:
    method = small_method("clove-plus")
    bench = Bench(replace(tiny_bench(), method=method))
    model, batch = bench.build(method), bench.batch(method, 2)
    assert other_kinds(model) == [[1, 21, 41, 61, 81]]
    usual = measure_way(bench, model, batch, "our kernels")
    measure_other_kinds(bench, model, batch, usual, way="our kernels")
    _, other, added = bench.measurements
    assert other.name == "step of another kind, our kernels"
    assert added.name == "  added by 5 of 100 steps"
    expected = (other.milliseconds - usual.milliseconds) / 20
    assert added.milliseconds == pytest.approx(expected)
    assert added.share == pytest.approx(expected / usual.milliseconds)


@pytest.mark.parametrize("columns", [80, 200])
def test_measurements_show_how_far_they_are(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # the output counts as a terminal
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("clove_ssl.console._REDRAW", 0.01)
    bench = Bench(tiny_bench())
    bench.measure("floor", lambda: time.sleep(0.05))
    live = [line for line in capsys.readouterr().out.split("\r\x1b[2K") if "/5" in line]
    assert {"floor 1/5", "floor 3/5"} <= {line.split("  ")[1] for line in live}
    assert "left" in live[-1]
    assert all(len(line) < columns for line in live)


def test_runs_are_repeated_with_few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(tiny_bench(), cores=(1,))
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(
        benchmark_run, "_measure_run", lambda *run: seen.append((run[-1], available_cores()))
    )
    cores = available_cores()
    measure_runs(Bench(config), config.method, DataConfig())
    assert seen == [("end to end", cores), ("end to end, 1 cores", 1)]
    assert available_cores() == cores


def test_a_run_that_ends_with_a_probe_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: PretrainConfig, path: Path) -> float:
        metrics = Metrics(directory.make(config.out), config.logging, start_step=0)
        for step in (1, 200, 400, 600):
            metrics.write(step, {"loss": 1.0, "images_per_second": step / 2, "data_wait": 0.25})
        metrics.write(600, {"epoch": 1.0, "probe_knn": 0.5, "probe_seconds": 2.0})
        metrics.close()
        return 3.0

    monkeypatch.setattr(benchmark_run, "_seconds_to_first_step", run)
    bench = Bench(replace(tiny_bench(), run_steps=600))
    measure_runs(bench, bench.config.method, DataConfig())
    (measured,) = bench.measurements
    assert measured.name == "end to end (waits 25.0 %)"
    assert measured.images_per_second == 250


def test_parts_can_be_chosen() -> None:
    measured = run_bench(replace(tiny_bench(), parts=("data",)))
    parts = [one.name.split(",")[0] for one in measured]
    assert parts == ["decode and render", "reading", "feed", "feed"]
    assert [one.name for one in measured[2:]] == [
        "feed, photos not cached",
        "feed, photos cached in host memory",
    ]


def test_a_method_whose_network_gives_several_maps_can_be_measured() -> None:
    method = small_method("pixpro", size=32, instance=InstanceConfig())  # one of them is not there
    measured = run_bench(replace(tiny_bench(), method=method, parts=("step",)))
    names = [one.name.strip() for one in measured]
    assert names[:2] == ["floor", "step"]
    assert "networks with heads" in names


def test_a_method_that_needs_classes_gets_made_up_ones() -> None:
    method = small_method("supervised", size=32, classes=None)
    measured = run_bench(replace(tiny_bench(), method=method, parts=("run", "step")))
    assert [one.name.split(" (")[0] for one in measured[:3]] == ["end to end", "floor", "step"]


def test_cores_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "clove-demo", "--device", "cpu", "--cores", "4096"]) == 2
    assert "--cores asks for 4096" in capsys.readouterr().err


def test_a_run_that_fails_is_told(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    config = replace(tiny_bench(), data=str(tmp_path), parts=("run",))
    with pytest.raises(UserError, match="exit status 2"):
        run_bench(config)
    assert "broken.jpg" in capfd.readouterr().err


def test_photos_without_classes_are_refused_where_classes_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, scene in enumerate(made_up_photos([(32, 32)] * 2)):
        Image.fromarray(scene.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    command = ["bench", "supervised-r18-small", "--data", str(tmp_path), "--device", "cpu"]
    assert cli.main(command) == 2
    assert "one folder per class" in " ".join(capsys.readouterr().err.split())


def test_what_does_not_train_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "random-r18", "--device", "cpu"]) == 2
    assert "trains nothing" in capsys.readouterr().err


def test_the_share_of_activations_reaches_the_compiler(fresh_compiler: None) -> None:
    config = replace(tiny_bench(), compile="always", activation_memory=0.25)
    Bench(config).build(config.method)  # compiles at its first call, which never comes
    assert activation_memory_in_use() == 0.25


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power: float) -> None:
    assert slope([(x, 3 * x**power) for x in (2, 4, 16)]) == pytest.approx(power)


def test_growth_is_written_down_too(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    config = replace(tiny_bench(out), method=small_method("byol"), parts=("growth",))
    assert run_bench(config) == []
    (line,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (line["growth"], line["method"]) == ("the batch", "byol")
    assert [*line["milliseconds"]] == ["2", "4", "8"]
    assert read_speeds([out])  # a file with such lines still tells a study what it knows
