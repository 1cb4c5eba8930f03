"""What a study will cost, by measurements that ``clove bench`` has written.

Estimates are GPU time of one device; what no measurement is known for is named, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.regular_files import read_regular
from clove_ssl.console import duration
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.runs.history import History
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.provenance import last_start
from clove_ssl.study.cells import Cell, CellState, state_of
from clove_ssl.study.config import FinetuningEntry
from clove_ssl.study.plan import StudyPlan
from clove_ssl.text_tables import in_columns

END_TO_END = "end to end"
LARGEST = 2**26  # bytes of a file of measurements
FASTEST = 1e12  # images per second


@dataclass(frozen=True)
class Cost:
    """The time of a cell, or why it is not known."""

    cell: Cell
    state: CellState
    work: str
    seconds: float | None
    basis: str  # the measurement it rests on, or what is missing


@dataclass(frozen=True)
class _Speed:
    images_per_second: float
    basis: str


class Speeds:
    """Images per second of methods and tasks, from lines of JSON."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self._methods: dict[tuple[str, str], _Speed] = {}
        self._tasks: dict[str, _Speed] = {}
        for line in lines:
            self._add(line)

    def of_method(self, method: str, backbone: str) -> _Speed | None:
        """The speed of a whole run, or of its steps where only those were measured."""
        return self._methods.get((method, backbone))

    def of_task(self, task: str) -> _Speed | None:
        """The training speed of a task."""
        return self._tasks.get(task)

    def _add(self, line: dict[str, Any]) -> None:
        device = line.get("device", "unknown device")
        if {"method", "backbone", "images_per_second"} <= line.keys():
            name, key = str(line.get("name", "")), (str(line["method"]), str(line["backbone"]))
            whole = name.split(" (")[0] == END_TO_END  # with all cores
            if whole or (name == "step" and not self._knows_run(key)):
                what = END_TO_END if whole else "steps alone"
                speed = _speed(line, "images_per_second")
                self._methods[key] = _Speed(speed, f"{speed:,.0f} images/s {what}, {device}")
        elif {"task", "images_per_second"} <= line.keys() and line.get("name") == END_TO_END:
            speed = _speed(line, "images_per_second")
            self._tasks[str(line["task"])] = _Speed(speed, f"{speed:,.1f} images/s, {device}")
        elif {"case", "images_per_s"} <= line.keys():
            speed = _speed(line, "images_per_s")
            self._tasks[str(line["case"])] = _Speed(speed, f"{speed:,.1f} images/s, {device}")

    def _knows_run(self, key: tuple[str, str]) -> bool:
        return key in self._methods and END_TO_END in self._methods[key].basis


def _speed(line: dict[str, Any], key: str) -> float:
    """The speed that a line tells."""
    value = line[key]
    if not isinstance(value, int | float) or not 0 < value < FASTEST:
        raise UserError(
            f"{key} is {value!r} in {json.dumps(line)[:100]}; expected images per second, above 0. "
            "Measure again: clove bench --out bench.jsonl"
        )
    return float(value)


def read_speeds(paths: Sequence[Path]) -> Speeds:
    """Read files of ``clove bench --out`` and of ``benchmarks/bench_detection.py``."""
    return Speeds(line for path in paths for line in _lines(path))


def estimate(plan: StudyPlan, speeds: Speeds, cells: Sequence[Cell] | None = None) -> list[Cost]:
    """The cost of all cells, or of some; the study's own finished cells know best."""
    known = _Known(speeds, _own_speeds(plan), _ImageCounts(plan))
    return [_cost(plan, cell, known) for cell in (plan.cells if cells is None else cells)]


@dataclass(frozen=True)
class _Known:
    """All that estimates rest on."""

    speeds: Speeds
    own: dict[str, _Speed]
    counts: _ImageCounts


def _own_speeds(plan: StudyPlan) -> dict[str, _Speed]:
    """How fast finished cells were, by what they have in common with others."""
    found: dict[str, _Speed] = {}
    for cell in plan.cells:
        if cell.kind in ("pretrain", "finetune") and state_of(cell, plan.folder) == "done":
            series = History(read_metrics(plan.folder.run(cell.name))).of("images_per_second")
            if series is not None:
                # Logged is what all GPUs did together.
                gpus = last_start(plan.folder.run(cell.name)).get("processes", 1)
                speed = series.settled().recent / gpus
                found[_kin(cell)] = _Speed(speed, f"{speed:,.1f} images/s of {cell.name}")
    return found


def _kin(cell: Cell) -> str:
    """Cells of one pre-training, or of one task whatever the backbone, are equally fast."""
    return cell.measure_label or f"pretrain/{cell.entry.label}"


def describe_costs(plan: StudyPlan, costs: Sequence[Cost]) -> Iterator[str]:
    """Cells that differ in seeds alone on one line, then the total and what is missing for it."""
    yield f"{plan.config.title}, budget of a pre-training: {plan.config.budget.describe()}"
    rows = [("no.", "cells", "done", "work of each", "GPU time", "by")]
    numbers = {cell.name: number for number, cell in enumerate(plan.cells)}
    groups: dict[tuple[str, str, str], list[Cost]] = {}
    for cost in costs:
        cell = cost.cell
        groups.setdefault((cell.kind, cell.measure_label, cell.entry.label), []).append(cost)
    for name, members in groups.items():
        spans = _spans([numbers[cost.cell.name] for cost in members])
        rows.append((spans, "/".join(filter(None, name)), *_group_cells(members)))
    yield from in_columns(rows)
    yield from _totals(costs)


def _spans(numbers: Sequence[int]) -> str:
    """Rising numbers in words: 3-5, 9."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in pairs)


def _group_cells(members: Sequence[Cost]) -> tuple[str, str, str, str]:
    done = sum(cost.state == "done" for cost in members)
    first = members[0]
    time = "?" if first.seconds is None else duration(len(members) * first.seconds)
    return f"{done}/{len(members)}", first.work, time, first.basis


def _totals(costs: Sequence[Cost]) -> Iterator[str]:
    left = [cost for cost in costs if cost.state != "done"]
    hours = sum(cost.seconds or 0.0 for cost in left) / 3600
    unknown = [cost for cost in left if cost.seconds is None]
    without = f", without {len(unknown)} cells whose time is not known" if unknown else ""
    yield f"{len(left)} of {len(costs)} cells to do: {hours:,.1f} GPU hours{without}"
    missing = {cost.basis.partition(":")[0]: cost.basis for cost in reversed(unknown)}
    for reason in reversed(missing.values()):
        yield f"  {reason}"


def _cost(plan: StudyPlan, cell: Cell, known: _Known) -> Cost:
    config, state = plan.config_of(cell), state_of(cell, plan.folder)
    if isinstance(config, FinetuneConfig):
        images = config.total_iterations * config.effective_batch
        work = f"{config.total_iterations:,} steps of {config.effective_batch}"
        return _timed(cell, state, work, images, _task_speed(cell, known))
    if not isinstance(config, PretrainConfig):
        return Cost(cell, state, "frozen features", None, "not estimated; minutes at most")
    if cell.kind == "timing":
        return Cost(cell, state, "a short run", None, "not estimated; a minute or two")
    if not config.method.trains:
        return Cost(cell, state, "no training", 0.0, "")
    if plan.config.budget.kind == "seconds":
        seconds = plan.config.budget.amount
        return Cost(cell, state, f"{seconds:g} s of steps", seconds, "the budget")
    return _pretraining_cost(cell, state, config, known)


def _pretraining_cost(cell: Cell, state: CellState, config: PretrainConfig, known: _Known) -> Cost:
    count = known.counts.of(config)
    if count is None and config.steps is None:
        missing = f"the number of images: {config.data.source} is not there"
        return Cost(cell, state, f"{config.epochs} epochs", None, missing)
    steps = config.total_steps(count or 0)
    work = f"{steps:,} steps of {config.batch_size:,}"
    if own := known.own.get(_kin(cell)):
        return _timed(cell, state, work, steps * config.batch_size, own)
    speed = known.speeds.of_method(config.method.name, config.backbone.name)
    if speed is None:
        name = cell.entry.recipe or "RECIPE"
        missing = (
            f"no measurement for {config.method.name} with {config.backbone.name}: clove bench "
        )
        return Cost(cell, state, work, None, f"{missing}{name} --out bench.jsonl")
    if cell.entry.changes.get("method"):
        speed = _Speed(speed.images_per_second, f"{speed.basis}, other options of the method")
    return _timed(cell, state, work, steps * config.batch_size, speed)


def _timed(cell: Cell, state: CellState, work: str, images: int, speed: _Speed | str) -> Cost:
    if isinstance(speed, str):
        return Cost(cell, state, work, None, speed)
    return Cost(cell, state, work, images / speed.images_per_second, speed.basis)


def _task_speed(cell: Cell, known: _Known) -> _Speed | str:
    assert isinstance(cell.measure, FinetuningEntry)
    task = cell.measure.task
    missing = f"nothing measured for {task}: clove bench {task} --out bench.jsonl"
    return known.own.get(_kin(cell)) or known.speeds.of_task(task) or missing


class _ImageCounts:
    """Numbers of images by source, each counted once."""

    def __init__(self, plan: StudyPlan) -> None:
        self._given = plan.config.data.images
        self._known: dict[str, int | None] = {}

    def of(self, config: PretrainConfig) -> int | None:
        """As the study says, or counted, or nothing where the images are not there."""
        if self._given is not None:
            return self._given
        source = config.data.source
        if source not in self._known:
            try:
                self._known[source] = len(open_source(config.data))
            except (UserError, OSError):
                self._known[source] = None
        return self._known[source]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = read_regular(path, most=LARGEST).decode("utf-8")
        for line in filter(None, map(str.strip, text.splitlines())):
            content = json.loads(line)
            if isinstance(content, dict):
                yield content
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Measure first: clove bench --out {path}"
        ) from None
    except (ValueError, RecursionError):
        raise UserError(
            f"{path} is no file of measurements: expected one JSON object per line. Measure again: "
            "clove bench --out bench.jsonl"
        ) from None
