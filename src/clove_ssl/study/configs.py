"""The config of every run of a study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.config.pretraining import SCENES, PretrainConfig
from clove_ssl.config.probing import USUAL_SIDE, ProbeConfig
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.methods.recipes import recipe
from clove_ssl.probes.suite import TITLES
from clove_ssl.study.config import FinetuningEntry, PretrainingEntry, ProbeEntry, StudyConfig

_OF_CELLS = {"runs", "seed", "out", "backbone"}


class StudyConfigs:
    """Configs of the entries of a study; each is put together once, then given seeds and places."""

    def __init__(self, study: StudyConfig) -> None:
        self.study = study
        self._bases: dict[str, PretrainConfig] = {}
        self._probes: dict[str, ProbeConfig] = {}
        self._tasks: dict[str, FinetuneConfig] = {}

    def base(self, entry: PretrainingEntry) -> PretrainConfig:
        """The pre-training of an entry with all changes, but without a budget."""
        if entry.label not in self._bases:
            self._bases[entry.label] = _base_config(self.study, entry)
        return self._bases[entry.label]

    def pretraining(
        self, entry: PretrainingEntry, *, seed: int, out: Path, steps_in_time: int | None = None
    ) -> PretrainConfig:
        """The whole config; ``steps_in_time`` is what fits into a budget of seconds."""
        config, budget = replace(self.base(entry), seed=seed, out=out), self.study.budget
        if budget.amount is None or not config.method.trains:
            return config
        if budget.kind == "epochs":
            return replace(config, epochs=round(budget.amount), steps=None)
        if budget.kind == "steps":
            return replace(config, steps=round(budget.amount))
        return replace(in_time(config), steps=steps_in_time)

    def probe(self, entry: ProbeEntry, *, backbone: str) -> ProbeConfig:
        """A probe of one backbone; all have the same seed, so they see the same images."""
        if entry.label not in self._probes:
            data = self._labelled(entry.data) or entry.data
            base = ProbeConfig(backbones=(), data=data, size=USUAL_SIDE)
            changed = files.changed(base, entry.changes, where=f"changes of {entry.label}")
            if entry.main_score not in TITLES:
                raise unknown_name(f"score of probe {entry.label}", entry.main_score, TITLES)
            if "stages" not in entry.changes:
                self._check_stages(entry)
            self._probes[entry.label] = changed
        return replace(self._probes[entry.label], backbones=(backbone,))

    def finetuning(
        self, entry: FinetuningEntry, *, backbone: str, seed: int, out: Path
    ) -> FinetuneConfig:
        """The task's protocol with the changes and images of the study."""
        if entry.label not in self._tasks:
            self._tasks[entry.label] = self._task(entry)
        return replace(self._tasks[entry.label], backbone=backbone, seed=seed, out=out)

    def _task(self, entry: FinetuningEntry) -> FinetuneConfig:
        if given := sorted(_OF_CELLS & entry.changes.keys()):
            raise UserError(
                f"finetunings: {entry.label} has {', '.join(given)} under its changes, which every "
                "cell has of its own. For several fine-tunings of each backbone write seeds: [0, "
                "1, 2]."
            )
        base = protocol(entry.task, Path(), "random")
        config = files.changed(base, entry.changes, where=f"changes of {entry.label}")
        root = self._labelled(entry.data_name)
        if entry.data_name == SCENES or (root is None and not config.data.uses_scenes):
            return config
        if root is None:
            raise UserError(
                f"finetunings: {entry.label} needs a folder called {entry.data_name!r}. Name it: "
                f"--labelled {entry.data_name} FOLDER, or write `data: scenes` for built-in ones."
            )
        return replace(config, data=replace(config.data, root=Path(root)))

    def _labelled(self, name: str) -> str | None:
        return self.study.data.labelled.get(name)

    def _check_stages(self, probe: ProbeEntry) -> None:
        """Where all work on the same stage, it is what each is probed at."""
        trained = [entry for entry in self.study.pretrainings if entry.backbone is None]
        stages = {self.base(entry).backbone.stage for entry in trained}
        if len(stages) > 1:
            raise UserError(
                f"probes: {probe.label} would compare different stages "
                f"({', '.join(sorted(stages))}). Name those to probe under its changes, such as "
                "{stages: [c5]}."
            )


def in_time(config: PretrainConfig) -> PretrainConfig:
    """The config as it is timed: not compiled unless it says so; short runs never repay that."""
    return replace(config, compile="never") if config.compile == "auto" else config


def backbone_of(entry: PretrainingEntry, seed: int) -> str:
    """The weights of an entry that exist already."""
    assert entry.backbone is not None
    if len(entry.seeds) > 1 and "{seed}" not in entry.backbone:
        raise UserError(
            f"pretrainings: {entry.label} has {len(entry.seeds)} seeds but one backbone, "
            f"{entry.backbone}. Name one per seed, such as runs/a-{{seed}}, or give one seed."
        )
    return entry.backbone.replace("{seed}", str(seed))


def plain(config: Any) -> dict[str, Any]:
    """What makes two configs the same work: everything but where they lie."""
    values = files.values_of(config)
    values.pop("out", None)
    values.pop("backbones", None)
    if isinstance(config, FinetuneConfig):
        values.pop("backbone")
    return values


def without_folders(values: dict[str, Any]) -> dict[str, Any]:
    """A plain config in which images are known by the last part of their place alone."""
    short = {**values}
    for key in ("data", "train", "source", "root"):
        if isinstance(short.get(key), dict):
            short[key] = without_folders(short[key])
        elif isinstance(short.get(key), str):
            short[key] = Path(short[key]).name
    return short


def differing(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Options whose values differ, with dots between their levels.

    An option that only one side knows is new or gone in this version, which changes no work.
    """
    for key in before.keys() & after.keys():
        one, other = before[key], after[key]
        if isinstance(one, dict) and isinstance(other, dict):
            yield from differing(one, other, f"{prefix}{key}.")
        elif one != other:
            yield f"{prefix}{key}"


def _base_config(study: StudyConfig, entry: PretrainingEntry) -> PretrainConfig:
    out = Path()
    if entry.recipe is not None:
        config = recipe(entry.recipe, out)
    else:
        assert entry.config is not None
        config = files.load(PretrainConfig, entry.config, overrides={"out": "."})
    config = files.changed(config, study.changes, where="changes of the study")
    config = files.changed(config, entry.changes, where=f"changes of {entry.label}")
    if study.data.pretrain is None:
        return config
    return replace(config, data=replace(config.data, source=study.data.pretrain))
