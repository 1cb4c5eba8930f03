"""The backbones that are compared: their names in tables and folders, and their one network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from clove_ssl.config.finetuning import RANDOM, FinetuneConfig
from clove_ssl.config.label_curves import LabelsConfig
from clove_ssl.errors import UserError
from clove_ssl.finetuning.starting_point import open_backbone

_NAMED = f"{RANDOM}:"
_LONGEST = 40  # letters of a name


@dataclass(frozen=True)
class Arm:
    """One of the backbones that are compared."""

    name: str
    backbone: str  # as a fine-tuning takes it
    architecture: str | None

    @property
    def is_random(self) -> bool:
        """Whether nothing was learned before."""
        return self.backbone == RANDOM

    def started(self, config: FinetuneConfig) -> FinetuneConfig:
        """A fine-tuning that starts from this backbone."""
        return replace(config, backbone=self.backbone, architecture=self.architecture)


def open_arms(config: LabelsConfig) -> tuple[Arm, ...]:
    """All backbones, each of which was read once, so that a bad one is told before training."""
    shared, names = config.finetuning, arm_names(config.backbones)
    arms = [
        Arm(name, _place(given), shared.architecture)
        for name, given in zip(names, config.backbones, strict=True)
    ]
    networks = {arm.name: _network(arm, shared) for arm in arms if not arm.is_random}
    usual = shared.architecture or next(iter(networks.values()), None)
    for number, given in enumerate(config.backbones):
        if arms[number].is_random:
            named = given.removeprefix(_NAMED) if given.startswith(_NAMED) else usual
            arms[number] = replace(arms[number], architecture=named)
            networks[names[number]] = _network(arms[number], shared)
    _check_one_network(networks)
    return tuple(arms)


def arm_names(backbones: Iterable[str]) -> list[str]:
    """A short name for each backbone that is good for a folder; the second of a name has a 2."""
    names: list[str] = []
    for given in backbones:
        name = _short_name(given)
        numbered = (f"{name}-{number}" for number in count(2))
        names.append(next(each for each in chain([name], numbered) if each not in names))
    return names


def _short_name(given: str) -> str:
    """The name of a run, or of a file without its suffix."""
    if _is_random(given):
        return RANDOM
    path = Path(given).expanduser().absolute()
    if path.parent.name == "export":
        path = path.parent.parent
    name = path.stem if path.is_file() else path.name
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_LONGEST] or "backbone"


def _is_random(given: str) -> bool:
    return given == RANDOM or given.startswith(_NAMED)


def _place(given: str) -> str:
    """A path that holds wherever the comparison is continued from."""
    if _is_random(given):
        return RANDOM
    path = Path(given).expanduser()
    return str(path.absolute()) if path.exists() else given


def _network(arm: Arm, shared: FinetuneConfig) -> str:
    config = arm.started(shared)
    return open_backbone(config, config.task.build()).backbone.name


def _check_one_network(networks: dict[str, str]) -> None:
    if len(set(networks.values())) > 1:
        told = ", ".join(f"{name} is a {network}" for name, network in networks.items())
        raise UserError(
            f"The backbones are different networks: {told}. A curve would compare networks instead "
            "of weights. Give backbones of the same network; random without a name takes that of "
            "the others."
        )


def reference(arms: Sequence[Arm]) -> Arm:
    """What the others are compared with: the first random one, or else the first."""
    return next((arm for arm in arms if arm.is_random), arms[0])
