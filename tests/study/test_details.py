"""Studies that are moved, extended, mislabelled, or shared with others on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders.runs.tiny_studies import tiny_study

from clove_ssl.errors import UserError
from clove_ssl.study import running as study_running
from clove_ssl.study import scheduling as study_scheduling
from clove_ssl.study.comparing import StudyComparison
from clove_ssl.study.config import (
    BudgetConfig,
    FinetuningEntry,
    PretrainingEntry,
    ProbeEntry,
    StudyConfig,
)
from clove_ssl.study.paper_tables import PAPER_TABLES
from clove_ssl.study.plan import make_plan
from clove_ssl.study.running import run_cell
from clove_ssl.study.statistics import summarize
from clove_ssl.study.studies import paper_ablations


def test_labels_with_dots_have_configs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def note(command: Sequence[str]) -> int:
        started.append(command[command.index("--config") + 1])
        return 0

    monkeypatch.setattr(study_running, "call", note)
    study = replace(paper_ablations(), finetunings=())
    plan = make_plan(study, tmp_path)
    for cell in plan.cells:
        run_cell(plan, cell, gpus=2)
    assert len(set(started)) == len(plan.cells)


@pytest.mark.parametrize("option", ["runs", "seed", "out", "backbone"])
def test_a_task_cannot_change_what_every_cell_has_of_its_own(option: str, tmp_path: Path) -> None:
    entry = FinetuningEntry(label="seg", task="voc-semantic", data="scenes", changes={option: 2})
    with pytest.raises(UserError, match=f"seg has {option} under its changes"):
        make_plan(replace(tiny_study(), finetunings=(entry,)), tmp_path)


def test_gpus_are_numbered_among_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5")
    assert study_scheduling._environment((1,))["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    with pytest.raises(UserError, match="--devices names GPU 2"):
        study_scheduling._environment((0, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="leaves 0 of them"):
        study_scheduling._environment((0,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert study_scheduling._environment((0, 2))["CUDA_VISIBLE_DEVICES"] == "0,2"


def with_photos(folder: str, *, seeds: tuple[int, ...] = (0,)) -> StudyConfig:
    study = tiny_study()
    entry = PretrainingEntry(label="a", recipe="clove-r18-small", seeds=seeds)
    return replace(
        study,
        pretrainings=(entry,),
        finetunings=(),
        probes=(),
        data=replace(study.data, pretrain=folder),
        budget=BudgetConfig(kind="seconds", amount=1),
    )


def begin(study: StudyConfig, folder: Path) -> None:
    plan = make_plan(study, folder)
    plan.keep(plan.cells[0])
    plan.folder.run(plan.cells[0].name).path.mkdir(parents=True)


def test_images_may_move_but_not_change(tmp_path: Path) -> None:
    begin(with_photos("/old/photos"), tmp_path)
    moved = make_plan(with_photos("/new/photos"), tmp_path)
    moved.check_unchanged(moved.cells)
    others = make_plan(with_photos("/old/drawings"), tmp_path)
    with pytest.raises(UserError, match=r"other values of data\.source"):
        others.check_unchanged(others.cells)


def test_a_seed_may_be_added_in_front(tmp_path: Path) -> None:
    begin(with_photos("photos"), tmp_path)
    plan = make_plan(with_photos("photos", seeds=(1, 0)), tmp_path)
    plan.check_unchanged(plan.cells)
    assert [cell.name for cell in plan.cells] == ["timing/a", "pretrain/a-s1", "pretrain/a-s0"]


def test_an_entry_may_stand_for_a_method_and_a_variant(tmp_path: Path) -> None:
    both = PretrainingEntry(
        label="clove", recipe="random-r18", rows=("clove-200", "negatives-intra")
    )
    study = replace(
        tiny_study(),
        pretrainings=(both,),
        probes=(),
        finetunings=(FinetuningEntry(label="voc-c4", task="voc-c4", data="scenes"),),
        reference=None,
    )
    comparison = StudyComparison(make_plan(study, tmp_path))
    rows = {table.identity: [row.name for row in table.rows] for table in comparison.tables()}
    assert all(any("(clove)" in name for name in names) for names in rows.values())
    assert sorted(rows) == ["study:negative-sampling-voc-c4", "study:voc-eval-voc-c4"]
    assert len(comparison.unmeasured()) == len(PAPER_TABLES) - 2


def test_uneven_repetitions_are_not_written_as_a_product() -> None:
    values = {(0, 0): 1.0, (0, 1): 2.0, (0, 2): 3.0, (1, 0): 1.0}
    assert summarize(values).count == "2, 4"
    assert summarize({**values, (1, 1): 1.0, (1, 2): 1.0}).count == "2 x 3"


def test_a_probe_and_a_task_have_names_of_their_own() -> None:
    with pytest.raises(UserError, match="both called seg"):
        replace(
            tiny_study(),
            probes=(ProbeEntry(label="seg"),),
            finetunings=(FinetuningEntry(label="seg", task="voc-semantic"),),
        )
