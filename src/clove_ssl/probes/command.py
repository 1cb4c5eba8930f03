"""``clove probe``: the scores of several backbones, side by side.

The result of a run is also kept in its ``probes.json`` and shown in its report: one
entry per backbone and score, with the data, size, stages and seed it was found with.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console as RichConsole
from rich.table import Table

from clove_ssl.atomic import write_text
from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.errors import UserError
from clove_ssl.probes.data import open_probe_data
from clove_ssl.probes.scores import Score
from clove_ssl.probes.suite import TITLES, Amounts, ProbeSuite
from clove_ssl.report.page import write_report
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.probe_file import read_probes
from clove_ssl.training.processes import choose_device
from clove_ssl.weights.load import load_backbone

RANDOM = "random:"

Results = dict[str, dict[str, Score]]
"""Scores by backbone, then by name."""


def probe_backbones(config: ProbeConfig, suite: ProbeSuite | None = None) -> Results:
    """Probe each backbone on the same images, print a table, and record it in the runs.

    ``suite`` has the images in memory where they were used before.
    """
    if not config.backbones:
        raise UserError(
            "clove probe needs something to probe. Name a run, a backbone file or random weights: "
            "clove probe random:resnet18 runs/a"
        )
    for run in _runs(config):
        read_probes(run)  # a damaged file is better found before the work than after it
    backbones = {name: _open_backbone(name, config) for name in config.backbones}
    suite = suite or open_suite(config)
    config = replace(config, stages=config.stages or (_trained_stage(backbones),))
    device = choose_device(config.device)
    results = {
        name: suite.measure(backbone, config.stages, device=device)
        for name, backbone in backbones.items()
    }
    RichConsole().print(_table(config, results))
    _record(config, results)
    return results


def open_suite(config: ProbeConfig) -> ProbeSuite:
    """The probes of a config, whatever the backbones."""
    amounts = _amounts(config)
    data = open_probe_data(
        config.data,
        train=config.train,
        test_split=config.test_split,
        size=config.size,
        counts=amounts.masks,
    )
    return ProbeSuite(data, size=config.size, names=config.probe, amounts=amounts, seed=config.seed)


def _amounts(config: ProbeConfig) -> Amounts:
    usual = Amounts()

    def limits(default: tuple[int, int]) -> tuple[int, int]:
        asked = config.train_images, config.test_images
        learned, judged = (
            given if given is not None else known
            for given, known in zip(asked, default, strict=True)
        )
        return learned, judged

    return Amounts(
        pairs=config.test_images if config.test_images is not None else usual.pairs,
        classes=limits(usual.classes),
        masks=limits(usual.masks),
        persons=limits(usual.persons),
    )


def _open_backbone(name: str, config: ProbeConfig) -> Backbone:
    if not name.startswith(RANDOM):
        return load_backbone(name)
    torch.manual_seed(config.seed)
    return build_backbone(BackboneConfig(name=name.removeprefix(RANDOM)))


def _trained_stage(backbones: dict[str, Backbone]) -> str:
    """One stage for all, so that the comparison is fair: that of the first trained one."""
    trained = [backbone for name, backbone in backbones.items() if not name.startswith(RANDOM)]
    return next(iter([*trained, *backbones.values()])).stage


def _table(config: ProbeConfig, results: Results) -> Table:
    """Backbones below each other, one block per score."""
    table = Table("score", "backbone", "value", "95 % interval", "chance")
    stages = " + ".join(config.stages)
    table.title = f"Frozen features of {stages} on {config.data}, {config.size} px"
    table.caption = "shares in percent; alignment and uniformity are better when lower"
    for kind in next(iter(results.values())):
        for place, (name, scores) in enumerate(results.items()):
            score = scores[kind]
            title = "" if place else TITLES[kind]
            table.add_row(title, name, score.shown(), score.shown_interval(), score.shown_chance())
        table.add_section()
    return table


def _record(config: ProbeConfig, results: Results) -> None:
    entries = [
        _entry(name, kind, score, config)
        for name, scores in results.items()
        for kind, score in scores.items()
    ]
    for run in _runs(config):
        fresh = {_identity(entry): entry for entry in (*read_probes(run), *entries)}
        write_text(run.probes, json.dumps(list(fresh.values()), indent=1) + "\n")
        write_report(run)


def _runs(config: ProbeConfig) -> list[RunDirectory]:
    """Those of the backbones that are runs."""
    runs = [RunDirectory(Path(name)) for name in config.backbones]
    return [run for run in runs if run.config.is_file()]


def _entry(name: str, kind: str, score: Score, config: ProbeConfig) -> dict[str, Any]:
    return {
        "backbone": name,
        "data": config.data,
        "size": config.size,
        "stages": list(config.stages),
        "seed": config.seed,
        "figure": kind,
        "title": TITLES[kind],
        "value": score.value,
        "interval": None if score.interval is None else list(score.interval),
        "chance": score.chance,
        "is_share": score.is_share,
        **score.extra,
    }


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two entries the same measurement; entries of old versions have no figure."""
    keys = ("backbone", "data", "size", "stages", "seed", "figure")
    return tuple(str(entry.get(key)) for key in keys)
