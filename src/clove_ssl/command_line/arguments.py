"""Words of a command line that are dealt with before the options of a config are read."""

from __future__ import annotations

from pathlib import Path

from clove_ssl.errors import UserError

DATA = "--data"


def taken_out(args: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option, if it was given, and the other words."""
    for position, word in enumerate(args):
        name, is_joined, value = word.partition("=")
        if name != option:
            continue
        if is_joined:
            return value, args[:position] + args[position + 1 :]
        if position + 1 == len(args):
            raise UserError(f"{option} needs a {_meant(option)}, for example {_EXAMPLES[option]}")
        return args[position + 1], args[:position] + args[position + 2 :]
    return None, args


_EXAMPLES = {"--config": "--config runs/a/config.yaml", "--minutes": "--minutes 30"}


def _meant(option: str) -> str:
    return "file" if option == "--config" else "number"


def file_of(args: list[str], option: str = "--config") -> tuple[Path | None, list[str]]:
    """The file that an option names, and the other words."""
    value, rest = taken_out(args, option)
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
    if args.count(DATA) + sum(word.startswith(f"{DATA}=") for word in args) == 0:
        return args
    named, rest = data_words(args)
    if not named:
        return args  # the parser says what is missing
    more = ["--data.more", *named[1:]] if named[1:] else []
    return [*rest, DATA, named[0], *more]


def refuse_several(args: list[str], option: str = DATA) -> None:
    """Refuse an option that is given twice, of which only the last would count."""
    times = sum(word == option or word.startswith(f"{option}=") for word in args)
    if times > 1:
        raise UserError(
            f"{option} is given {times} times, but this command takes one. Give one of them; only "
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
