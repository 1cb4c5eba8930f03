"""Words of a command line that are dealt with before the options of a config are read.

The first word, and a file, say what the options are laid over: a recipe, a protocol, a run. Where
``clove pretrain`` is told nothing but images, or a time, a run is chosen for this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import tyro

from clove_ssl.command_line.importing import starting
from clove_ssl.config.finetuning import FinetuneConfig, own_tasks, protocol, task_summaries
from clove_ssl.config.label_curves import LabelsConfig, shared_by_all
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.recipes import all_recipes, recipe

T = TypeVar("T")
C = TypeVar("C", PretrainConfig, FinetuneConfig)
Device = Literal["auto", "cpu", "cuda"]
Parse = Callable[[PretrainConfig], PretrainConfig]
"""Lays the options of the command line over a config."""

DATA = "--data"
_ANYWHERE = Path()
_ANY_BACKBONE = ""
"""Stand in for what the command line has to say."""


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


def base_config(args: list[str]) -> tuple[PretrainConfig, list[str]]:
    """What command-line options are laid over: a recipe, a file, or a recipe and then a file."""
    file, args = file_of(args)
    if (name := leading_name(args)) is not None:
        return _changed_by(file, recipe(name, _ANYWHERE), name), args[1:]
    if file is not None:
        return _without_out(_config_from_file(PretrainConfig, file)), args
    if wants_help(args):
        return recipe("clove-r50-200ep", tyro.MISSING), args
    return recipe("clove-demo", tyro.MISSING), args


def base_protocol(args: list[str]) -> tuple[FinetuneConfig, list[str]]:
    """What command-line options are laid over: a protocol, a file, or one and then the other."""
    file, args = file_of(args)
    if (name := leading_name(args)) is not None:
        named = _changed_by(file, protocol(name, _ANYWHERE, _ANY_BACKBONE), name)
        if named.backbone == _ANY_BACKBONE:
            named = replace(named, backbone=tyro.MISSING)
        return named, args[1:]
    if file is not None:
        return _without_out(_config_from_file(FinetuneConfig, file)), args
    if wants_help(args):
        return protocol("coco-fpn", tyro.MISSING, tyro.MISSING), args
    raise UserError(
        f"clove finetune needs a task: {', '.join(task_summaries())}. For classes of your own: "
        "clove finetune detect --backbone runs/a --data my_data --out runs/a-mine; for a published "
        "protocol: clove finetune voc-c4 --backbone runs/a --data VOCdevkit --out runs/a-voc"
    )


def base_labels(args: list[str]) -> tuple[LabelsConfig, list[str]]:
    """What the options of ``clove labels`` are laid over: those of a fine-tuning on own classes."""
    named = leading_name(args) is not None or file_of(args)[0] is not None
    if not named and not wants_help(args):
        raise UserError(
            f"clove labels needs a task: {', '.join(own_tasks())}. For example: clove "
            "labels detect --backbones random runs/a --data my_data --out runs/labels"
        )
    base, rest = base_protocol(args if named else ["detect", *args])
    return LabelsConfig(finetuning=shared_by_all(base), backbones=tyro.MISSING), rest


def check_spelling(args: Sequence[str]) -> None:
    """Say the full name of options that people know by a shorter one."""
    typed = [arg.partition("=") for arg in args]
    for at, (option, _, value) in enumerate(typed):
        following = value or next(iter(args[at + 1 :]), "")
        if option == "--method":
            named = [name for name in all_recipes() if name.startswith(f"{following}-")]
            examples = f"; of {following} there are {', '.join(named)}" if named else ""
            first = named[0] if named else "RECIPE"
            raise UserError(
                "A method is chosen by its recipe, which comes first, not by --method. Type: clove "
                f"pretrain {first} --data PHOTOS --out RUN (clove list recipes shows all"
                f"{examples})."
            )
        if option in _FULL_NAMES:
            raise UserError(
                f"{option} is called {_FULL_NAMES[option]} here. Type: {_FULL_NAMES[option]} "
                f"{following or 'VALUE'}"
            )


_FULL_NAMES = {
    "--learning-rate": "--lr",
    "--weight-decay": "--optimizer.weight-decay",
    "--optimizer": "--optimizer.name",
    "--backbone": "--backbone.name",
}
"""Options of ``clove pretrain`` by the short names that other programs give them."""


def _config_from_file(cls: type[T], file: Path) -> T:
    from clove_ssl.config import files

    # A run's own folder is never free, so --out is asked for anew, and the file needs none.
    return files.load(cls, file, overrides={"out": str(_ANYWHERE)})


def _changed_by(file: Path | None, config: C, name: str) -> C:
    """A named config with the values of a file laid over it, if any; ``out`` is left open."""
    if file is not None:
        from clove_ssl.config import files

        values = {**files.read_values(file), "out": str(_ANYWHERE)}
        if values.keys() >= {field.name for field in fields(config)}:
            raise UserError(
                f"{file} sets every option, so nothing of {name} would be left. Leave out one of "
                "the two, or keep only those lines of the file that shall differ."
            )
        config = files.changed(config, values, where=str(file))
    return _without_out(config)


def _without_out(config: C) -> C:
    return replace(config, out=tyro.MISSING)


def taken_out(args: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option, if it was given, and the other words."""
    for position, word in enumerate(args):
        name, is_joined, value = word.partition("=")
        if name != option:
            continue
        if is_joined:
            return value, args[:position] + args[position + 1 :]
        if position + 1 == len(args):
            raise UserError(f"{option} needs a {_EXAMPLES[option].format(option)}")
        return args[position + 1], args[:position] + args[position + 2 :]
    return None, args


_EXAMPLES = {
    "--config": "file, for example {} runs/a/config.yaml",
    "--minutes": "number, for example {} 30",
}


def file_of(args: list[str]) -> tuple[Path | None, list[str]]:
    """The file that ``--config`` names, and the other words."""
    value, rest = taken_out(args, "--config")
    return (None if value is None else Path(value)), rest


def minutes_of(args: list[str]) -> tuple[float | None, list[str]]:
    """How long a run may take, if that was said, and the other words."""
    value, rest = taken_out(args, "--minutes")
    if value is None:
        return None, rest
    try:
        minutes = float(value)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 10**6:
        raise UserError(
            f"--minutes is {value}; expected a number above 0, up to 1,000,000. Leave it out for "
            "the usual time."
        )
    return minutes, rest


def flag_of(args: list[str], flag: str) -> tuple[bool, list[str]]:
    """Whether a flag was given, and the other words."""
    return flag in args, [word for word in args if word != flag]


def data_words(args: list[str]) -> tuple[list[str], list[str]]:
    """Everything that ``--data`` names, however often it was given, and the other words."""
    named: list[str] = []
    rest: list[str] = []
    collecting = False
    for word in args:
        if word.startswith(f"{DATA}="):
            named.append(word.removeprefix(f"{DATA}="))
            collecting = False
        elif word == DATA:
            collecting = True
        elif word.startswith("--"):
            collecting = False
            rest.append(word)
        elif collecting:
            named.append(word)
        else:
            rest.append(word)
    return named, rest


def with_all_data(args: list[str]) -> list[str]:
    """The words, with several ``--data`` as one source that is followed by others."""
    named, rest = data_words(args)
    if not named:
        return args  # the parser says what is missing
    more = ["--data.more", *named[1:]] if named[1:] else []
    return [*rest, DATA, named[0], *more]


def refuse_several(args: list[str]) -> None:
    """Refuse ``--data`` that is given twice, of which only the last would count."""
    times = sum(word == DATA or word.startswith(f"{DATA}=") for word in args)
    if times > 1:
        raise UserError(
            f"{DATA} is given {times} times, but this command takes one. Give one of them; only "
            "clove pretrain takes several."
        )


def value_of(args: list[str], *names: str) -> str | None:
    """What an option was given as, if it was, without taking it out."""
    for position, word in enumerate(args):
        name, is_joined, value = word.partition("=")
        if name.replace("_", "-") in names:
            following = args[position + 1] if position + 1 < len(args) else ""
            return value if is_joined else following
    return None


def wants_help(args: list[str]) -> bool:
    """Whether the short page is asked for."""
    return "-h" in args or "--help" in args


def with_all_help(args: list[str]) -> list[str]:
    """The words as the parser of a config knows them, which shows every option when asked."""
    wants_all, rest = flag_of(args, "--help-all")
    return [*rest, "--help"] if wants_all else rest


def leading_name(args: list[str]) -> str | None:
    """The recipe or task that a command begins with."""
    return args[0] if args and not args[0].startswith("-") else None
