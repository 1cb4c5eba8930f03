"""``clove probe``: the scores of several backbones, side by side.

The result of a run is also kept in its ``probes.json`` and shown in its report: one
entry per backbone and score, with the data, size, stages and seed it was found with. ``--out``
names one more such file, which backbones that are no run have as well.
Without ``--data`` a run is probed on its own images; a sentence says what the scores mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console as RichConsole
from rich.table import Table

from clove_ssl.atomic import check_new_file, write_text
from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import absolute_source
from clove_ssl.config.probing import ProbeConfig, ProbeName
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.probes.data import open_probe_data
from clove_ssl.probes.own_images import (
    random_config,
    trained_runs,
    with_baseline,
    with_defaults,
)
from clove_ssl.probes.scores import Score, gain
from clove_ssl.probes.suite import TITLES, Amounts, ProbeSuite
from clove_ssl.report.page import write_report
from clove_ssl.report.verdict import probe_verdict
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.probe_file import RANDOM, SAME_IMAGES, Entries, read_entries, read_probes
from clove_ssl.training.processes import choose_device
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.safetensors_file import content_hash, portable_state

FAST_PROBES: tuple[ProbeName, ...] = ("correspondence", "spread")
"""What needs no labels."""

Results = dict[str, dict[str, Score]]
"""Scores by backbone, then by name."""


def probe_and_judge(config: ProbeConfig) -> Results:
    """What ``clove probe`` does: a run that is alone gets random weights to be compared with."""
    return probe_backbones(with_baseline(config))


def probe_backbones(config: ProbeConfig, suite: ProbeSuite | None = None) -> Results:
    """Probe each backbone on the same images, print a table, and record it in the runs.

    ``suite`` has the images in memory where they were used before.
    """
    if not config.backbones:
        raise UserError(
            "clove probe needs something to probe. Name a run, a backbone file or random weights: "
            "clove probe random:resnet18 runs/a"
        )
    _kept(config)  # a damaged file is better found before the work than after it
    config, results, hashes = _measure(config, suite)
    RichConsole().print(_table(config, results))
    entries = _entries(config, results, hashes)
    _record(config, entries)
    for run in _runs(config):
        write_report(run)
    for name, verdict in probe_verdict(entries).items():
        Console().say(f"{name}: {verdict.spoken()}")
    return results


def measure_finished(run: RunDirectory, *, images: int) -> None:
    """Record how a run that has just finished does on its own images, beside random weights."""
    config = ProbeConfig(backbones=(str(run.path),), probe=FAST_PROBES, test_images=images)
    config = with_baseline(config)
    config, results, hashes = _measure(config, open_suite(config))
    _record(config, _entries(config, results, hashes))


def _measure(
    config: ProbeConfig, suite: ProbeSuite | None
) -> tuple[ProbeConfig, Results, dict[str, str]]:
    """The config with its defaults filled in, and the scores and weights of all its backbones."""
    backbones = {name: _open_backbone(name, config) for name in config.backbones}
    hashes = {name: content_hash(portable_state(each.body)) for name, each in backbones.items()}
    suite = suite or open_suite(config)
    config, _ = with_defaults(config)
    config = replace(config, stages=config.stages or (_trained_stage(backbones),))
    device = choose_device(config.device)
    results = {
        name: suite.measure(backbone, config.stages, device=device)
        for name, backbone in backbones.items()
    }
    return config, results, hashes


def open_suite(config: ProbeConfig) -> ProbeSuite:
    """The probes of a config, whatever the backbones."""
    amounts = _amounts(config)
    config, own = with_defaults(config)
    assert config.data is not None  # the defaults are filled in
    assert config.size is not None
    if own is not None:
        data = own.images()
    else:
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

    def images(default: tuple[int, int]) -> tuple[int, int]:
        return config.train_images or default[0], config.test_images or default[1]

    return Amounts(
        pairs=config.test_images or usual.pairs,
        classes=images(usual.classes),
        masks=images(usual.masks),
        persons=images(usual.persons),
    )


def _open_backbone(name: str, config: ProbeConfig) -> Backbone:
    if not name.startswith(RANDOM):
        return load_backbone(name)
    torch.manual_seed(config.seed)
    return build_backbone(random_config(name, config.backbones))


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


def _entries(config: ProbeConfig, results: Results, hashes: Mapping[str, str]) -> Entries:
    """What is recorded: every score, and by how much it is ahead of random weights."""
    baseline = next((name for name in results if name.startswith(RANDOM)), None)
    starts = {run.name: run.config.backbone.weights for run in trained_runs(config.backbones)}
    entries = []
    for name, scores in results.items():
        for kind, score in scores.items():
            entry = {**_entry(name, kind, score, config), "weights": hashes[name]}
            if starts.get(name) is not None:
                entry["started_from"] = str(starts[name])
            if baseline is not None and name != baseline:
                ahead = gain(score, results[baseline][kind])
                interval = None if ahead.interval is None else list(ahead.interval)
                entry |= {"baseline": baseline, "gain": ahead.value, "gain_interval": interval}
            entries.append(entry)
    return entries


def _record(config: ProbeConfig, entries: Entries) -> None:
    """Add the entries to what each file has of other measurements; the last come last."""
    fresh = {_identity(entry) for entry in entries}
    for file, before in _kept(config).items():
        others = [entry for entry in before if _identity(entry) not in fresh]
        write_text(file, json.dumps([*others, *entries], indent=1) + "\n")


def _kept(config: ProbeConfig) -> dict[Path, Entries]:
    """What every file that is to be written has so far."""
    kept = {run.probes: read_probes(run) for run in _runs(config)}
    if config.out is not None:
        check_new_file(config.out, (".json",), usual="scores")
        kept[config.out] = read_entries(config.out, remedy="Give --out another file.")
    return kept


def _runs(config: ProbeConfig) -> list[RunDirectory]:
    """Those of the backbones that are runs."""
    runs = [RunDirectory(Path(name)) for name in config.backbones]
    return [run for run in runs if run.config.is_file()]


def _entry(name: str, kind: str, score: Score, config: ProbeConfig) -> dict[str, Any]:
    assert config.data is not None  # the defaults are filled in
    return {
        "backbone": name,
        "data": absolute_source(config.data),
        "train": None if config.train is None else absolute_source(config.train),
        "test_split": config.test_split,
        "train_images": config.train_images,
        "test_images": config.test_images,
        "size": config.size,
        "stages": list(config.stages),
        "seed": config.seed,
        "figure": kind,  # the name of the probe; people read this file, so the key stays
        "title": TITLES[kind],
        "value": score.value,
        "interval": None if score.interval is None else list(score.interval),
        "chance": score.chance,
        "is_share": score.is_share,
        **score.extra,
    }


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two entries the same measurement; some of old versions do not name the probe."""
    return tuple(str(entry.get(key)) for key in ("backbone", *SAME_IMAGES))
