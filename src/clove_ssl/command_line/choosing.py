"""What ``clove pretrain`` is told: a recipe, a file, options, a time, or nothing but images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from clove_ssl.command_line.arguments import (
    base_config,
    data_words,
    leading_name,
    minutes_of,
    value_of,
    wants_help,
    with_all_data,
    with_all_help,
)
from clove_ssl.command_line.importing import starting
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.errors import UserError

Device = Literal["auto", "cpu", "cuda"]
Parse = Callable[[PretrainConfig], PretrainConfig]
"""Lays the options of the command line over a config."""

_ANYWHERE = Path()


def pretraining_of(words: list[str], *, overwrite: bool) -> PretrainConfig:
    """The config that the words of a command come to: of a recipe, of a file, or chosen."""
    minutes, words = minutes_of(words)
    sources, _ = data_words(words)
    words = with_all_help(with_all_data(words))
    if _leaves_choice(words) and sources not in ([], ["scenes"]):
        parse = partial(_parsed, words=words)
        return choose_pretraining(words, sources, parse, minutes=minutes, overwrite=overwrite)
    base, rest = base_config(words)
    return fit_to(minutes, _parsed(base, rest), words)


def _leaves_choice(words: list[str]) -> bool:
    """Whether neither a recipe nor a file says what to do; without --out nothing begins."""
    if wants_help(words):
        return False
    given = [value_of(words, option) for option in ("--config", "--data.source")]
    return leading_name(words) is None and not any(given) and value_of(words, "--out") is not None


def _parsed(base: PretrainConfig, words: list[str]) -> PretrainConfig:
    """A config, with the options of the command line laid over it."""
    return tyro.cli(
        PretrainConfig,
        prog="clove pretrain [RECIPE] [--config FILE]",
        description="Every option of a pre-training run; clove pretrain --help has the usual ones.",
        default=base,
        args=words,
    )


def choose_pretraining(
    words: list[str],
    sources: Sequence[str],
    parse: Parse,
    *,
    minutes: float | None,
    overwrite: bool,
) -> PretrainConfig:
    """A run that is made for some images and this machine, but for what the options say."""
    with starting():
        from clove_ssl.console import Console
        from clove_ssl.pretraining import automatic
        from clove_ssl.runs.directory import check_is_free

    keep_length = names_length(words, minutes)
    check_is_free(Path(value_of(words, "--out") or ""), overwrite=overwrite)  # before measuring
    data = DataConfig(source=sources[0], more=tuple(sources[1:]))
    with Console() as console:
        suggested = automatic.suggest_run(_ANYWHERE, data, _device(words))
        config = parse(replace(suggested.config, out=tyro.MISSING))
        return automatic.settle_run(
            suggested, config, console, minutes=minutes, keep_length=keep_length
        )


def _device(words: list[str]) -> Device:
    """What was asked for; another word is refused when the options are read."""
    known: dict[str | None, Device] = {"cpu": "cpu", "cuda": "cuda"}
    return known.get(value_of(words, "--device"), "auto")


def fit_to(minutes: float | None, config: PretrainConfig, words: list[str]) -> PretrainConfig:
    """The config with as many epochs as fit into some minutes, if they were given."""
    if minutes is None:
        return config
    names_length(words, minutes)
    with starting():
        from clove_ssl.console import Console
        from clove_ssl.pretraining import automatic
        from clove_ssl.training.processes import choose_device

    with Console() as console:
        with console.working("Measuring the speed of this machine"):
            config, line = automatic.fit_budget(config, minutes, choose_device(config.device))
        console.choice(line.name, line.value, line.reason)
    return config


def names_length(words: list[str], minutes: float | None) -> bool:
    """Whether options say how long a run is; refuses two lengths."""
    given = [name for name in ("--epochs", "--steps") if value_of(words, name) is not None]
    if given and minutes is not None:
        raise UserError(
            f"--minutes {minutes:g} and {given[0]} both say how long the run is. Leave one of them "
            "out."
        )
    return bool(given)
