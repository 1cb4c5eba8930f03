"""Reports of runs, whatever kind they are, with the pictures they do not have yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.showing import PICTURES, PictureKind, ReportConfig, ShowConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.pictures import command as showing
from clove_ssl.probes import command as probing
from clove_ssl.report.inline_pictures import MAIN_PICTURES
from clove_ssl.report.page import render_report, write_file, write_report
from clove_ssl.report.verdict import run_verdict
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory, list_checkpoints
from clove_ssl.runs.metrics import damaged_lines, read_metrics
from clove_ssl.runs.state import read_state

REPORT_NAME = "report.html"
_MEASURED = 64  # images on which a run is measured at its end: seconds, even on a CPU
_COUNTS = {"attention": 2}  # images on a sheet; each of attention's takes two rows of heads


def report_runs(config: ReportConfig) -> Path:
    """What ``clove report`` does: draw missing pictures, write the page, and say where it is."""
    if not config.runs:
        raise UserError("clove report needs a run. Name its folder: clove report runs/a")
    runs = [directory.find(path) for path in config.runs]
    console = Console()
    if config.pictures:
        for run in runs:
            paint_pictures(run, console)
    for damage in filter(None, map(damaged_lines, runs)):
        console.warn(damage)
    path = _write(runs, config.out)
    console.say(str(path))
    return path


def conclude(path: Path) -> None:
    """Close a pre-training that has finished: measure it, draw it, write its page, judge it.

    The run itself is complete by then, so nothing that goes wrong here is more than a warning.
    """
    run = RunDirectory(path)
    if not run.backbone.is_file() or _is_helper():  # interrupted, or not ours to close
        return
    config = directory.read_config(run)
    if isinstance(config, FinetuneConfig):
        return
    console = Console()
    console.say("Measuring and drawing what was learned ...")
    try:
        _measure_and_paint(run, config, console)
    except KeyboardInterrupt:
        # Probing writes the page, too; what is missing after it are pictures at most.
        verb = "report" if run.probes.is_file() else "probe"
        console.say(f"Left out; the run is complete. To do it later: clove {verb} {run.path}")
        return
    except (UserError, RuntimeError, OSError) as error:  # such as a GPU without enough memory
        console.warn(f"not all could be measured and drawn: {error}")
    console.say(run_verdict(run).spoken())


def _measure_and_paint(run: RunDirectory, config: PretrainConfig, console: Console) -> None:
    images = read_state(run, config, read_metrics(run)).images or _MEASURED
    if config.method.trains:
        try:
            probing.measure_finished(run, images=min(_MEASURED, images))
        except UserError as error:
            console.warn(f"the features are not measured: {error}")
    paint_pictures(run, console, kinds=MAIN_PICTURES)
    write_report(run)


def _is_helper() -> bool:
    """Whether this is one of several processes of a run, and not the first."""
    return os.environ.get("RANK", "0") != "0"


def paint_pictures(
    run: RunDirectory, console: Console, *, kinds: Sequence[PictureKind] = tuple(PICTURES)
) -> None:
    """Draw what a pre-training run can show and has not drawn since its weights last changed."""
    config = directory.read_config(run)
    if isinstance(config, FinetuneConfig):
        return
    weights = [run.backbone, *(each.path for each in list_checkpoints(run.checkpoints))]
    newest = max((path.stat().st_mtime for path in weights if path.is_file()), default=None)
    if newest is None:
        console.say(f"{run.path} has no weights yet, so there is nothing to draw")
        return
    for kind in (kind for kind in _pictures_of(config) if kind in kinds):
        path = run.pictures / f"{kind}.png"
        if path.is_file() and path.stat().st_mtime >= newest:
            continue
        try:
            showing.paint_sheet(ShowConfig(what=kind, run=run.path, count=_COUNTS.get(kind, 4)))
        except UserError as error:
            # A report without a picture is better than none.
            console.warn(f"no picture of {kind}: {error}")


def _pictures_of(config: PretrainConfig) -> list[PictureKind]:
    """The pictures that make sense for a method."""
    kinds: list[PictureKind] = ["views"] if config.method.view_specs() else []
    kinds += ["matches"] if config.method.matching_rule else []
    kinds += ["attention"] if config.method.has_attention else []
    return [*kinds, "similarity", "features"]


def _write(runs: Sequence[RunDirectory], out: Path | None) -> Path:
    """Write the page into its only run, where it was asked for, or here."""
    if out is None and len(runs) == 1:
        return write_report(runs[0])
    path = Path(REPORT_NAME) if out is None else out
    if path.is_dir():
        path = path / REPORT_NAME
    write_file(path, render_report(runs))
    return path
