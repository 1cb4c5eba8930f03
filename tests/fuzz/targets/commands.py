"""Config files, run directories and command lines, through the front door."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import yaml
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.runs.tiny_runs import tiny_config
from builders.runs.tiny_studies import saved, tiny_study
from fuzz.formats import mostly
from fuzz.mutations import ODD_VALUES, damaged, damaged_json, damaged_value
from fuzz.target import Files, Limit, Target
from fuzz.targets.images import files_of

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.pretraining import run as pretraining
from clove_ssl.study import command as studying
from clove_ssl.study.config import StudyConfig

OUT = Path("run")


class Refused(Exception):
    """A command that ended as commands end when they are refused: with a sentence."""


def run_command(*arguments: str) -> None:
    """Run a command; whatever is no sentence is raised."""
    with muted():
        try:
            code = cli.main(arguments)
        except SystemExit as error:  # of the reader of options
            code = error.code if isinstance(error.code, int) else 1
    if code == 2:
        raise Refused
    assert code in (0, None), f"exit code {code}"


@contextmanager
def muted() -> Iterator[None]:
    """Let what is said go nowhere, through files as Python opens them."""
    kept = sys.stdout, sys.stderr
    with open(os.devnull, "w") as out, open(os.devnull, "w", errors="backslashreplace") as errors:
        sys.stdout, sys.stderr = out, errors
        try:
            yield
        finally:
            sys.stdout, sys.stderr = kept


def damaged_yaml(data: bytes, chance: Random) -> bytes:
    """A config with other values in it."""
    value = damaged_value(yaml.safe_load(data), chance)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")


_TRAPS = (
    b"a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n",
    *(b"<<: *a\n", b"? [a, b]\n: c\n", b"!!python/object/apply:os.system [touch x]\n"),
    *(b"steps: 2026-13-45\n", b"out: !!binary x\n", b"%YAML 9.9\n---\n", b"---\n---\n", b"\t- a"),
)


def _any_yaml(data: bytes, chance: Random) -> bytes:
    if chance.random() < 0.2:
        lines = data.splitlines(keepends=True)
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(_TRAPS))
        return b"".join(lines)
    return mostly(damaged_yaml)(data, chance)


def _yaml_seeds() -> dict[str, Files]:
    configs = {
        "pretraining": tiny_config(OUT),
        "finetuning": tiny_finetuning("coco-fpn", OUT),
        "semantic": tiny_finetuning("voc-semantic", OUT),
        "study": tiny_study(),
    }
    return {name: {"config.yaml": files.to_yaml(one).encode()} for name, one in configs.items()}


def _read_yaml(folder: Path) -> None:
    """As every kind of config: the changed file does not say which it was."""
    path, refused = folder / "config.yaml", 0
    for kind in (PretrainConfig, FinetuneConfig, StudyConfig):
        try:
            files.load(kind, path)
        except UserError:
            refused += 1
    if refused == 3:
        raise Refused


YAML = Target(
    "yaml",
    _yaml_seeds,
    _read_yaml,
    Limit(1.5, 64),
    damages={"": _any_yaml},
    refusals=(Refused,),
)


@cache
def _runs() -> dict[str, Files]:
    """Finished runs of both kinds."""
    found = {}
    for name, start, config in (
        ("pretraining", pretraining.pretrain, lambda out: tiny_config(out, steps=2)),
        ("finetuning", finetuning.finetune, _small_finetuning),
    ):
        found[name] = _small(files_of(_quiet(lambda folder, s=start, c=config: s(c(folder / OUT)))))
    return found


def _small_finetuning(out: Path) -> FinetuneConfig:
    return replace(tiny_finetuning("voc-semantic", out), architecture="timm:test_resnet")


def _small(run: Files) -> Files:
    """A run without what commands only write, and without weights of many megabytes."""
    written = (".png", ".html", ".lock", ".jpg", ".xml")
    scenes = f"{OUT}/scenes/"
    return {
        path: data
        for path, data in run.items()
        if len(data) < 2**22 and (path.startswith(scenes) or not path.endswith(written))
    }


def _quiet(write: Callable[[Path], object]) -> Callable[[Path], None]:
    def quiet(folder: Path) -> None:
        with muted():
            write(folder)

    return quiet


def _use_run(folder: Path) -> None:
    """Ask about a run, write its page, score it, and take its backbone."""
    out, target = str(folder / OUT), str(folder / "taken.safetensors")
    commands = [("doctor", out), ("report", out, "--no-pictures"), ("import", out, "--out", target)]
    if (folder / OUT / "scenes").is_dir():
        commands.append(("score", out))
    _run_all(commands)


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands; refused is what all of them refuse."""
    refused = 0
    for command in commands:
        try:
            run_command(*command)
        except Refused:
            refused += 1
    if refused == len(commands):
        raise Refused


_DAMAGES = {".json": damaged_json, ".yaml": _any_yaml, ".jsonl": damaged}
_WRITTEN = (".json", ".jsonl", ".yaml", ".pt", ".sha256", ".txt", ".npz")

RUNS = Target(
    "run-directories",
    _runs,
    _use_run,
    Limit(4.0, 128),
    turns=3,
    damages=_DAMAGES,
    changed=_WRITTEN,
    refusals=(Refused,),
    may_start=True,
)


def _stopped() -> dict[str, Files]:
    """The same runs, stopped before they wrote what comes at their end."""
    last = ("/scores.json", "/backbone.safetensors", "/model_card.md", "/model.safetensors")
    return {
        name: {path: data for path, data in run.items() if not path.endswith(last)}
        for name, run in _runs().items()
    }


RESUMED = replace(
    RUNS,
    name="resumed-runs",
    seeds=_stopped,
    read=lambda folder: _run_all([("resume", str(folder / OUT))]),
    limit=Limit(10.0, 256),
    turns=2,
)


def _study_seeds() -> dict[str, Files]:
    def write(folder: Path) -> None:
        saved(tiny_study(), folder)
        run_command("study", str(folder / "study-file.yaml"), "--out", str(folder / OUT))
        failure = folder / OUT / "cells" / "probe--dense--clove-s0.failure.txt"
        failure.write_text("out of memory\n")
        (folder / "bench.jsonl").write_text(_MEASURED)

    return {"study": _small(files_of(write))}


_MEASURED = """{"name": "step", "method": "clove", "backbone": "resnet18", "images_per_second": 9}
{"case": "voc-c4", "images_per_s": 3.5, "device": "a GPU"}
"""


def _use_study(folder: Path) -> None:
    """Price a study, and write its tables."""
    study = ("study", str(folder / "study-file.yaml"), "--out", str(folder / OUT))
    _run_all([(*study, "--dry-run", "--bench", str(folder / "bench.jsonl")), (*study, "--report")])


STUDIES = Target(
    "studies",
    _study_seeds,
    _use_study,
    Limit(6.0, 256),
    turns=2,
    damages=_DAMAGES,
    changed=_WRITTEN,
    refusals=(Refused,),
    may_start=True,
)

_LINES = (
    "pretrain clove-r18-small --data . --out x --epochs 1",
    "pretrain clove-r50-200ep --data scenes --out x --batch-size 64 --optimizer.lr 0.1",
    "pretrain --config config.yaml --out x --method.loss.top-k 5 --device cpu",
    "finetune voc-c4 --backbone random --out x --iterations 3 --data .",
    "finetune coco-fpn --backbone random:resnet18 --out x --data.faulty leave-out",
    "probe random:resnet18 --data scenes --knn 5",
    "embed random:resnet18 --data nowhere --out x.npz",
    "import config.yaml --out x.safetensors",
    "export run --to torchvision --out x",
    "show views run",
    "report run run --out x.html",
    "resume run --micro-batch 4",
    "score run",
    "study smoke --out x --dry-run",
    "list methods",
    "doctor run",
    "bench --help",
    "--help",
)
_VALUES = ("-3", "0", "1e300", "nan", "inf", "10" * 20, "True", "None", "", "-", "--", "é\udce9")


def damaged_line(data: bytes, chance: Random) -> bytes:
    """A command line with other words in it."""
    words = data.decode("utf-8", "surrogateescape").split("\n")
    for _ in range(chance.choice((1, 1, 2, 3))):
        words = words or ["--help"]
        place = chance.randrange(len(words) + 1)
        kind = chance.random()
        if kind < 0.5:
            words[place : place + 1] = [chance.choice((*_VALUES, str(chance.choice(ODD_VALUES))))]
        elif kind < 0.6:
            del words[place : place + 1]
        elif kind < 0.8:
            other = shlex.split(chance.choice(_LINES))
            words[place:place] = other[1 + chance.randrange(len(other)) :][:2]
        else:
            word = damaged(words[place - 1].encode("utf-8", "surrogateescape"), chance)[:300]
            words[place - 1] = word.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    return "\n".join(words).encode("utf-8", "backslashreplace").replace(b"\0", b"")


def _line_seeds() -> dict[str, Files]:
    config = files.to_yaml(replace(tiny_config(OUT), steps=2)).encode()
    return {
        line.split()[0] + str(number): {
            "words": "\n".join(shlex.split(line)).encode(),
            "config.yaml": config,
        }
        for number, line in enumerate(_LINES)
    }


def _run_line(folder: Path) -> None:
    """A command up to the point where work of minutes would begin."""
    text = (folder / "words").read_bytes().replace(b"\0", b"")  # which no command line can hold
    words = text.decode("utf-8", "surrogateescape").split("\n")
    if words[0] in ("watch", "bench", "probe", "embed", "show", "doctor") and "--help" not in words:
        words.append("--help")  # these would begin to work
    with _without_training():
        run_command(*words)


@contextmanager
def _without_training() -> Iterator[None]:
    """Let the three long verbs end where they have understood what is wanted."""
    with ExitStack() as stack:
        for room, verb in (
            (pretraining, "pretrain"),
            (finetuning, "finetune"),
            (studying, "run_study"),
        ):
            stack.enter_context(patch.object(room, verb))
        yield


LINES = Target(
    "command-lines",
    _line_seeds,
    _run_line,
    Limit(6.0, 128),
    turns=2,
    damages={"": mostly(damaged_line)},
    changed=("words",),
    refusals=(Refused,),
    may_start=True,
)

TARGETS = (YAML, RUNS, RESUMED, STUDIES, LINES)
