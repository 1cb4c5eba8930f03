"""Probes of a run on the images it was trained on, which need no labels and no other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clove_ssl.config.pretraining import SCENES, BackboneConfig, PretrainConfig
from clove_ssl.config.probing import USUAL_SIDE, ProbeConfig
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.probes.data import ProbeData, readable_images
from clove_ssl.runs.directory import RunDirectory, read_config
from clove_ssl.runs.probe_file import RANDOM


@dataclass(frozen=True)
class TrainedRun:
    """A pre-training run among what is probed."""

    name: str
    config: PretrainConfig

    def images(self) -> ProbeData:
        """Its own images."""
        try:
            source = open_source(self.config.data)
        except UserError as error:
            raise UserError(
                f"{self.name} was trained on {self.config.data.source}, which cannot be read from "
                f"here: {error} Name images to probe it on: clove probe {self.name} --data PHOTOS"
            ) from None
        return ProbeData(images=readable_images(source))


def trained_runs(backbones: Sequence[str]) -> list[TrainedRun]:
    """Those of the named backbones that are pre-training runs."""
    found = []
    for name in backbones:
        run = RunDirectory(Path(name))
        if not name.startswith(RANDOM) and run.config.is_file():
            config = read_config(run)
            if isinstance(config, PretrainConfig):
                found.append(TrainedRun(name, config))
    return found


def with_baseline(config: ProbeConfig) -> ProbeConfig:
    """The same probe with random weights beside a run that is alone: one number says little."""
    runs = trained_runs(config.backbones)
    if len(config.backbones) != 1 or not runs or not runs[0].config.method.trains:
        return config
    baseline = f"{RANDOM}{runs[0].config.backbone.name}"
    return replace(config, backbones=(*config.backbones, baseline))


def random_config(name: str, backbones: Sequence[str]) -> BackboneConfig:
    """The network of ``random:NAME``; built as the run beside it, if that has the same name."""
    architecture = name.removeprefix(RANDOM)
    for run in trained_runs(backbones):
        if run.config.backbone.name == architecture:
            return replace(run.config.backbone, weights=None)
    return BackboneConfig(name=architecture)


def with_defaults(config: ProbeConfig) -> tuple[ProbeConfig, TrainedRun | None]:
    """The probe with its images named, and the run whose own images they are, if they are."""
    runs = trained_runs(config.backbones)
    if config.data is not None or not runs or runs[0].config.data.source == SCENES:
        size = config.size or USUAL_SIDE
        return replace(config, data=config.data or SCENES, size=size), None
    own = runs[0]
    side = max((spec.size for spec in own.config.method.view_specs()), default=USUAL_SIDE)
    named = replace(config, data=own.config.data.source, size=config.size or side)
    return named, own
