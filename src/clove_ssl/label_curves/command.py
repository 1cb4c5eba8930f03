"""``clove labels``: fine-tune several backbones on growing parts of the labels.

Everything it knows lies in its run directories. Starting it again skips what is done, continues
what was interrupted, and writes table and curves anew.
"""

from __future__ import annotations

import os

from clove_ssl.atomic import clear_leftovers
from clove_ssl.config.label_curves import LabelsConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.label_curves.page import write_results
from clove_ssl.label_curves.plan import LabelCell, LabelPlan, describe_plan, make_plan
from clove_ssl.label_curves.results import LabelCurve, collect, table_rows
from clove_ssl.study.cells import CellInUse
from clove_ssl.study.running import start_or_resume, tidy_up, write_failure
from clove_ssl.text_tables import in_columns
from clove_ssl.training.signals import terminated_like_interrupted

Failures = dict[str, str]
"""Why cells failed, by their names."""


def compare_labels(config: LabelsConfig) -> LabelCurve:
    """Run or continue a comparison, and give what it found; with ``dry_run`` only show it."""
    _check_one_process()
    with Console() as console:
        plan = make_plan(config, console)
        for cell in plan.cells:
            plan.check_unchanged(cell)
        for line in describe_plan(plan):
            console.say(line)
        if config.dry_run:
            return collect(plan)
        plan.save()
        clear_leftovers(plan.folder.path)
        failures = _run(plan, console)
        curve = write_results(plan, failures)
        _tell(plan, curve, console)
        _name_failures(plan, failures)
        return curve


def _check_one_process() -> None:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "clove labels runs on one GPU, one fine-tuning after the other. Start it without "
            "torchrun."
        )


def _run(plan: LabelPlan, console: Console) -> Failures:
    try:
        with terminated_like_interrupted():
            return _run_cells(plan, console)
    except KeyboardInterrupt:
        there = plan.folder.result("html")
        console.say(f"Stopped. The same command continues; results so far: {there}")
        raise


def _run_cells(plan: LabelPlan, console: Console) -> Failures:
    """Run what is not done yet; gives why cells failed, by their names."""
    failures: Failures = {}
    for cell in plan.cells:
        if plan.is_done(cell):
            continue
        console.say(f"== {cell.name}")
        try:
            _run_cell(plan, cell)
        except CellInUse as error:
            failures[cell.name] = str(error)
        except Exception as error:  # whatever it is, the other cells are not to blame
            failures[cell.name] = write_failure(plan.folder.failure(cell.name), error)
            console.warn(f"{cell.name} failed: {failures[cell.name]}")
        write_results(plan, failures)
        tidy_up()
    return failures


def _run_cell(plan: LabelPlan, cell: LabelCell) -> None:
    """Do the work of a cell; a stop signal raises ``KeyboardInterrupt``."""
    with plan.folder.working_on(cell.name):
        if plan.is_done(cell):  # by another process, by now
            return
        plan.folder.failure(cell.name).unlink(missing_ok=True)
        run = plan.folder.run(cell.name)
        start_or_resume(cell.config(run), run)


def _tell(plan: LabelPlan, curve: LabelCurve, console: Console) -> None:
    console.say(f"{curve.score} in percent, by labels")
    for line in in_columns(table_rows(plan, curve), side="right"):
        console.say(f"  {line}")
    for sentence in curve.verdict():
        console.say(sentence)
    console.choice("scores", str(plan.folder.result("json")))
    console.choice("table", str(plan.folder.result("md")))
    console.choice("curves", str(plan.folder.result("svg")))
    console.choice("report", str(plan.folder.result("html")))


def _name_failures(plan: LabelPlan, failures: Failures) -> None:
    if failures:
        lines = "\n  ".join(f"{name}: {why.splitlines()[-1]}" for name, why in failures.items())
        raise UserError(
            f"{len(failures)} of {len(plan.cells)} runs failed; the others are done.\n  {lines}\n"
            f"{plan.folder.path}/cells has the details. Fix the cause and type the same "
            "command: only these will run again."
        )
