"""From the results of a study to its tables: ours beside the paper's, and method against method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from clove_ssl.probes.suite import TITLES
from clove_ssl.study.config import FinetuningEntry, PretrainingEntry, ProbeEntry, StudyConfig
from clove_ssl.study.paper_tables import PAPER_TABLES, PaperRow, PaperTable
from clove_ssl.study.plan import StudyPlan
from clove_ssl.study.results import (
    Measure,
    PretrainingFacts,
    Results,
    departures,
    describe_budget,
    describe_data,
    pretraining_facts,
    results_of,
)
from clove_ssl.study.statistics import compare, exceeds, noise_of, summarize
from clove_ssl.study.tables import OurScore, Pair, PairedRow, StudyRow, StudyTable

MOST_FIGURES = 6
_MAIN = tuple(table for table in PAPER_TABLES if not table.is_ablation)
_ABLATIONS = tuple(table for table in PAPER_TABLES if table.is_ablation)
_VARIANTS = {row.key for table in _ABLATIONS for row in table.rows}


@dataclass(frozen=True)
class _Layout:
    """What a table shows: a measure, in the rows of the paper's table where there is one."""

    measure: Measure
    paper: PaperTable | None
    has_paper: bool  # whether the paper has these scores
    names: tuple[str, ...]  # of the scores
    headings: tuple[str, ...]


class StudyComparison:
    """All tables of a study; what is not measured yet stays empty in them."""

    def __init__(self, plan: StudyPlan) -> None:
        self._plan = plan
        self._entries = plan.config.pretrainings

    def tables(self) -> list[StudyTable]:
        """For every measure one table of all methods, and one for every ablation."""
        return [table for measure in self._measures for table in self._tables_of(measure)]

    def paired(self) -> list[PairedRow]:
        """The reference against every other method, on the score that counts."""
        return [row for measure in self._measures for row in self._paired_of(measure)]

    def unmeasured(self) -> list[str]:
        """Tables of the paper that the study has no cells for."""
        tasks = {each.task for each in self._plan.config.finetunings}
        main = _MAIN if self._methods else ()
        measured = [table for table in (*main, *self._ablations) if table.task in tasks]
        wanted = (*main, *(_ABLATIONS if self._ablations else ()))
        return [f"{table.title} ({table.label})" for table in wanted if table not in measured]

    @property
    def _measures(self) -> Sequence[Measure]:
        return measures_of(self._plan.config)

    @property
    def _methods(self) -> list[PretrainingEntry]:
        """Entries that stand for more than variants of the ablations."""
        return [e for e in self._entries if not e.rows or not set(e.rows) <= _VARIANTS]

    @property
    def _ablations(self) -> list[PaperTable]:
        return [t for t in _ABLATIONS if any(t.row(entry.rows) for entry in self._entries)]

    @cached_property
    def _facts(self) -> dict[str, PretrainingFacts | None]:
        return {entry.label: pretraining_facts(self._plan, entry) for entry in self._entries}

    @cached_property
    def _results(self) -> dict[tuple[str, str], Results]:
        return {
            (entry.label, measure.label): results_of(self._plan, entry, measure)
            for measure in self._measures
            for entry in self._entries
        }

    def _found(self, entry: PretrainingEntry, measure: Measure) -> Results:
        return self._results[entry.label, measure.label]

    def _tables_of(self, measure: Measure) -> Iterator[StudyTable]:
        if self._methods:
            yield self._table(self._layout(measure, _main_table(measure)), self._methods)
        for ablation in self._ablations:
            yield self._table(self._layout(measure, ablation), self._entries)

    def _layout(self, measure: Measure, paper: PaperTable | None) -> _Layout:
        if paper is not None and paper.task == _task_of(measure):
            return _Layout(measure, paper, True, paper.scores, paper.headings)
        found = [self._found(entry, measure).scores for entry in self._entries]
        names = list(dict.fromkeys(name for scores in found for name in scores))
        if isinstance(measure, ProbeEntry):
            names = list(dict.fromkeys([measure.main_score, *names]))
        shown = tuple(names[:MOST_FIGURES]) or ("score",)
        headings = tuple(title_of(measure, name) for name in shown)
        return _Layout(measure, paper, False, shown, headings)

    def _table(self, layout: _Layout, entries: Sequence[PretrainingEntry]) -> StudyTable:
        title = name = layout.measure.label
        if layout.paper is not None:
            title = f"{layout.paper.title}: {title}"
            name = f"{layout.paper.label.removeprefix('tab:')}-{name}"
        return StudyTable(
            identity=f"study:{name}",
            title=title,
            note=_note(layout),
            headings=layout.headings,
            rows=tuple(self._rows(layout, entries)),
            has_paper=layout.has_paper,
        )

    def _rows(self, layout: _Layout, entries: Sequence[PretrainingEntry]) -> Iterator[StudyRow]:
        """The paper's rows in their order, then methods that it does not have."""
        paper = layout.paper
        for line in paper.rows if paper else ():
            ours = [entry for entry in entries if line.key in entry.rows]
            for entry in ours:
                yield self._row(layout, entry, line)
            if not ours and layout.has_paper:
                yield _row_of_paper(line)
        for entry in entries:
            if paper is None or (not paper.is_ablation and paper.row(entry.rows) is None):
                yield self._row(layout, entry, None)

    def _row(self, layout: _Layout, entry: PretrainingEntry, line: PaperRow | None) -> StudyRow:
        study, measure = self._plan.config, layout.measure
        results, facts = self._found(entry, measure), self._facts[entry.label]
        theirs = line.values if line and layout.has_paper else (None,) * len(layout.names)
        pairs = tuple(
            Pair(value, _our_score(results, name, value))
            for name, value in zip(layout.names, theirs, strict=True)
        )
        row = StudyRow(
            name=entry.label if line is None else f"{line.name} ({entry.label})",
            paper_epochs=line.epochs if line else None,
            pairs=pairs,
        )
        measured = next((pair.ours for pair in pairs if pair.ours), None)
        if measured is None:
            return row
        left: Iterable[str] = ()
        if layout.paper and line and layout.has_paper:
            left = departures(study, entry, facts, results, (layout.paper, line))
        return replace(
            row,
            budget=describe_budget(study, entry, facts, results),
            data=describe_data(study, facts, measure, results),
            count=measured.count,
            departures=tuple(left),
        )

    def _paired_of(self, measure: Measure) -> Iterator[PairedRow]:
        config = self._plan.config
        reference = next(e for e in self._entries if e.label == config.reference_label)
        ours = self._found(reference, measure).scores
        name = main_score(measure, ours)
        found_all = [self._found(entry, measure).scores for entry in self._entries]
        noise = noise_of(scores[name] for scores in found_all if scores.get(name))
        for entry in self._entries:
            theirs = self._found(entry, measure).scores
            if entry is reference or name not in ours or name not in theirs:
                continue
            found = compare(ours[name], theirs[name])
            if found is not None:
                yield PairedRow(
                    measure=f"{measure.label}, {title_of(measure, name)}",
                    method=f"{reference.label} - {entry.label}",
                    difference=found.summary.mean,
                    standard_error=found.summary.standard_error,
                    interval=found.interval,
                    count=found.summary.count,
                    basis=found.summary.basis,
                    notable=found.is_notable,
                    least=noise.least_difference(found.summary.pretrainings) if noise else None,
                )


def measures_of(study: StudyConfig) -> Sequence[Measure]:
    """All that every backbone of a study is measured by."""
    return (*study.probes, *study.finetunings)


def _main_table(measure: Measure) -> PaperTable | None:
    """The paper's table of all methods for a task."""
    return next((table for table in _MAIN if table.task == _task_of(measure)), None)


def _task_of(measure: Measure) -> str | None:
    return measure.task if isinstance(measure, FinetuningEntry) else None


def main_score(measure: Measure, found: Iterable[str]) -> str:
    """The score that counts: the paper's first one, where it has the task."""
    if isinstance(measure, ProbeEntry):
        return measure.main_score
    table = _main_table(measure)
    return table.scores[0] if table else next(iter(found), "")


def title_of(measure: Measure, name: str) -> str:
    """A score in words; those of probes have names of their own."""
    words = name.replace("_", " ")
    return TITLES.get(name, words) if isinstance(measure, ProbeEntry) else words


def _our_score(results: Results, name: str, paper: float | None) -> OurScore | None:
    measured = results.scores.get(name)
    if not measured:
        return None
    summary = summarize(measured)
    error = summary.standard_error
    return OurScore(
        mean=summary.mean,
        deviation=summary.deviation,
        standard_error=error,
        basis=summary.basis,
        count=summary.count,
        differs=paper is not None and exceeds(summary.mean - paper, error),
    )


def _row_of_paper(line: PaperRow) -> StudyRow:
    return StudyRow(line.name, line.epochs, tuple(Pair(value, None) for value in line.values))


def _note(layout: _Layout) -> str:
    if layout.paper is None:
        return "The paper has no such table."
    if not layout.has_paper:
        return (
            f"The variants of the paper's table {layout.paper.label}, measured in another way: its "
            "scores (AP on VOC) cannot be compared with these."
        )
    return (
        f"The paper's scores are those of {layout.paper.label}, as printed: means of "
        f"{layout.paper.runs} runs, except for those of other methods that it takes from their "
        "own papers."
    )
