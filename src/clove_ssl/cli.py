"""``clove <verb>``: the only place that reads ``sys.argv`` or calls ``exit``.

Each verb is a function of its arguments; the code behind it is imported when it
is asked for, so ``--help`` answers without importing torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl import __version__
from clove_ssl.bench.config import BenchConfig
from clove_ssl.command_line.arguments import (
    data_words,
    flag_of,
    minutes_of,
    refuse_several,
    value_of,
    wants_all_help,
    wants_help,
    with_all_data,
)
from clove_ssl.command_line.bases import base_config, base_protocol, check_spelling
from clove_ssl.command_line.choosing import choose_pretraining, fit_to
from clove_ssl.command_line.completion import completion_script
from clove_ssl.command_line.importing import without_pauses
from clove_ssl.command_line.usage import finetune_page, pretrain_page
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.own_data import DataConfig
from clove_ssl.config.predicting import EvaluateConfig, PredictConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.probing import EmbedConfig, ProbeConfig
from clove_ssl.config.ranges import as_typed
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.config.showing import ReportConfig, ShowConfig, WatchConfig
from clove_ssl.errors import UserError, escaped, explained, unknown_name
from clove_ssl.interrupts import answering
from clove_ssl.methods.recipes import recipe
from clove_ssl.study.config import StudyRunConfig
from clove_ssl.weights.config import ExportConfig, ImportConfig

Arguments = Sequence[str]


def pretrain(args: Arguments) -> None:
    """Pre-train a backbone: clove pretrain [RECIPE] [--config FILE] --data PHOTOS --out RUN."""
    check_spelling(args)
    words = list(args)
    if wants_help(words):
        print(pretrain_page(_leading_name(words)))
        return
    minutes, words = minutes_of(words)
    overwrite, words = flag_of(words, "--overwrite")
    sources, _ = data_words(words)
    words = with_all_data(words)
    if wants_all_help(words):
        _read_pretraining([word for word in words if word != "--help-all"] + ["--help"])
    if _leaves_choice(words) and sources not in ([], ["scenes"]):
        parse = partial(_parsed_pretraining, words=words)
        config = choose_pretraining(words, sources, parse, minutes=minutes, overwrite=overwrite)
    else:
        config = fit_to(minutes, _read_pretraining(words), words)
    with without_pauses():
        from clove_ssl.pretraining import run as pretraining

    if overwrite:
        pretraining.pretrain(config, overwrite=True)
    else:
        pretraining.pretrain(config)
    _conclude(config.out)


def _conclude(run: Path) -> None:
    """Measure, draw and judge a run that has finished."""
    from clove_ssl.report import command as reporting

    reporting.conclude(run)


def _leaves_choice(words: list[str]) -> bool:
    """Whether neither a recipe nor a file says what to do; without --out nothing begins."""
    given = [value_of(words, option) for option in ("--config", "--data.source")]
    return _leading_name(words) is None and not any(given) and value_of(words, "--out") is not None


def _read_pretraining(words: list[str]) -> PretrainConfig:
    """The config that a recipe, a file and the options come to."""
    base, rest = base_config(words)
    return _parsed_pretraining(base, rest)


def _parsed_pretraining(base: PretrainConfig, words: list[str]) -> PretrainConfig:
    return tyro.cli(
        PretrainConfig,
        prog="clove pretrain [RECIPE] [--config FILE]",
        description="Every option of a pre-training run; clove pretrain --help has the usual ones.",
        default=base,
        args=words,
    )


def _leading_name(words: list[str]) -> str | None:
    """The recipe or task that a command begins with."""
    return words[0] if words and not words[0].startswith("-") else None


def finetune(args: Arguments) -> None:
    """Fine-tune a backbone on a task and score it: clove finetune TASK --backbone RUN --out OUT."""
    words = list(args)
    if wants_help(words):
        print(finetune_page())
        return
    overwrite, words = flag_of(words, "--overwrite")
    refuse_several(words)
    if wants_all_help(words):
        words = [word for word in words if word != "--help-all"] + ["--help"]
    base, rest = base_protocol(words)
    config = tyro.cli(
        FinetuneConfig,
        prog="clove finetune TASK [--config FILE]",
        description="Every option of a fine-tuning; clove finetune --help has the usual ones.",
        default=base,
        args=rest,
    )
    with without_pauses():
        from clove_ssl.finetuning import seeds as finetuning

    if overwrite:
        finetuning.finetune(config, overwrite=True)
    else:
        finetuning.finetune(config)


@dataclass(frozen=True, kw_only=True)
class ScoreArguments:
    """Score the predictions of a fine-tuning run again; needs no GPU and no weights."""

    run: Annotated[Path, tyro.conf.Positional]
    """Its run directory."""


def score(args: Arguments) -> None:
    """Score the predictions of a fine-tuning run: clove score RUN."""
    arguments = tyro.cli(ScoreArguments, prog="clove score", args=args)
    from clove_ssl.finetuning import score as scoring

    scoring.score_run(arguments.run)


def predict(args: Arguments) -> None:
    """Draw and write what a fine-tuned model finds: clove predict RUN IMAGES ... --out FOLDER."""
    config = tyro.cli(PredictConfig, prog="clove predict", args=args)
    from clove_ssl.predicting import command as predicting

    predicting.predict(config)


def evaluate(args: Arguments) -> None:
    """Score a fine-tuned model on another data set: clove evaluate RUN --data OTHER."""
    config = tyro.cli(EvaluateConfig, prog="clove evaluate", args=args)
    from clove_ssl.predicting import command as predicting

    predicting.evaluate(config)


@dataclass(frozen=True, kw_only=True)
class ResumeArguments(ResumeChanges):
    """Continue a run that was interrupted, or make a finished one longer."""

    run: Annotated[Path, tyro.conf.Positional]
    """Its run directory."""


def resume(args: Arguments) -> None:
    """Continue an interrupted run: clove resume RUN [--data MOVED] [--epochs LONGER]."""
    arguments = tyro.cli(ResumeArguments, prog="clove resume", args=_one_data(args))
    with without_pauses():
        from clove_ssl import resuming

    log = arguments.run / "metrics.jsonl"
    before = log.stat().st_size if log.is_file() else 0
    resuming.resume(
        arguments.run,
        micro_batch=arguments.micro_batch,
        data=arguments.data,
        epochs=arguments.epochs,
        steps=arguments.steps,
        max_bad=arguments.max_bad,
    )
    if log.is_file() and log.stat().st_size != before:  # a run that had ended is as it was
        _conclude(arguments.run)


def _one_data(args: Arguments) -> list[str]:
    """The words, with several ``--data`` as one."""
    named, rest = data_words(list(args))
    return [*rest, "--data", *named] if named else list(args)


def _with_one_data(args: Arguments) -> list[str]:
    """The words, if ``--data`` is among them once at most."""
    refuse_several(list(args))
    return list(args)


def probe(args: Arguments) -> None:
    """Measure frozen features, with whatever labels there are: clove probe RUN ... [--data VOC]."""
    config = tyro.cli(ProbeConfig, prog="clove probe", args=_with_one_data(args))
    from clove_ssl.probes import command as probing

    probing.probe_and_judge(config)


def embed(args: Arguments) -> None:
    """Write the features of images to a file: clove embed RUN --data PHOTOS --out FILE.npz."""
    config = tyro.cli(EmbedConfig, prog="clove embed", args=_with_one_data(args))
    from clove_ssl.probes.embed import write_embeddings

    write_embeddings(config)


def data(args: Arguments) -> None:
    """Show labels of your own images, and what is wrong with them: clove data DATA [--out DIR]."""
    config = tyro.cli(DataConfig, prog="clove data", args=args)
    from clove_ssl.tasks.own.command import show_data

    show_data(config)


def import_weights(args: Arguments) -> None:
    """Read a checkpoint of any known program: clove import FILE --out backbone.safetensors."""
    config = tyro.cli(ImportConfig, prog="clove import", args=args)
    from clove_ssl.exporting import importing

    importing.import_weights(config)


def export(args: Arguments) -> None:
    """Write a backbone for another program: clove export RUN --to FORMAT."""
    config = tyro.cli(ExportConfig, prog="clove export", args=args)
    from clove_ssl.exporting import command as exporting

    exporting.export_backbone(config)


def bench(args: Arguments) -> None:
    """Measure speed on this machine: clove bench [RECIPE] [--out results.jsonl]."""
    base, rest = BenchConfig(), list(args)
    if rest and not rest[0].startswith("-"):
        named = recipe(rest.pop(0), Path())
        base = BenchConfig(method=named.method, backbone=named.backbone)
    config = tyro.cli(BenchConfig, prog="clove bench [RECIPE]", default=base, args=rest)
    from clove_ssl.bench.command import run_bench

    run_bench(config)


def show(args: Arguments) -> None:
    """Draw views, matches, attention, similarity or features: clove show WHAT RUN [IMAGE ...]."""
    config = tyro.cli(ShowConfig, prog="clove show", args=args)
    from clove_ssl.pictures import command as showing

    showing.show(config)


def report(args: Arguments) -> None:
    """Write one page about runs: clove report RUN ... [--out report.html]."""
    config = tyro.cli(ReportConfig, prog="clove report", args=args)
    from clove_ssl.report import command as reporting

    reporting.report_runs(config)


def watch(args: Arguments) -> None:
    """Serve the report of runs that are going, on this machine: clove watch RUN."""
    config = tyro.cli(WatchConfig, prog="clove watch", args=args)
    from clove_ssl.report import watch as watching

    watching.watch(config)


def study(args: Arguments) -> None:
    """Compare methods over seeds and tasks, beside the paper: clove study NAME --out STUDY."""
    config = tyro.cli(StudyRunConfig, prog="clove study", args=args)
    from clove_ssl.study.command import run_study

    run_study(config)


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """Show what can be named."""

    what: Annotated[
        Literal["methods", "backbones", "recipes", "tasks", "formats"] | None,
        tyro.conf.Positional,
    ] = None
    """The kind of names; by default all kinds."""


def list_names(args: Arguments) -> None:
    """Show known names: clove list [methods|backbones|recipes|tasks|formats]."""
    arguments = tyro.cli(ListArguments, prog="clove list", args=args)
    from clove_ssl.console import Console
    from clove_ssl.listing import describe, describe_all

    for line in describe_all() if arguments.what is None else describe(arguments.what):
        Console().say(line)


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Check this machine and installation, or the health of a run."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """A run directory to look at."""


def doctor(args: Arguments) -> None:
    """Check this machine and installation, or a run: clove doctor [RUN]."""
    arguments = tyro.cli(DoctorArguments, prog="clove doctor", args=args)
    from clove_ssl.doctor.command import examine

    examine(arguments.run)


VERBS: dict[str, Callable[[Arguments], None]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "predict": predict,
    "evaluate": evaluate,
    "score": score,
    "data": data,
    "resume": resume,
    "probe": probe,
    "embed": embed,
    "import": import_weights,
    "export": export,
    "show": show,
    "report": report,
    "watch": watch,
    "study": study,
    "bench": bench,
    "list": list_names,
    "doctor": doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch a verb; return the process exit code."""
    verb, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if verb in {"-h", "--help", "--help-all"}:
        print(_usage())
        return 0
    if verb in {"-V", "--version"}:
        print(f"clove {__version__}")
        return 0
    try:
        if verb == "--print-completion":
            print(completion_script(rest, VERBS))
            return 0
        if verb not in VERBS:
            raise unknown_name("verb", verb, VERBS)
        with answering():
            VERBS[verb](rest)
        sys.stdout.flush()
    except UserError as error:
        print(f"clove: {escaped(str(as_typed(error, rest)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("clove: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output, such as head, has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if (told := explained(error)) is None:
            raise
        print(f"clove: {escaped(str(told))}", file=sys.stderr)
        return 2
    return 0


def entry() -> None:
    """The console script."""
    sys.exit(main())


def _usage() -> str:
    lines = [f"  {name:<10} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: clove <verb> [options]",
            "",
            *lines,
            "",
            "clove <verb> --help for more; clove --version; clove --print-completion bash|zsh",
        ]
    )
