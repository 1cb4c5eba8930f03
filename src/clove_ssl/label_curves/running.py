"""The fine-tunings of a comparison, one after the other; what fails is named, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clove_ssl.console import Console
from clove_ssl.label_curves.plan import LabelCell, LabelPlan
from clove_ssl.study.cells import CellInUse
from clove_ssl.study.running import start_or_resume, tidy_up, write_failure

Failures = dict[str, str]


def run_cells(
    plan: LabelPlan,
    console: Console,
    after_each: Callable[[LabelPlan, Mapping[str, str]], object],
) -> Failures:
    """Run what is not done yet; gives why cells failed, by their names."""
    failures: Failures = {}
    for cell in plan.cells:
        if plan.is_done(cell):
            continue
        console.say(f"== {cell.name}")
        try:
            _run(plan, cell)
        except CellInUse as error:
            failures[cell.name] = str(error)
        except Exception as error:  # whatever it is, the other cells are not to blame
            failures[cell.name] = write_failure(plan.folder.failure(cell.name), error)
            console.warn(f"{cell.name} failed: {failures[cell.name]}")
        after_each(plan, failures)
        tidy_up()
    return failures


def _run(plan: LabelPlan, cell: LabelCell) -> None:
    """Do the work of a cell; a stop signal raises ``KeyboardInterrupt``."""
    with plan.folder.working_on(cell.name):
        if plan.is_done(cell):  # by another process, by now
            return
        plan.folder.failure(cell.name).unlink(missing_ok=True)
        run = plan.folder.run(cell.name)
        start_or_resume(cell.config(run), run)
