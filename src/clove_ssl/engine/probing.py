"""``clove probe``: the dense probe of several backbones, side by side.

The result of a run is also kept in its ``probes.json`` and shown in its report.
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
from clove_ssl.backbones.weights import load_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.data.labelled import DenseLabels, SceneLabels, VOCLabels
from clove_ssl.engine.distributed import choose_device
from clove_ssl.engine.probes import ProbeResult, dense_probe
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.visual.report import write_report

RANDOM = "random:"


def probe_backbones(config: ProbeConfig) -> dict[str, ProbeResult]:
    """Probe each backbone on the same images, print a table, and record it in the runs."""
    if not config.backbones:
        raise UserError(
            "clove probe needs something to probe. Name a run, a backbone file or random weights: "
            "clove probe random:resnet18 runs/a"
        )
    train, test = _open_labels(config)
    backbones = {name: _open_backbone(name, config) for name in config.backbones}
    config = replace(config, stages=config.stages or (_trained_stage(backbones),))
    device = choose_device(config.device)
    results = {
        name: dense_probe(
            backbone,
            train,
            test,
            size=config.size,
            stage=config.stages,
            device=device,
            max_train=config.train_images,
            max_test=config.test_images,
            seed=config.seed,
        )
        for name, backbone in backbones.items()
    }
    RichConsole().print(_table(config, results))
    _record(config, results)
    return results


def _open_labels(config: ProbeConfig) -> tuple[DenseLabels, DenseLabels]:
    if config.data == "scenes":
        train = SceneLabels(config.train_images, size=config.size, split="train")
        return train, SceneLabels(config.test_images, size=config.size, split="test")
    root = Path(config.data)
    return VOCLabels(root, "train"), VOCLabels(root, config.test_split)


def _open_backbone(name: str, config: ProbeConfig) -> Backbone:
    if not name.startswith(RANDOM):
        return load_backbone(name)
    torch.manual_seed(config.seed)
    return build_backbone(BackboneConfig(name=name.removeprefix(RANDOM)))


def _trained_stage(backbones: dict[str, Backbone]) -> str:
    """One stage for all, so that the comparison is fair: that of the first trained one."""
    trained = [backbone for name, backbone in backbones.items() if not name.startswith(RANDOM)]
    return next(iter([*trained, *backbones.values()])).stage


def _table(config: ProbeConfig, results: dict[str, ProbeResult]) -> Table:
    table = Table("backbone", "mIoU", "95 % interval", "pixel accuracy")
    stages = " + ".join(config.stages)
    table.title = f"Frozen dense probe of {stages} on {config.data}, {config.size} px"
    for name, result in results.items():
        low, high = result.interval
        row = (f"{100 * value:.1f}" for value in (result.miou, low, high, result.accuracy))
        miou, lower, upper, accuracy = row
        table.add_row(name, miou, f"{lower} to {upper}", accuracy)
    return table


def _record(config: ProbeConfig, results: dict[str, ProbeResult]) -> None:
    entries = [_entry(name, config, result) for name, result in results.items()]
    for name in config.backbones:
        run = RunDirectory(Path(name))
        if run.config.is_file():
            known = json.loads(run.probes.read_text()) if run.probes.exists() else []
            fresh = {_identity(entry): entry for entry in (*known, *entries)}
            write_text(run.probes, json.dumps(list(fresh.values()), indent=1) + "\n")
            write_report(run)


def _entry(name: str, config: ProbeConfig, result: ProbeResult) -> dict[str, Any]:
    return {
        "backbone": name,
        "data": config.data,
        "size": config.size,
        "stages": list(config.stages),
        "seed": config.seed,
        "miou": result.miou,
        "interval": list(result.interval),
        "accuracy": result.accuracy,
    }


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(str(entry[key]) for key in ("backbone", "data", "size", "stages", "seed"))
