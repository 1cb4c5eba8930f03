"""What a study is made of: its file, its cells, their configs, its price and its SLURM script."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.runs.measured_studies import finish_pretraining
from builders.runs.tiny_studies import saved, tiny_study

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.moco.config import MoCoConfig
from clove_ssl.methods.recipes import recipe
from clove_ssl.registry import TASKS
from clove_ssl.study.cells import Cell
from clove_ssl.study.config import (
    BudgetConfig,
    FinetuningEntry,
    PretrainingEntry,
    ProbeEntry,
    StudyConfig,
)
from clove_ssl.study.costs import Speeds, estimate
from clove_ssl.study.paper_tables import PAPER_TABLES
from clove_ssl.study.plan import StudyPlan, make_plan
from clove_ssl.study.scheduling import Slots, slurm_script
from clove_ssl.study.studies import PAPER_TASKS, STUDIES, open_study


@pytest.mark.parametrize("name", STUDIES)
def test_a_built_in_study_survives_its_file(name: str, tmp_path: Path) -> None:
    study = open_study(name)
    files.save(study, tmp_path / "study.yaml")
    assert open_study(str(tmp_path / "study.yaml")) == study


def with_folders(study: StudyConfig) -> StudyConfig:
    names = {"voc": "VOCdevkit", "coco": "coco", "lvis": "lvis", "cityscapes": "cityscapes"}
    return replace(study, data=replace(study.data, labelled=names))


@pytest.mark.parametrize("name", STUDIES)
def test_every_config_of_a_built_in_study_is_valid(name: str, tmp_path: Path) -> None:
    plan = make_plan(with_folders(open_study(name)), tmp_path)
    names = [cell.name for cell in plan.cells]
    assert len(set(names)) == len(names)
    for number, cell in enumerate(plan.cells):
        assert all(names.index(needed) < number for needed in cell.needs)


def plan_of(study: StudyConfig, out: Path) -> tuple[StudyPlan, dict[str, Cell]]:
    plan = make_plan(study, out)
    return plan, {cell.name: cell for cell in plan.cells}


def test_the_main_study_has_every_protocol_that_is_installed(tmp_path: Path) -> None:
    plan, cells = plan_of(open_study("paper-main"), tmp_path)
    tasks = {cell.measure.task for cell in cells.values() if cell.kind == "finetune"}  # type: ignore[union-attr]
    assert tasks == set(PAPER_TASKS) & set(TASKS.names())
    rows = {row for entry in plan.config.pretrainings for row in entry.rows}
    known = {row.key for table in PAPER_TABLES for row in table.rows}
    assert rows <= known
    config = plan.config_of(cells["finetune/voc-c4/clove-200-s0-f4"])
    assert isinstance(config, FinetuneConfig)
    assert (config.seed, config.total_iterations) == (4, 24_000)
    assert not config.differences()
    long = plan.config_of(cells["pretrain/clove-400-s0"])
    assert isinstance(long, PretrainConfig)
    assert (long.epochs, long.data.source) == (400, "imagenet/{000000..001281}.tar")


@pytest.mark.parametrize("name", ["paper-ablations", "quick-ablations"])
def test_the_ablations_fill_every_row_of_the_four_tables(name: str) -> None:
    rows = [row for entry in open_study(name).pretrainings for row in entry.rows]
    wanted = [row.key for table in PAPER_TABLES if table.is_ablation for row in table.rows]
    assert sorted(rows) == sorted(wanted)


def test_the_variants_differ_from_the_default_in_what_they_are_called(tmp_path: Path) -> None:
    plan, cells = plan_of(open_study("paper-ablations"), tmp_path)

    def method(label: str) -> CLoVEConfig:
        config = plan.config_of(cells[f"pretrain/{label}-s0"])
        assert isinstance(config, PretrainConfig)
        assert config.epochs == 50
        assert isinstance(config.method, CLoVEConfig)
        return config.method

    assert method("l2-two-views").loss.kind == "l2"
    assert method("l2-two-views").views.local_count == 0
    assert method("l2").views.local_count == 6
    assert method("plain-attention").attention.kind == "plain"
    assert method("inter-avg").loss.negatives == "inter-avg"
    assert method("t-pos-0.9").matching.threshold == 0.9
    base = recipe("clove-r50-50ep", Path()).method
    assert method("clove") == base


def test_changes_of_an_entry_win_over_those_of_the_study(tmp_path: Path) -> None:
    entry = PretrainingEntry(label="a", recipe="clove-demo", changes={"batch_size": 8})
    study = StudyConfig(title="t", pretrainings=(entry,), changes={"batch_size": 4, "epochs": 3})
    config = make_plan(study, tmp_path).config_of(make_plan(study, tmp_path).cells[0])
    assert isinstance(config, PretrainConfig)
    assert (config.batch_size, config.epochs) == (8, 3)
    assert config.method == recipe("clove-demo", Path()).method


def test_another_method_keeps_nothing_of_the_old_one() -> None:
    changed = files.changed(recipe("clove-demo", Path()), {"method": {"name": "byol"}}, where="x")
    assert changed.method == BYOLConfig()


@pytest.mark.parametrize(
    ("kind", "amount", "expected"),
    [("epochs", 7, (7, None)), ("steps", 9, (1, 9)), ("recipe", None, (1, None))],
)
def test_budgets_set_the_length(
    tmp_path: Path, kind: Any, amount: float | None, expected: tuple[int, int | None]
) -> None:
    study = tiny_study(budget=BudgetConfig(kind=kind, amount=amount))
    plan, cells = plan_of(study, tmp_path)
    config = plan.config_of(cells["pretrain/clove-s0"])
    assert isinstance(config, PretrainConfig)
    assert (config.epochs, config.steps) == expected
    untrained = plan.config_of(cells["pretrain/random-s0"])
    assert isinstance(untrained, PretrainConfig)
    assert untrained.steps is None


def test_weights_that_exist_are_measured_without_pretraining(tmp_path: Path) -> None:
    given = PretrainingEntry(label="given", backbone="runs/a-{seed}", seeds=(3, 4))
    plan, cells = plan_of(tiny_study(pretrainings=(given,)), tmp_path)
    assert {cell.kind for cell in cells.values()} == {"probe", "finetune"}
    config = plan.config_of(cells["finetune/voc-semantic/given-s4-f0"])
    assert isinstance(config, FinetuneConfig)
    assert config.backbone == "runs/a-4"


PRETRAINING = {"label": "a", "recipe": "clove-demo"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"pretrainings": []}, "one pre-training at least"),
        ({"pretrainings": [{"label": "a"}]}, "exactly one of recipe, config and backbone"),
        ({"pretrainings": [{**PRETRAINING, "label": "a/b"}]}, "no name for a folder"),
        ({"pretrainings": [{**PRETRAINING, "seeds": [1, 1]}]}, "each once"),
        ({"pretrainings": [PRETRAINING, PRETRAINING]}, "a label twice"),
        ({"reference": "b"}, "no pre-training of this study"),
        ({"budget": {"kind": "seconds"}}, "kind: seconds, amount: 120"),
        ({"budget": {"kind": "seconds", "amount": float("nan")}}, "amount is nan; expected"),
        ({"budget": {"kind": "steps", "amount": float("inf")}}, "amount is inf; expected"),
        ({"budget": {"kind": "epochs", "amount": 0.5}}, "whole epochs"),
        ({"data": {"images": -3}}, "images is -3"),
        ({"data": {"pretrain": "gone/"}}, "images to pre-train on: gone/"),
        ({"probes": [{"label": "dense", "figure": "segmentatio"}]}, "'segmentation'"),
        ({"pretrainings": [{**PRETRAINING, "rows": ["clove-20"]}]}, "'clove-200'"),
        ({"pretrainings": [{**PRETRAINING, "label": "a" * 300}]}, "no name for a folder"),
        ({"budgets": {}}, "budgets"),
        ({"pretrainings": [{**PRETRAINING, "recipe": "clove-dem"}]}, "clove-demo"),
        ({"changes": {"epocs": 3}}, "epocs"),
        ({"changes": {"epochs": "many"}}, "changes of the study"),
        ({"finetunings": [{"label": "t", "task": "voc-c5"}]}, "voc-c4"),
        ({"finetunings": [{"label": "t", "task": "voc-c4"}]}, "--labelled voc FOLDER"),
        (
            {"finetunings": [{"label": "t", "task": "voc-c4"}], "data": {"labelled": {"voc": "x"}}},
            "voc: x",
        ),
        ({"pretrainings": [{"label": "a", "backbone": "f", "seeds": [0, 1]}]}, "one backbone"),
        ({"probes": [{"label": "dense", "data": "vox"}]}, "images that are not there:\n  vox"),
        (
            {"pretrainings": [PRETRAINING, {"label": "b", "recipe": "random-r18"}]},
            "different stages (c4, last)",
        ),
        ({"probes": [{"label": "dense", "changes": {"probe": 5}}]}, "changes of dense"),
        ({"probes": [{"label": "dense", "changes": {"probe": "knn"}}]}, "changes of dense"),
    ],
)
def test_a_mistake_in_a_study_is_told_before_anything_runs(
    content: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = {"title": "t", "pretrainings": [PRETRAINING], "probes": [{"label": "dense"}], **content}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    assert cli.main(["study", str(path), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "smok", "--out", "x"], "Did you mean 'smoke'?"),
        (["study", "none.yaml", "--out", "x"], "none.yaml does not exist"),
        (["study", "smoke", "--out", "x", "--budget", "epochs"], "--budget seconds --amount 120"),
        (["study", "smoke", "--out", "x", "--only", "clov"], "Did you mean 'clove'?"),
        (["study", "smoke", "--out", "x", "--measures", "dens"], "Did you mean 'dense'?"),
        (["study", "smoke", "--out", "x", "--iterations", "0"], "--iterations is 0; expected"),
        (["study", "smoke", "--out", "x", "--cell", "99"], "0 to 11"),
        (["study", "smoke", "--out", "x", "--report"], "x does not exist"),
        (["study", "smoke", "--out", "x", "--devices", "0", "1", "2", "--gpus-per-cell", "2"], "3"),
        (["study", "smoke", "--out", "x", "--dry-run", "--bench", "no.jsonl"], "clove bench"),
        (
            ["study", "paper-main", "--out", "x", "--budget", "seconds", "--amount", "9"]
            + ["--gpus-per-cell", "2"],
            "--budget steps",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


STEP = {"name": "step", "images_per_second": 100.0, "method": "clove", "backbone": "resnet18"}
RUN = {**STEP, "name": "end to end (waits 1.0 %)", "images_per_second": 50.0, "device": "H200"}
TASK = {"case": "voc-semantic", "images_per_s": 4.0, "device": "H200"}
BENCHED = {
    **{"task": "voc-semantic", "backbone": "resnet18", "device": "H200"},
    **{"name": "end to end", "images_per_second": 8.0},
}


def test_costs_follow_from_measured_speeds(tmp_path: Path) -> None:
    plan = make_plan(tiny_study(), tmp_path)
    with_less = {**RUN, "name": "end to end, 4 cores (waits 9.0 %)", "images_per_second": 5.0}
    speeds = Speeds([RUN, with_less, STEP, TASK])
    costs = {cost.cell.name: cost for cost in estimate(plan, speeds)}
    assert costs["pretrain/clove-s0"].seconds == 2 * 4 / 50
    assert "H200" in costs["pretrain/clove-s0"].basis
    assert costs["finetune/voc-semantic/clove-s0-f0"].seconds == 2 / 4
    assert costs["pretrain/random-s0"].seconds == 0
    only_steps = {cost.cell.name: cost for cost in estimate(plan, Speeds([STEP]))}
    assert "steps alone" in only_steps["pretrain/clove-s0"].basis
    missing = {cost.cell.name: cost for cost in estimate(plan, Speeds([]))}
    assert missing["pretrain/clove-s0"].seconds is None
    assert "clove bench clove-demo" in missing["pretrain/clove-s0"].basis
    task = "finetune/voc-semantic/clove-s0-f0"
    assert "clove bench voc-semantic --out" in missing[task].basis
    benched = Speeds([BENCHED, {**BENCHED, "name": "floor", "images_per_second": 9.0}])
    assert {cost.cell.name: cost for cost in estimate(plan, benched)}[task].seconds == 2 / 8


def test_a_finished_cell_tells_what_its_like_will_cost(tmp_path: Path) -> None:
    study = tiny_study()
    entries = tuple(replace(entry, seeds=(0, 1)) for entry in study.pretrainings)
    plan, cells = plan_of(replace(study, pretrainings=entries), tmp_path)
    finish_pretraining(plan, cells["pretrain/clove-s0"], images=20)
    run = plan.folder.run("pretrain/clove-s0")
    speeds = [1.0, 40.0, 40.0]  # the first line has the start-up in it
    lines = [{"step": step, "images_per_second": speed} for step, speed in enumerate(speeds)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    costs = {cost.cell.name: cost for cost in estimate(plan, Speeds([RUN]))}
    assert costs["pretrain/clove-s1"].seconds == 2 * 4 / 40
    assert "of pretrain/clove-s0" in costs["pretrain/clove-s1"].basis


def test_a_dry_run_shows_the_price_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps(RUN) + "\n\n" + json.dumps({"case": "2x224"}) + "\n")
    arguments = ["study", saved(tiny_study(), tmp_path), "--out", str(tmp_path / "out")]
    assert cli.main([*arguments, "--dry-run", "--bench", str(bench)]) == 0
    told = capsys.readouterr().out
    assert "6 of 6 cells to do" in told
    assert "nothing measured for voc-semantic" in told
    assert "2 steps of 4" in told
    assert not (tmp_path / "out").exists()
    assert cli.main([*arguments, "--dry-run", "--kinds", "finetune"]) == 0
    told = capsys.readouterr().out
    assert "pretrain/" not in told
    assert "2 of 2 cells to do" in told
    bench.write_text("images: 3")
    assert cli.main([*arguments, "--dry-run", "--bench", str(bench)]) == 2


@pytest.mark.parametrize(
    "line",
    [
        {**RUN, "images_per_second": 0},
        {**RUN, "images_per_second": "fast"},
        {"case": "voc-c4", "images_per_s": None},
    ],
)
def test_a_speed_that_is_none_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected images per second"):
        Speeds([line])


def test_epochs_of_images_that_are_not_there_are_not_guessed(tmp_path: Path) -> None:
    study = tiny_study(budget=BudgetConfig(kind="epochs", amount=3))
    study = replace(study, data=replace(study.data, pretrain=str(tmp_path / "nowhere")))
    costs = {cost.cell.name: cost for cost in estimate(make_plan(study, tmp_path), Speeds([RUN]))}
    assert costs["pretrain/clove-s0"].seconds is None
    assert "is not there" in costs["pretrain/clove-s0"].basis
    known = replace(study, data=replace(study.data, images=400))
    costs = {cost.cell.name: cost for cost in estimate(make_plan(known, tmp_path), Speeds([RUN]))}
    assert costs["pretrain/clove-s0"].seconds == 3 * 400 / 50


def test_the_slurm_script_submits_one_array_after_the_other(tmp_path: Path) -> None:
    study = tiny_study(budget=BudgetConfig(kind="seconds", amount=5))
    out = tmp_path / "a study"
    script = slurm_script(make_plan(study, out), gpus=4)
    assert "--signal B:TERM@120" in script  # to the command that has taken the shell's place
    assert "--array 0-0" in script
    assert "--array 1-2" in script
    assert '--dependency "afterany:$pretrain"' in script
    assert "--gpus-per-task 4" in script
    fake = tmp_path / "sbatch"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >> "$LOG"; echo 7\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(tmp_path / "log")}
    subprocess.run(["bash", "-c", script], check=True, env=environment)
    submitted = (tmp_path / "log").read_text()
    assert submitted.count("--array") == 4
    assert "afterany:7" in submitted
    assert f"--out '{out}' --cell \"$SLURM_ARRAY_TASK_ID\" --gpus-per-cell 4" in submitted
    assert "--report" in submitted


def test_the_script_is_printed_with_the_study_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["study", "smoke", "--out", str(tmp_path / "s"), "--print-slurm"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash")
    assert open_study(str(tmp_path / "s/study.yaml")) == open_study("smoke")


def test_options_of_the_command_line_reach_the_study(tmp_path: Path) -> None:
    arguments = ["study", "quick", "--out", str(tmp_path / "s"), "--print-slurm"]
    arguments += ["--data", "photos", "--labelled", "voc", "VOC", "coco", "COCO"]
    arguments += ["--seeds", "5", "6", "7", "--budget", "seconds", "--amount", "9"]
    arguments += ["--iterations", "50"]
    assert cli.main(arguments) == 0
    study = open_study(str(tmp_path / "s/study.yaml"))
    assert study.data.pretrain == "photos"
    assert study.data.labelled == {"voc": "VOC", "coco": "COCO"}
    assert study.budget.amount == 9
    assert {entry.seeds for entry in study.pretrainings} == {(5, 6, 7)}
    assert {task.changes["iterations"] for task in study.finetunings} == {50}
    assert all(task.changes["precision"] == "bf16" for task in study.finetunings)


def test_a_timing_has_its_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tiny_study(budget=BudgetConfig(kind="seconds", amount=5))
    plan, cells = plan_of(study, tmp_path)
    timing, other = cells["timing/clove"], cells["pretrain/random-s0"]
    slots = Slots(plan, [(0,), (0,), (1,)], Console(), gpus=1)

    def free(cell: Cell, busy: dict[int, Cell]) -> int | None:
        monkeypatch.setattr(slots, "_busy", lambda: busy)
        return slots._free_slot(cell)

    assert free(timing, {}) == 0
    assert free(other, {0: other}) == 1
    assert free(timing, {0: other}) == 2
    assert free(other, {0: timing}) == 2
    assert free(other, {0: timing, 2: other}) is None


def test_the_study_of_the_docs_is_understood(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/study.md"
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "own.yaml").write_text(example)
    plan, cells = plan_of(open_study(str(tmp_path / "own.yaml")), tmp_path)
    config = plan.config_of(cells["pretrain/long-s2"])
    assert isinstance(config, PretrainConfig)
    assert isinstance(config.method, MoCoConfig)
    assert (config.method.queue_size, config.epochs, config.seed) == (8192, 50, 2)
    assert "finetune/voc-c4/elsewhere-s0-f1" in cells


def test_entries_know_the_folder_of_their_task() -> None:
    assert FinetuningEntry(label="a", task="coco-fpn").data_name == "coco"
    assert FinetuningEntry(label="a", task="coco-fpn", data="scenes").data_name == "scenes"
    with pytest.raises(UserError, match="no name for a folder"):
        ProbeEntry(label="")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "segmentation"),
        ({"changes": {"probe": ["knn", "linear"]}}, "knn"),
        ({"changes": {"probe": ["knn", "linear"]}, "figure": "linear"}, "linear"),
    ],
)
def test_the_first_probe_counts_unless_another_is_named(
    asked: dict[str, Any], expected: str
) -> None:
    assert ProbeEntry(label="classes", **asked).main_score == expected
