"""Studies from their first cell to their tables: whole, killed, failing, and side by side."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.runs.interruptions import Crash
from builders.runs.killing import has_said, start, wait_until, weights_hash
from builders.runs.tiny_studies import saved, tiny_study

from clove_ssl import cli
from clove_ssl.pretraining import run as pretraining
from clove_ssl.study.cells import state_of
from clove_ssl.study.config import BudgetConfig
from clove_ssl.study.plan import make_plan
from clove_ssl.study.running import call, torchrun_command
from clove_ssl.study.studies import smoke
from clove_ssl.training.loop import TrainingLoop

pytestmark = pytest.mark.forks


@pytest.fixture(scope="module")
def killed_smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``clove study smoke``, killed while its second pre-training was going, and not restarted."""
    out = tmp_path_factory.mktemp("study") / "smoke"
    process = start("study", "smoke", "--out", str(out))
    wait_until(process, lambda: has_said(out / "pretrain/clove-s0/log.txt", "step 1/"))
    process.kill()
    process.join()
    return out


@pytest.mark.usefixtures("one_thread")
def test_a_killed_study_goes_on_where_it_was(
    killed_smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = killed_smoke
    plan = make_plan(smoke(), out)
    states = [state_of(cell, plan.folder) for cell in plan.cells]
    assert states[0] == "done"
    assert "open" in states
    first = (out / "pretrain/random-s0/config.yaml").stat().st_mtime_ns
    assert cli.main(["study", "smoke", "--out", str(out)]) == 0
    assert {state_of(cell, plan.folder) for cell in plan.cells} == {"done"}
    assert (out / "pretrain/random-s0/config.yaml").stat().st_mtime_ns == first
    _check_that_nothing_was_lost(out, tmp_path)
    _check_the_tables(out)
    capsys.readouterr()
    assert cli.main(["study", "smoke", "--out", str(out)]) == 0
    assert f"{len(plan.cells)} already done" in capsys.readouterr().out


def _check_that_nothing_was_lost(out: Path, elsewhere: Path) -> None:
    """The interrupted pre-training equals one that was not, and each cell had its own backbone."""
    plan = make_plan(smoke(), out)
    cell = next(cell for cell in plan.cells if cell.name == "pretrain/clove-s0")
    config: Any = replace(plan.config_of(cell), out=elsewhere / "whole")  # type: ignore[call-arg, arg-type]
    pretraining.pretrain(config)
    assert weights_hash(out / "pretrain/clove-s0") == weights_hash(elsewhere / "whole")
    assert weights_hash(out / "pretrain/clove-s0") != weights_hash(out / "pretrain/clove-s1")
    tuned = yaml.safe_load((out / "finetune/voc-semantic/clove-s1-f1/config.yaml").read_text())
    assert tuned["backbone"] == str(out / "pretrain/clove-s1")
    assert tuned["seed"] == 1
    probed = yaml.safe_load((out / "probe/dense/clove-s0/config.yaml").read_text())
    assert probed["backbones"] == [str(out / "pretrain/clove-s0/export/backbone.safetensors")]


def _check_the_tables(out: Path) -> None:
    rows = list(csv.DictReader((out / "tables.csv").open()))
    scores = [
        json.loads((out / f"finetune/voc-semantic/clove-{run}/scores.json").read_text())
        for run in ("s0-f0", "s0-f1", "s1-f0", "s1-f1")
    ]
    values = [100 * score["tables"][0]["summary"]["accuracy"] for score in scores]
    (row,) = (r for r in rows if r["method"] == "clove" and r["figure"] == "pixels accuracy")
    assert float(row["mean"]) == pytest.approx(sum(values) / 4)
    assert row["n"] == "2 x 2"
    assert row["budget"] == "2 steps of 4 (0.4 epochs); 1 steps of 2"
    page = (out / "report.html").read_text()
    assert "12 of 12 cells are done" in page
    assert page.count("<svg") == 2
    assert "src=" not in page
    assert "clove - random" in (out / "tables.md").read_text()
    assert "\\begin{tabular}" in (out / "tables.tex").read_text()
    assert sorted(path.name for path in (out / "plots").iterdir()) == [
        "dense.svg",
        "voc-semantic.svg",
    ]


def test_a_failing_cell_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tiny_study(finetunings=())
    train_step = TrainingLoop._train_step

    def dying(loop: TrainingLoop, *args: Any) -> bool:
        if loop.step == 1:
            raise Crash("the machine is on fire")
        return train_step(loop, *args)

    arguments = ["study", saved(study, tmp_path), "--out", str(tmp_path / "study")]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_train_step", dying)
        assert cli.main(arguments) == 2
    told = capsys.readouterr().err
    assert "1 of 4 cells failed" in told
    assert "pretrain/clove-s0: Crash: the machine is on fire" in told
    plan = make_plan(study, tmp_path / "study")
    states = {cell.name: state_of(cell, plan.folder) for cell in plan.cells}
    assert states["probe/dense/random-s0"] == "done"
    assert states["probe/dense/clove-s0"] == "open"
    trace = plan.folder.failure("pretrain/clove-s0").read_text()
    assert "Traceback" in trace
    assert "on fire" in plan.folder.report.read_text()
    assert cli.main(arguments) == 0
    assert {state_of(cell, plan.folder) for cell in plan.cells} == {"done"}
    assert not plan.folder.failure("pretrain/clove-s0").exists()


def test_a_budget_in_seconds_sets_the_steps_of_every_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = BudgetConfig(kind="seconds", amount=0.2, timed_steps=1, warm_steps=1)
    study = tiny_study(finetunings=(), probes=(), budget=budget)
    arguments = ["study", saved(study, tmp_path), "--out", str(tmp_path / "study")]
    assert cli.main(arguments) == 0
    timing = json.loads((tmp_path / "study/timing/clove/scores.json").read_text())
    steps = max(1, int(0.2 / timing["seconds_per_step"]))
    config = yaml.safe_load((tmp_path / "study/pretrain/clove-s0/config.yaml").read_text())
    assert config["steps"] == steps
    assert config["compile"] == "never"
    assert not (tmp_path / "study/timing/clove/run").exists()
    assert not (tmp_path / "study/timing/random").exists()
    capsys.readouterr()
    assert cli.main([*arguments, "--dry-run"]) == 0
    assert "0.2 s of steps" in capsys.readouterr().out
    for more in ([], ["--report"]):
        assert cli.main([*arguments, "--budget", "seconds", "--amount", "1000", *more]) == 2
        assert "pretrain/clove-s0 was started with other values of steps" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_take_cells_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tiny_study(finetunings=())
    nowhere = {**study.pretrainings[1].changes, "data": {"source": str(tmp_path / "nowhere")}}
    broken = replace(study.pretrainings[1], label="broken", changes=nowhere)
    study = replace(study, pretrainings=(study.pretrainings[0], broken))
    out = tmp_path / "study"
    monkeypatch.setenv("FORCE_COLOR", "1")  # the output counts as a terminal
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["study", saved(study, tmp_path), "--out", str(out), "--devices", "0", "1"]
    assert cli.main(arguments) == 2
    told = capsys.readouterr()
    assert "1 of 4 cells failed" in told.err
    assert "nowhere" in told.err
    assert "pretrain/random-s0 on GPU 0" in told.out
    assert "pretrain/broken-s0 on GPU 1" in told.out
    assert "probe/dense/random-s0 on GPU" in told.out
    live = [line for line in told.out.split("\r\x1b[2K") if re.search(r"cells \d/4", line)]
    assert any("pretrain/random-s0" in line for line in live)
    assert all(len(line) < 80 for line in live)
    plan = make_plan(study, out)
    states = {cell.name: state_of(cell, plan.folder) for cell in plan.cells}
    assert [name for name, state in states.items() if state == "done"] == [
        "pretrain/random-s0",
        "probe/dense/random-s0",
    ]
    assert "nowhere" in plan.folder.output("pretrain/broken-s0").read_text()
    assert "Frozen features" in plan.folder.output("probe/dense/random-s0").read_text()


def test_one_cell_can_be_run_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tiny_study(finetunings=())
    arguments = ["study", saved(study, tmp_path), "--out", str(tmp_path / "study")]
    assert cli.main([*arguments, "--only", "random", "--kinds", "pretrain"]) == 0
    assert "1 cells in" in capsys.readouterr().out
    arguments += ["--cell"]
    assert cli.main([*arguments, "3"]) == 2
    assert "needs pretrain/clove-s0, which is not done yet" in capsys.readouterr().err
    assert cli.main([*arguments, "0"]) == 0
    assert cli.main([*arguments, "probe/dense/random-s0"]) == 0
    assert (tmp_path / "study/probe/dense/random-s0/scores.json").is_file()
    assert cli.main([*arguments, "9"]) == 2
    assert "0 to 3" in capsys.readouterr().err


def test_a_cell_that_was_begun_otherwise_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tiny_study(finetunings=(), probes=())
    study = replace(study, pretrainings=study.pretrainings[1:])
    arguments = ["study", saved(study, tmp_path), "--out", str(tmp_path / "study")]
    plan = make_plan(study, tmp_path / "study")
    plan.folder.run("pretrain/clove-s0").path.mkdir(parents=True)
    plan.keep(plan.cells[0])
    assert cli.main([*arguments, "--budget", "steps", "--amount", "3"]) == 2
    assert "other values of steps" in capsys.readouterr().err
    plan.folder.wanted("pretrain/clove-s0").write_text("not: [closed")
    assert cli.main(arguments) == 2
    assert "is not a YAML file" in capsys.readouterr().err


def test_scores_of_a_deleted_backbone_are_not_taken_for_those_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tiny_study(finetunings=())
    study = replace(study, pretrainings=study.pretrainings[1:])
    out = tmp_path / "study"
    plan = make_plan(study, out)
    made, measured = plan.cells
    plan.folder.run(made.name).path.mkdir(parents=True)
    plan.keep(made)
    plan.folder.run(made.name).path.rmdir()
    plan.folder.run(measured.name).path.mkdir(parents=True)
    plan.folder.run(measured.name).scores.write_text("{}")
    arguments = ["study", saved(study, tmp_path), "--out", str(out), "--amount", "3"]
    assert cli.main([*arguments, "--budget", "steps"]) == 2
    told = capsys.readouterr().err
    assert f"{made.name} was started with other values of steps" in told
    assert f"or delete {plan.folder.run(measured.name).path}." in told


def test_a_cell_in_use_is_left_to_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tiny_study(finetunings=(), probes=())
    study = replace(study, pretrainings=study.pretrainings[:1])
    plan = make_plan(study, tmp_path / "study")
    with plan.folder.working_on("pretrain/random-s0"):
        assert cli.main(["study", saved(study, tmp_path), "--out", str(tmp_path / "study")]) == 0
    told = capsys.readouterr().out
    assert "1 waiting" in told
    assert "worked on by another process" in told
    assert state_of(plan.cells[0], plan.folder) == "open"


def test_what_died_before_its_config_was_written_starts_anew(tmp_path: Path) -> None:
    study = tiny_study(finetunings=(), probes=())
    study = replace(study, pretrainings=study.pretrainings[:1])
    plan = make_plan(study, tmp_path / "study")
    (plan.folder.run("pretrain/random-s0").path / "checkpoints").mkdir(parents=True)
    assert cli.main(["study", saved(study, tmp_path), "--out", str(tmp_path / "study")]) == 0
    assert state_of(plan.cells[0], plan.folder) == "done"


def test_several_gpus_share_a_cell_through_torchrun() -> None:
    command_line = " ".join(torchrun_command(4, ["resume", "runs/a"]))
    assert "-m torch.distributed.run --standalone --nproc-per-node 4 " in command_line
    assert command_line.endswith("-m clove_ssl resume runs/a")
    assert call([sys.executable, "-c", "raise SystemExit(3)"]) == 3
