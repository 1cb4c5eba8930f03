"""``clove <verb>``: the only place that reads ``sys.argv`` or calls ``exit``.

Each verb is a function of its arguments; the code behind it is imported when it
is asked for, so ``--help`` answers without importing torch.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from clove_ssl import __version__
from clove_ssl.bench.config import BenchConfig, TaskBenchConfig
from clove_ssl.command_line.arguments import (
    DATA,
    base_labels,
    base_protocol,
    check_spelling,
    data_words,
    flag_of,
    leading_name,
    pretraining_of,
    refuse_several,
    wants_help,
    with_all_help,
)
from clove_ssl.command_line.completion import completion_script
from clove_ssl.command_line.importing import starting
from clove_ssl.command_line.usage import finetune_page, labels_page, pretrain_page
from clove_ssl.config.finetuning import RANDOM, protocol, task_summaries
from clove_ssl.config.predicting import EvaluateConfig, PredictConfig
from clove_ssl.config.probing import EmbedConfig, ProbeConfig
from clove_ssl.config.ranges import as_typed
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.config.showing import DataConfig, ReportConfig, ShowConfig, WatchConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError, escaped, explained, unknown_name
from clove_ssl.interrupts import answering
from clove_ssl.methods.recipes import all_recipes, recipe
from clove_ssl.study.config import StudyRunConfig
from clove_ssl.weights.config import ExportConfig, ImportConfig

Arguments = Sequence[str]
C = TypeVar("C")
_NARROWEST = 20  # columns


def pretrain(args: Arguments) -> None:
    """Pre-train a backbone: clove pretrain [RECIPE] [--config FILE] --data PHOTOS --out RUN."""
    check_spelling(args)
    words = list(args)
    if wants_help(words):
        print(pretrain_page(leading_name(words)))
        return
    overwrite, words = flag_of(words, "--overwrite")
    config = pretraining_of(words, overwrite=overwrite)
    with starting():
        from clove_ssl.whole_runs import begin

    begin(config, overwrite=overwrite)


def finetune(args: Arguments) -> None:
    """Fine-tune a backbone on a task and score it: clove finetune TASK --backbone RUN --out OUT."""
    words = list(args)
    if wants_help(words):
        print(finetune_page())
        return
    overwrite, words = flag_of(words, "--overwrite")
    config = _laid_over(base_protocol, words, usage="clove finetune TASK [--config FILE]")
    with starting():
        from clove_ssl.finetuning import seeds as finetuning

    finetuning.finetune(config, overwrite=overwrite)


def labels(args: Arguments) -> None:
    """Show what pre-training gains with few labels: clove labels TASK --backbones A B --out OUT."""
    words = list(args)
    if wants_help(words):
        print(labels_page())
        return
    config = _laid_over(base_labels, words, usage="clove labels TASK")
    with starting():
        from clove_ssl.label_curves import command as comparing

    comparing.compare_labels(config)


def _laid_over(
    base_of: Callable[[list[str]], tuple[C, list[str]]], words: list[str], *, usage: str
) -> C:
    """The config of a verb on a task: what its words begin with, and the options over that."""
    refuse_several(words)
    base, rest = base_of(with_all_help(words))
    command = usage.partition(" TASK")[0]
    description = f"Every option; {command} --help has the usual ones."
    return tyro.cli(type(base), prog=usage, description=description, default=base, args=rest)


@dataclass(frozen=True, kw_only=True)
class ScoreArguments:
    """Score the predictions of a fine-tuning run again; needs no GPU and no weights."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory."""


def score(args: Arguments) -> None:
    """Score the predictions of a fine-tuning run again: clove score RUN."""
    arguments = tyro.cli(ScoreArguments, prog="clove score", args=args)
    with starting():
        from clove_ssl.finetuning import score as scoring

    scoring.score_run(arguments.run)


def predict(args: Arguments) -> None:
    """Apply a fine-tuned model to images: clove predict RUN IMAGES ... --out FOLDER."""
    config = tyro.cli(PredictConfig, prog="clove predict", args=args)
    with starting():
        from clove_ssl.predicting.run import predict_images

    predict_images(config)


def evaluate(args: Arguments) -> None:
    """Score a fine-tuned model on another data set: clove evaluate RUN --data OTHER."""
    config = tyro.cli(EvaluateConfig, prog="clove evaluate", args=args)
    with starting():
        from clove_ssl.predicting.other_data import evaluate_on

    evaluate_on(config)


@dataclass(frozen=True, kw_only=True)
class ResumeArguments(ResumeChanges):
    """Continue a run that was interrupted, or make a finished one longer."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory."""


def resume(args: Arguments) -> None:
    """Continue an interrupted run: clove resume RUN [--data MOVED] [--epochs LONGER]."""
    arguments = tyro.cli(ResumeArguments, prog="clove resume", args=_one_data(args))
    with starting():
        from clove_ssl.whole_runs import resume as continue_run

    continue_run(
        arguments.run,
        micro_batch=arguments.micro_batch,
        data=arguments.data,
        epochs=arguments.epochs,
        steps=arguments.steps,
        max_bad=arguments.max_bad,
    )


def _one_data(args: Arguments) -> list[str]:
    """The words, with several ``--data`` as one."""
    named, rest = data_words(list(args))
    return [*rest, DATA, *named] if named else list(args)


def _with_one_data(args: Arguments) -> list[str]:
    """The words, if ``--data`` is among them once at most."""
    refuse_several(list(args))
    return list(args)


def probe(args: Arguments) -> None:
    """Measure how good frozen features are: clove probe RUN ... [--data VOC]."""
    config = tyro.cli(ProbeConfig, prog="clove probe", args=_with_one_data(args))
    with starting():
        from clove_ssl.probes import command as probing

    probing.probe_and_judge(config)


def embed(args: Arguments) -> None:
    """Write the features of images to a file: clove embed RUN --data PHOTOS --out FILE.npz."""
    config = tyro.cli(EmbedConfig, prog="clove embed", args=_with_one_data(args))
    with starting():
        from clove_ssl.probes.embed import write_embeddings

    write_embeddings(config)


def data(args: Arguments) -> None:
    """Show and check the labels of your own images: clove data DATA [--out DIR]."""
    config = tyro.cli(DataConfig, prog="clove data", args=args)
    with starting():
        from clove_ssl.tasks.own.command import show_data

    show_data(config)


def import_weights(args: Arguments) -> None:
    """Convert a checkpoint of another program: clove import FILE --out backbone.safetensors."""
    config = tyro.cli(ImportConfig, prog="clove import", args=args)
    with starting():
        from clove_ssl.exporting import importing

    importing.import_weights(config)


def export(args: Arguments) -> None:
    """Export a backbone or model to another program: clove export RUN --to FORMAT."""
    config = tyro.cli(ExportConfig, prog="clove export", args=args)
    with starting():
        from clove_ssl.exporting import command as exporting

    exporting.export_backbone(config)


def bench(args: Arguments) -> None:
    """Measure speed on this machine: clove bench [RECIPE or TASK] [--out results.jsonl]."""
    base, rest = BenchConfig(), list(args)
    name = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if name in (tasks := task_summaries()):
        bench_task(name, rest)
        return
    if name is not None:
        if name not in all_recipes():
            raise unknown_name("recipe or task", name, [*all_recipes(), *tasks])
        named = recipe(name, Path())
        base = BenchConfig(method=named.method, backbone=named.backbone)
    config = tyro.cli(BenchConfig, prog="clove bench [RECIPE or TASK]", default=base, args=rest)
    with starting():
        from clove_ssl.bench.command import run_bench

    run_bench(config)


def bench_task(name: str, args: Arguments) -> None:
    """Measure steps of fine-tuning: clove bench TASK [--out results.jsonl]."""
    usual = protocol(name, Path(), RANDOM)
    base = TaskBenchConfig(task=usual.task, batch=usual.solver.batch_size)
    config = tyro.cli(TaskBenchConfig, prog=f"clove bench {name}", default=base, args=args)
    with starting():
        from clove_ssl.bench.finetuning import run_task_bench

    run_task_bench(config)


def show(args: Arguments) -> None:
    """Draw views, matches, attention, similarity or features: clove show WHAT RUN [IMAGE ...]."""
    config = tyro.cli(ShowConfig, prog="clove show", args=args)
    with starting():
        from clove_ssl.pictures import command as showing

    showing.show(config)


def report(args: Arguments) -> None:
    """Write a one-page report about runs: clove report RUN ... [--out report.html]."""
    config = tyro.cli(ReportConfig, prog="clove report", args=args)
    with starting():
        from clove_ssl.report import command as reporting

    reporting.report_runs(config)


def watch(args: Arguments) -> None:
    """Serve a live report of runs on this machine: clove watch RUN."""
    config = tyro.cli(WatchConfig, prog="clove watch", args=args)
    with starting():
        from clove_ssl.report import watch as watching

    watching.watch(config)


def study(args: Arguments) -> None:
    """Compare methods over several seeds and tasks: clove study NAME --out STUDY."""
    config = tyro.cli(StudyRunConfig, prog="clove study", args=args)
    with starting():
        from clove_ssl.study.command import run_study

    run_study(config)


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """List what can be named."""

    what: Annotated[
        Literal["all", "methods", "backbones", "recipes", "tasks", "formats"],
        tyro.conf.Positional,
    ] = "all"
    """The kind of names."""


def list_names(args: Arguments) -> None:
    """List what can be named: clove list [methods|backbones|recipes|tasks|formats]."""
    arguments = tyro.cli(ListArguments, prog="clove list", args=args)

    with starting():
        from clove_ssl.listing import describe, describe_all

    for line in describe_all() if arguments.what == "all" else describe(arguments.what):
        Console().say(line)


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Check this machine and installation, or the health of a run."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """A run directory to look at."""


def doctor(args: Arguments) -> None:
    """Check this machine and installation, or a run: clove doctor [RUN]."""
    arguments = tyro.cli(DoctorArguments, prog="clove doctor", args=args)
    with starting():
        from clove_ssl.doctor.command import examine

    examine(arguments.run)


VERBS: dict[str, Callable[[Arguments], None]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "labels": labels,
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
    # Of damaged files, which are refused or not with a reason of our own.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    try:
        _look_around()
        _obey(verb, rest)
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
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        if (told := explained(error)) is None:
            raise
        print(f"clove: {escaped(str(told))}", file=sys.stderr)
        return 2
    return 0


def _obey(verb: str, rest: list[str]) -> None:
    if verb in {"-h", "--help", "--help-all", "help"}:
        print(_usage())
    elif verb in {"-V", "--version", "version"}:
        print(f"clove {__version__}")
    elif verb == "--print-completion":
        print(completion_script(rest, VERBS))
    elif verb in VERBS and any(map(_is_empty, rest)):
        raise UserError(
            f"One of the words after clove {verb} is empty, perhaps a variable that is not set. "
            "Look at them with echo, then type the command again."
        )
    elif any("\0" in word for word in rest):  # a shell has none, a program may
        raise UserError("One of the words holds a zero byte, which no name of a file can have.")
    elif verb in VERBS:
        with answering():
            VERBS[verb](rest)
    else:
        raise unknown_name("verb", verb, VERBS)


def _is_empty(word: str) -> bool:
    """Whether a word, or the value of an option, is a path that would mean the folder one is in."""
    option, is_joined, value = word.partition("=")
    return not word or bool(option.startswith("--") and is_joined and not value)


def _look_around() -> None:
    """Refuse or mend what libraries cannot stand about the place they run in."""
    try:
        os.getcwd()
    except FileNotFoundError:  # the mathematics library ends the process without asking
        raise UserError(
            "The folder that this shell is in does not exist any more. Go to another one: cd ~"
        ) from None
    if shutil.get_terminal_size().columns < _NARROWEST:  # on fewer, no help comes to an end
        os.environ["COLUMNS"] = str(_NARROWEST)


def entry() -> None:
    """The console script."""
    sys.exit(main())


def _usage() -> str:
    lines = [f"  {name:<10} {_in_short(verb)}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: clove <verb> [options]",
            "",
            *lines,
            "",
            "Begin with: clove pretrain --data PHOTOS --out RUN",
            "clove <verb> --help for more; clove --version; clove --print-completion bash|zsh",
        ]
    )


def _in_short(verb: Callable[[Arguments], None]) -> str:
    """What a verb does, in one line of 80 columns; its own help says what to type."""
    return (verb.__doc__ or "").partition("\n")[0].partition(": clove ")[0].rstrip(".")
