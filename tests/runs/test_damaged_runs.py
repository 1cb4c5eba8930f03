"""Every file of a run directory, damaged in many ways: readers go on, or say so in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.files.damages import damaged_trees, values, whole_files
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.runs.tiny_runs import tiny_config

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig, data_warnings
from clove_ssl.doctor.command import check_capture, check_checkpoints, run_checks
from clove_ssl.errors import UserError, explained
from clove_ssl.exporting.sources import _probes
from clove_ssl.finetuning.starting_point import continued_backbone
from clove_ssl.pretraining.choices import decide, decide_sizes
from clove_ssl.pretraining.going_on import unrestored_method
from clove_ssl.report.facts import hardware_facts, score_facts, when
from clove_ssl.report.finetuning import protocol_differences, score_boards
from clove_ssl.report.page import render_report
from clove_ssl.report.probe_bars import bar_charts
from clove_ssl.report.runs import read_run, read_runs
from clove_ssl.report.watch import news
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.history import History
from clove_ssl.runs.probe_file import read_probes
from clove_ssl.runs.provenance import (
    SHORTER_SIDE,
    read_starts,
    record_start,
    recorded_side,
    run_number,
    starting_folder,
    unreadable_files,
)
from clove_ssl.runs.state import RunState, read_state
from clove_ssl.tasks.scoring.scores import (
    Curve,
    Scores,
    ScoreTable,
    console_lines,
    read_scores,
    write_scores,
)
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.processes import Process

CPU = torch.device("cpu")
PROBE = {
    **{"backbone": "runs/a", "data": "scenes", "size": 64, "stages": ["c4"], "seed": 0},
    **{"figure": "knn", "title": "k-NN", "value": 0.5, "interval": [0.4, 0.6], "chance": 0.1},
    **{"is_share": True, "accuracy": 0.7},
}
SCORES = Scores(
    (
        ScoreTable(
            "box",
            "COCO's rule",
            {"AP": 0.5, "AP50": float("nan")},
            {"dog": {"AP": 0.5, "objects": 3.0}, "cat": {"AP": 0.1, "objects": 2.0}},
            {"dog": Curve((0.0, 1.0), (1.0, 0.5))},
        ),
    ),
    images=3,
)


@pytest.fixture
def pretrained(tmp_path: Path) -> RunDirectory:
    config = tiny_config(tmp_path / "pretrained")
    run = directory.create(config.out)
    files.save(config, run.config)
    run.metrics.write_text('{"step": 1, "loss": 3.0, "epoch": 0.4}\n{"step": 2, "loss": 2.0}\n')
    alone, method = Process(0, 1, 0, 1, CPU), unrestored_method(config)
    sizes = decide_sizes(config, alone, images=20)
    choices = {
        **decide(config, alone, sizes, method=method).values(),
        SHORTER_SIDE: {"value": 64},
    }
    record_start(run, CPU, step=0, processes=1, choices=choices, bad_files={"a.jpg": "cut"})
    run.probes.write_text(json.dumps([PROBE, {"backbone": "a", "data": "b", "miou": 0.5}]))
    CheckpointStore(run.checkpoints, keep=2, warn=print).save(2, {"step": 2})
    return run


@pytest.fixture
def finetuned(tmp_path: Path) -> RunDirectory:
    config = tiny_finetuning("voc-semantic", tmp_path / "finetuned")
    run = directory.create(config.out)
    files.save(config, run.config)
    write_scores(run.scores, SCORES)
    spread = {"mean": 0.5, "std": 0.1, "values": [0.4, 0.6]}
    summary = {"task": "voc-semantic", "runs": 2, "scores": {"box_AP": spread}}
    run.summary.write_text(json.dumps(summary))
    facts = {"backbone": "random", "norms": "none"}
    check = {"facts": facts, "architecture": "resnet18", "notes": ["a note"]}
    run.self_check.write_text(json.dumps(check))
    record_start(run, CPU, step=0, processes=1, choices={"plan": {"images": 20}})
    return run


def read_pretrained(run: RunDirectory) -> None:
    """What doctor, report and watch read, but for the page itself."""
    list(run_checks(run))
    assert read_run(run).hardware()
    assert json.dumps(news([run], "0"))


def read_provenance(run: RunDirectory, config: PretrainConfig) -> None:
    """The same of provenance.json alone, which is quicker."""
    state = read_state(run, config, [])
    starts = read_starts(run)
    assert state.status == "interrupted"
    assert hardware_facts(starts, History([]))
    list(check_capture(run))
    list(data_warnings(config, images=20, shorter_side=recorded_side(run)))
    assert json.dumps([starts, sorted(unreadable_files(run)), run_number(run)])
    starting_folder(run, config.out)
    assert all(isinstance(when(start.get("time", "")), str) for start in starts)


def read_probed(run: RunDirectory) -> None:
    bar_charts(read_probes(run))
    _probes(run)


def read_finetuned(run: RunDirectory) -> None:
    """What doctor, report and watch read."""
    list(run_checks(run))
    assert render_report([run])


def read_scored(run: RunDirectory) -> None:
    scores = read_scores(run.scores)
    assert scores.by_name() is not None
    list(console_lines(scores, classes=True))


def read_summary(run: RunDirectory) -> None:
    several = tiny_finetuning("voc-semantic", run.path, runs=2)
    score_facts(run, several)
    files.save(several, run.config)
    list(score_boards(read_runs([run])))


def read_self_check(run: RunDirectory) -> None:
    config = tiny_finetuning("voc-semantic", run.path)
    run.checkpoints.joinpath("step-000000002.pt").touch()
    continued_backbone(run, config, config.task.build())
    assert protocol_differences(read_run(run))


def failures(damages: Iterator[str], read: Callable[[], object]) -> list[str]:
    """Damages to which a reader answers with anything but a message."""
    found = []
    for damage in damages:
        try:
            read()
        except UserError:
            pass
        except OSError as error:
            if explained(error) is None and not isinstance(error, FileNotFoundError):
                found.append(f"{damage}: {error!r}")
        except Exception as error:
            found.append(f"{damage}: {error!r}")
    return found


@pytest.mark.parametrize("name", ["provenance.json", "metrics.jsonl", "config.yaml", ".lock"])
def test_files_of_a_pretraining_may_be_anything(pretrained: RunDirectory, name: str) -> None:
    path = pretrained.path / name
    path.touch()
    assert not failures(whole_files(path), lambda: (news([pretrained], "0"), read_run(pretrained)))


def test_checkpoint_files_may_be_anything(pretrained: RunDirectory) -> None:
    state = RunState("interrupted", 2, 6, 20, 0.4)
    for path in sorted(pretrained.checkpoints.iterdir()):
        assert not failures(whole_files(path), lambda: check_checkpoints(pretrained, state))
        store = CheckpointStore(pretrained.checkpoints, keep=2, warn=lambda text: None)
        assert not failures(whole_files(path), store.load_latest)


def test_any_value_of_the_provenance_may_be_wrong(pretrained: RunDirectory) -> None:
    config = files.load(PretrainConfig, pretrained.config)
    damages = values(pretrained.provenance)
    assert not failures(damages, lambda: read_provenance(pretrained, config))
    read_pretrained(pretrained)


def test_any_value_of_the_probes_may_be_wrong(pretrained: RunDirectory) -> None:
    path = pretrained.probes
    assert not failures(values(path), lambda: read_probed(pretrained))
    assert not failures(whole_files(path), lambda: read_probed(pretrained))
    assert [entry["value"] for entry in read_probes(pretrained)] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "read", "every"),
    [
        ("scores.json", read_scored, 1),
        ("summary.json", read_summary, 3),
        ("self_check.json", read_self_check, 9),  # each of which builds a network
    ],
)
def test_any_value_of_a_finetuning_may_be_wrong(
    finetuned: RunDirectory, name: str, read: Callable[[RunDirectory], None], every: int
) -> None:
    path = finetuned.path / name
    content = path.read_text()
    assert not failures(islice(values(path), 0, None, every), lambda: read(finetuned))
    path.write_text(content)
    assert not failures(islice(whole_files(path), 0, None, every), lambda: read(finetuned))


@pytest.mark.parametrize("kind", [PretrainConfig, FinetuneConfig])
def test_any_value_of_a_config_may_be_wrong(kind: type[Any], tmp_path: Path) -> None:
    config = (
        tiny_config(tmp_path)
        if kind is PretrainConfig
        else tiny_finetuning("coco-keypoints", tmp_path)
    )
    trees = dict(islice(damaged_trees(files.values_of(config)), 0, None, 31))
    told: dict[str, Any] = {}

    def names() -> Iterator[str]:
        for name, told["tree"] in trees.items():
            yield name

    def read() -> None:
        files.from_values(kind, told["tree"], where=tmp_path)

    assert not failures(names(), read)


def test_a_finetuning_without_damage_is_read(finetuned: RunDirectory) -> None:
    for read in (read_finetuned, read_scored, read_self_check, read_summary):
        read(finetuned)
