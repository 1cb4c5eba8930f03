"""``clove doctor``: is this machine ready, or is this run healthy?

Prints a list of checks, each ok, something to look at, or a problem, and ends
with one line that says what to think of it and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig, data_warnings
from clove_ssl.console import Console
from clove_ssl.doctor.machine import Check, State, machine_checks, verdict
from clove_ssl.doctor.self_test import self_tests
from clove_ssl.errors import UserError, counted
from clove_ssl.report.verdict import RunVerdict, finetuning_verdict, run_verdict
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.hints import Hint, hints
from clove_ssl.runs.metric_table import Level
from clove_ssl.runs.metrics import damaged_lines, read_metrics
from clove_ssl.runs.provenance import read_starts, recorded_side, unreadable_files
from clove_ssl.runs.state import RunState, read_finetuning_state, read_state

MEANING: dict[Level, State] = {"good": "ok", "look": "look", "bad": "problem"}


def examine(run: Path | None = None) -> None:
    """Examine this machine, or a run when one is given."""
    with Console() as console:
        if run is None:
            checks = _show(chain(machine_checks(), self_tests()), console, width=18)
            console.say(verdict(checks, subject="This machine", healthy="is ready"))
        else:
            found = directory.find(run)
            checks = _show(run_checks(found), console, width=31)
            try:
                console.say(_last_line(checks, run_verdict(found)))
            except UserError as error:  # a damaged file of scores, which says what to do
                console.say(str(error))


def _last_line(checks: list[Check], found: RunVerdict) -> str:
    """The verdict; problems with the files of a run come before it."""
    problems = [check for check in checks if check.state == "problem"]
    if problems and found.standing != "bad":
        return verdict(checks, subject="This run", healthy="looks healthy")
    looks = sum(check.state == "look" for check in checks)
    if not looks:
        return found.spoken()
    lines = "1 line above needs" if looks == 1 else f"{looks} lines above need"
    return f"{lines} a look. {found.spoken()}"


def run_checks(run: RunDirectory) -> Iterator[Check]:
    """State, files and metrics of a run."""
    config = directory.read_config(run)
    if isinstance(config, FinetuneConfig):
        yield from finetuning_checks(run, config)
        return
    metrics = read_metrics(run)
    state = read_state(run, config, metrics)
    yield check_progress(run, state)
    yield check_checkpoints(run, state)
    yield from check_log(run)
    yield check_files(run)
    yield from check_data(run, config, state)
    yield from check_capture(run)
    yield from map(as_check, hints(metrics, config, total_steps=state.total_steps))


def finetuning_checks(run: RunDirectory, config: FinetuneConfig) -> Iterator[Check]:
    """State and loss of a fine-tuning run, or of each of its repetitions."""
    if config.runs > 1:
        for number in range(config.runs):
            part = run.repetition(number)
            if part.config.is_file():
                yield from finetuning_checks(part, files.load(FinetuneConfig, part.config))
        return
    metrics = read_metrics(run)
    state = read_finetuning_state(run, config, metrics)
    if state.status == "finished":
        yield Check("State", "ok", f"finished after {counted(state.step, 'step')}: {run.scores}")
    else:
        yield check_progress(run, state)
    yield check_checkpoints(run, state)
    yield from check_log(run)
    yield from check_capture(run)
    for loss in [line["loss"] for line in metrics if "loss" in line][-1:]:
        finite = math.isfinite(loss)
        text = f"{loss:.4g}" if finite else f"{loss}: try a smaller --lr in a new run"
        yield Check("Loss", "ok" if finite else "problem", text)
    if state.status == "finished":
        yield check_scores(run, config)


def check_scores(run: RunDirectory, config: FinetuneConfig) -> Check:
    """Whether a fine-tuned model finds anything at all."""
    try:
        found = finetuning_verdict(run, config)
    except UserError as error:
        return Check("Scores", "problem", str(error))
    if found.standing == "bad":
        return Check("Scores", "problem", f"{found.text} {found.next_step}")
    return Check("Scores", "ok", found.text)


def check_data(run: RunDirectory, config: PretrainConfig, state: RunState) -> Iterator[Check]:
    """Few images, batches larger than the data, images smaller than the views."""
    side = recorded_side(run)
    for text in data_warnings(config, images=state.images, shorter_side=side):
        yield Check("Data", "look", text)


def check_capture(run: RunDirectory) -> Iterator[Check]:
    """Whether the last start replays its steps, or why it does not; on a GPU."""
    for start in read_starts(run)[-1:]:
        choices = start.get("choices", {})
        made = choices.get("capture")
        if isinstance(made, dict) and made.get("reason") != "on a CPU":
            word = "yes" if made.get("value") else "no"
            yield Check("Captured steps", "ok", f"{word}: {made.get('reason', '')}")


def check_log(run: RunDirectory) -> Iterator[Check]:
    """Lines of the log that cannot be read, where there are any."""
    if damage := damaged_lines(run):
        yield Check("Log", "look", damage)


def check_progress(run: RunDirectory, state: RunState) -> Check:
    """How far the run has come."""
    total = f" of {state.total_steps:,}" if state.total_steps else ""
    if state.status == "finished":
        return Check(
            "State", "ok", f"finished after {counted(state.step, 'step')}; backbone: {run.backbone}"
        )
    if state.status == "running":
        return Check("State", "ok", f"running, step {state.step:,}{total}")
    return Check(
        "State", "look", f"interrupted at step {state.step:,}{total}. Type: clove resume {run.path}"
    )


def check_checkpoints(run: RunDirectory, state: RunState) -> Check:
    """Whether the run could go on from what it has written."""
    from clove_ssl.training.checkpoints import CheckpointStore  # imports torch

    store = CheckpointStore(run.checkpoints, keep=1, warn=lambda text: None)
    damaged: list[int] = []
    for checkpoint in store.all():
        try:
            is_intact = checkpoint.is_intact()
        except FileNotFoundError:  # a running process has just replaced it
            continue
        if is_intact:
            return judge_checkpoints(checkpoint.step, damaged, state)
        damaged.append(checkpoint.step)
    return judge_checkpoints(None, damaged, state)


def judge_checkpoints(intact: int | None, damaged: list[int], state: RunState) -> Check:
    """The newest intact checkpoint, and the damaged ones after it."""
    if intact is not None and not damaged:
        return Check("Last checkpoint", "ok", f"step {intact:,}, intact")
    broken = ", ".join(f"{step:,}" for step in damaged)
    if intact is not None:
        text = f"step {broken} is damaged; clove resume goes on from step {intact:,}"
        return Check("Last checkpoint", "look", text)
    if damaged:
        text = f"step {broken}: all damaged, the run cannot be resumed. Start it again."
        return Check("Last checkpoint", "problem", text)
    if state.status == "interrupted":
        text = "none, so clove resume starts from the first step"
        return Check("Last checkpoint", "look", text)
    return Check("Last checkpoint", "ok", "none yet" if state.status == "running" else "none kept")


def check_files(run: RunDirectory) -> Check:
    """Images that could not be read."""
    count = len(unreadable_files(run))
    if count:
        return Check("Unreadable files", "look", f"{count:,} were replaced; {run.log} names them")
    return Check("Unreadable files", "ok", "none")


def as_check(hint: Hint) -> Check:
    """A hint about a metric, in the words of the doctor."""
    return Check(hint.metric.title, MEANING[hint.level], hint.text)


def _show(checks: Iterable[Check], console: Console, *, width: int) -> list[Check]:
    """Print checks as they come, since some take a second."""
    shown = []
    with console.working("Checking"):
        for check in checks:
            console.say(f"{check.state:<8} {check.name:<{width}} {check.text}")
            shown.append(check)
    return shown
