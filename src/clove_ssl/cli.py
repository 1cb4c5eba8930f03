"""``clove <verb>``: the only place that reads ``sys.argv`` or calls ``exit``.

Each verb is a function of its arguments; the code behind it is imported when it
is asked for, so ``--help`` answers without importing torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl.config.benching import BenchConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.config.recipes import RECIPES, recipe
from clove_ssl.errors import UserError, unknown_name

Arguments = Sequence[str]


def pretrain(args: Arguments) -> None:
    """Pre-train a backbone: clove pretrain [RECIPE] [--config FILE] --data PHOTOS --out RUN."""
    base, rest = _base_config(list(args))
    config = tyro.cli(
        PretrainConfig,
        prog="clove pretrain [RECIPE] [--config FILE]",
        description=_pretrain_help(),
        default=base,
        args=rest,
    )
    from clove_ssl.engine import pretraining

    pretraining.pretrain(config)


@dataclass(frozen=True, kw_only=True)
class ResumeArguments:
    """Continue a run that was interrupted."""

    run: Annotated[Path, tyro.conf.Positional]
    """Its run directory."""
    micro_batch: int | None = None
    """Images per forward pass and process, where another number of processes needs another one
    than the run was started with."""


def resume(args: Arguments) -> None:
    """Continue an interrupted run: clove resume RUN."""
    arguments = tyro.cli(ResumeArguments, prog="clove resume", args=args)
    from clove_ssl.engine import pretraining

    pretraining.resume(arguments.run, micro_batch=arguments.micro_batch)


def probe(args: Arguments) -> None:
    """Measure frozen features with a dense linear probe: clove probe RUN ... [--data VOC]."""
    config = tyro.cli(ProbeConfig, prog="clove probe", args=args)
    from clove_ssl.engine.probing import probe_backbones

    probe_backbones(config)


def bench(args: Arguments) -> None:
    """Measure speed on this machine: clove bench [--out results.jsonl]."""
    config = tyro.cli(BenchConfig, prog="clove bench", args=args)
    from clove_ssl.engine.benchmark import run_bench

    run_bench(config)


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Write the report of a run as one HTML file."""

    run: Annotated[Path, tyro.conf.Positional]
    """Its run directory."""


def report(args: Arguments) -> None:
    """Write report.html of a run: clove report RUN."""
    arguments = tyro.cli(ReportArguments, prog="clove report", args=args)
    from clove_ssl.console import Console
    from clove_ssl.runs import directory
    from clove_ssl.visual.report import write_report

    run = directory.find(arguments.run)
    write_report(run)
    Console().say(str(run.report))


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """Show what can be named."""

    what: Annotated[Literal["methods", "backbones", "recipes"], tyro.conf.Positional]


def list_names(args: Arguments) -> None:
    """Show known names: clove list methods|backbones|recipes."""
    arguments = tyro.cli(ListArguments, prog="clove list", args=args)
    from clove_ssl.console import Console
    from clove_ssl.listing import describe

    for line in describe(arguments.what):
        Console().say(line)


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Check this machine and installation, or the health of a run."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """A run directory to look at."""


def doctor(args: Arguments) -> None:
    """Check this machine and installation, or a run: clove doctor [RUN]."""
    arguments = tyro.cli(DoctorArguments, prog="clove doctor", args=args)
    from clove_ssl.engine.doctor import examine

    examine(arguments.run)


VERBS: dict[str, Callable[[Arguments], None]] = {
    "pretrain": pretrain,
    "resume": resume,
    "probe": probe,
    "report": report,
    "bench": bench,
    "list": list_names,
    "doctor": doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch a verb; return the process exit code."""
    verb, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if verb in {"-h", "--help"}:
        print(_usage())
        return 0
    try:
        if verb not in VERBS:
            raise unknown_name("verb", verb, VERBS)
        VERBS[verb](rest)
    except UserError as error:
        print(f"clove: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("clove: interrupted", file=sys.stderr)
        return 130
    return 0


def entry() -> None:
    """The console script."""
    sys.exit(main())


def _usage() -> str:
    lines = [f"  {name:<10} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(
        ["usage: clove <verb> [options]", "", *lines, "", "clove <verb> --help for more"]
    )


def _base_config(args: list[str]) -> tuple[PretrainConfig, list[str]]:
    """The recipe or file that command-line options are laid over, and the options left."""
    if args and not args[0].startswith("-"):
        return recipe(args[0], tyro.MISSING), args[1:]
    if "--config" in args:
        return _config_from_file(args)
    wants_help = "-h" in args or "--help" in args
    return recipe("clove-r50-200ep" if wants_help else _default_recipe(), tyro.MISSING), args


def _config_from_file(args: list[str]) -> tuple[PretrainConfig, list[str]]:
    from clove_ssl.config import files

    position = args.index("--config")
    if position + 1 == len(args):
        raise UserError("--config needs a file, for example --config runs/a/config.yaml")
    # A run's own folder is never free, so --out is asked for anew, and the file needs none.
    config = files.load(PretrainConfig, Path(args[position + 1]), overrides={"out": "."})
    rest = args[:position] + args[position + 2 :]
    return replace(config, out=tyro.MISSING), rest


def _default_recipe() -> str:
    """Without a GPU the published recipe would take years, so the demo stands in."""
    import torch

    from clove_ssl.console import Console

    if torch.cuda.is_available():
        return "clove-r50-200ep"
    Console().choice("recipe", "clove-demo", "no GPU; name another recipe to override this")
    return "clove-demo"


def _pretrain_help() -> str:
    lines = [f"{name}: {(make.__doc__ or '').splitlines()[0]}" for name, make in RECIPES.items()]
    return "Pre-train a backbone on unlabelled images. Recipes: " + "  ".join(lines)
