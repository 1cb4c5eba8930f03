"""``clove study``: methods x seeds x tasks, and the paper's tables beside ours.

Everything a study knows lies in the run directories of its cells. Starting it again skips what is
done, continues what was interrupted, and writes the tables anew.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from clove_ssl.atomic import clear_leftovers
from clove_ssl.config import files
from clove_ssl.console import Console
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.study.budget_curves import budget_curves, open_beside
from clove_ssl.study.cells import Cell, CellInUse, find_cell, state_of
from clove_ssl.study.comparing import StudyComparison
from clove_ssl.study.config import BudgetConfig, StudyConfig, StudyRunConfig
from clove_ssl.study.costs import describe_costs, estimate, read_speeds
from clove_ssl.study.plan import StudyPlan, check_data, make_plan, save_study
from clove_ssl.study.report import StudyPage, write_study_report
from clove_ssl.study.results import pretraining_rows
from clove_ssl.study.running import FROM_INPUT, record_failure, run_cell, work
from clove_ssl.study.scheduling import Outcome, Slots, run_in_turn, slurm_script
from clove_ssl.study.studies import open_study
from clove_ssl.training.signals import terminated_like_interrupted


def run_study(config: StudyRunConfig) -> None:
    """Run, continue, price or report a study, as asked."""
    plan = make_plan(resolve(config), config.out)
    if plan.config.budget.kind == "seconds" and config.gpus_per_cell > 1:
        raise UserError(
            "A budget in seconds is timed on one GPU, so --gpus-per-cell must be 1. Give "
            "--budget steps or --budget epochs with an --amount instead."
        )
    console = Console()
    budgets = open_beside(plan, config.beside)
    if config.dry_run:
        costs = estimate(plan, read_speeds(config.bench), _chosen(plan, config))
        for line in describe_costs(plan, costs):
            console.say(line)
    elif config.cell == FROM_INPUT:
        work(plan, sys.stdin, gpus=config.gpus_per_cell)
    elif config.cell is not None:
        _run_one(plan, find_cell(plan.cells, config.cell), gpus=config.gpus_per_cell)
    elif config.print_slurm:
        save_study(plan)
        (plan.folder.path / "cells").mkdir(exist_ok=True)
        console.say(slurm_script(plan, gpus=config.gpus_per_cell))
    elif config.report:
        if not plan.folder.path.is_dir():
            raise UserError(
                f"{plan.folder.path} does not exist, so there is nothing to report. Run the study "
                "first: the same command without --report."
            )
        plan.check_unchanged(plan.cells)
        report_study(plan, console, budgets)
    else:
        _run_all(plan, config, console, budgets)


def resolve(config: StudyRunConfig) -> StudyConfig:
    """The study that was named, with what the command line says about it."""
    study = open_study(config.study)
    data = replace(study.data, labelled={**study.data.labelled, **config.labelled})
    if config.data is not None:
        data = replace(data, pretrain=config.data, pretrain_name=None, images=None)
    budget = study.budget
    if config.budget is not None:
        budget = BudgetConfig(
            kind=config.budget,
            amount=config.amount,
            timed_steps=budget.timed_steps,
            warm_steps=budget.warm_steps,
        )
    entries = study.pretrainings
    if config.seeds:
        entries = tuple(replace(entry, seeds=config.seeds) for entry in entries)
    tasks = study.finetunings
    if config.iterations is not None:
        length = {"iterations": config.iterations}
        tasks = tuple(replace(task, changes={**task.changes, **length}) for task in tasks)
    return replace(study, data=data, budget=budget, pretrainings=entries, finetunings=tasks)


def report_study(plan: StudyPlan, console: Console, budgets: Sequence[StudyPlan] = ()) -> None:
    """Write the tables of what is done so far, and curves over ``budgets`` of the same study."""
    comparison = StudyComparison(plan)
    waiting = [cell for cell in plan.cells if state_of(cell, plan.folder) != "done"]
    done = len(plan.cells) - len(waiting)
    write_study_report(
        plan.folder,
        StudyPage(
            title=plan.config.title,
            progress=(
                f"{done} of {len(plan.cells)} cells are done. Budget of a pre-training: "
                f"{plan.config.budget.describe()}"
            ),
            tables=comparison.tables(),
            curves=budget_curves(budgets),
            paired=comparison.paired(),
            runs=pretraining_rows(plan),
            unmeasured=comparison.unmeasured(),
            waiting=[(cell.name, _failure(plan, cell)) for cell in waiting],
            study=files.to_yaml(plan.config),
        ),
    )
    console.choice("tables", str(plan.folder.tables("md")))
    console.choice("report", str(plan.folder.report))


def _run_all(
    plan: StudyPlan, config: StudyRunConfig, console: Console, budgets: Sequence[StudyPlan]
) -> None:
    cells = _chosen(plan, config)
    plan.check_unchanged(plan.cells)
    check_data(plan, cells)
    save_study(plan)
    clear_leftovers(plan.folder.path)
    console.say(f"{plan.config.title}: {len(cells)} cells in {plan.folder.path}")
    with terminated_like_interrupted():
        outcomes = _start(plan, cells, config, console)
    report_study(plan, console, budgets)
    _sum_up(plan, outcomes, console)


def _start(
    plan: StudyPlan, cells: Sequence[Cell], config: StudyRunConfig, console: Console
) -> list[Outcome]:
    many = config.processes == "many" or bool(config.devices) or config.gpus_per_cell > 1
    if config.processes == "one" and many:
        raise UserError(
            "--processes one runs cells in this process, which cannot use --devices or "
            "--gpus-per-cell. Leave it out."
        )
    if not many and (config.processes == "one" or not torch.cuda.is_available()):
        return run_in_turn(plan, cells, console)
    size = config.gpus_per_cell
    groups = [config.devices[n : n + size] for n in range(0, len(config.devices), size)]
    return Slots(plan, groups, console, gpus=size).run(cells)


def _run_one(plan: StudyPlan, cell: Cell, *, gpus: int) -> None:
    """One cell, whose failure is written down for whoever looks at the study."""
    try:
        run_cell(plan, cell, gpus=gpus)
    except CellInUse:
        raise
    except Exception as error:
        record_failure(plan, cell, error)
        raise


def _chosen(plan: StudyPlan, config: StudyRunConfig) -> tuple[Cell, ...]:
    """The cells to run now; what they need comes with the choice of measures."""
    _check_known("pre-training", config.only, {cell.entry.label for cell in plan.cells})
    measures = {cell.measure_label for cell in plan.cells if cell.measure}
    _check_known("measure", config.measures, measures)
    return tuple(
        cell
        for cell in plan.cells
        if (not config.only or cell.entry.label in config.only)
        and (not config.kinds or cell.kind in config.kinds)
        and (not config.measures or not cell.measure or cell.measure_label in config.measures)
    )


def _check_known(kind: str, asked: Sequence[str], known: set[str]) -> None:
    for name in asked:
        if name not in known:
            raise unknown_name(kind, name, known)


def _failure(plan: StudyPlan, cell: Cell) -> str:
    needed = ", ".join(f"needs {name}" for name in plan.missing(cell))
    return plan.folder.why_failed(cell.name) or needed


def _sum_up(plan: StudyPlan, outcomes: Sequence[Outcome], console: Console) -> None:
    counts = Counter(outcome.status for outcome in outcomes)
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()))
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        lines = [f"{one.cell.name}: {one.message.splitlines()[-1]}" for one in failed]
        raise UserError(
            f"{len(failed)} of {len(outcomes)} cells failed; the others are done or wait for them."
            "\n  " + "\n  ".join(lines) + f"\n{plan.folder.path}/cells has the details. Fix the "
            "cause and type the same command: only these will run again."
        )
    if waiting := [outcome for outcome in outcomes if outcome.status == "waiting"]:
        console.say(f"{waiting[0].cell.name}: {waiting[0].message}")
        console.say("Type the same command again once that is done.")
