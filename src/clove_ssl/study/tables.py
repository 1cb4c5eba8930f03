"""The tables of a study as text: Markdown, CSV and LaTeX.

A table stands score by score: the paper's value, then ours with its standard deviation. What is
not known is a dash. All values are in percent where they are shares.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from clove_ssl.text_tables import in_markdown

NOTHING = "–"
MARK = "*"


@dataclass(frozen=True)
class OurScore:
    """What we measured."""

    mean: float
    deviation: float | None
    standard_error: float | None
    basis: str
    count: str  # such as 2 x 3: pre-trainings x fine-tunings
    differs: bool = False  # from the paper's by more than two standard errors

    def shown(self) -> str:
        """Mean, deviation and mark."""
        digits = 1 if abs(self.mean) >= 1 else 2
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}{MARK if self.differs else ''}"


@dataclass(frozen=True)
class Pair:
    """One score of one row, theirs and ours."""

    paper: float | None
    ours: OurScore | None


@dataclass(frozen=True)
class StudyRow:
    """A method or variant."""

    name: str
    paper_epochs: int | None
    pairs: tuple[Pair, ...]
    budget: str = ""  # what ours was made with
    data: str = ""
    count: str = ""
    departures: tuple[str, ...] = ()  # from the paper's setting


@dataclass(frozen=True)
class StudyTable:
    """One table, ready to be written."""

    identity: str  # for file names and LaTeX labels
    title: str
    note: str
    headings: tuple[str, ...]  # of scores
    rows: tuple[StudyRow, ...]
    has_paper: bool  # whether the paper has these scores


@dataclass(frozen=True)
class PairedRow:
    """One method against the reference, seed by seed."""

    measure: str
    method: str
    difference: float
    standard_error: float | None
    interval: tuple[float, float] | None
    count: str
    basis: str
    notable: bool
    least: float | None  # a difference that the spread of all methods together gives by chance


@dataclass(frozen=True)
class PretrainingRow:
    """How one pre-training went; what was not logged is None."""

    run: str
    steps: float
    epochs: float | None
    images_per_second: float | None
    memory_gib: float | None
    loss: tuple[float, float] | None  # of the first and of the last logged step
    effective_rank: float | None
    feature_std: float | None


LEGEND = (
    "Ours: mean ± standard deviation of a single run, in percent. n is the number of pre-training "
    f"seeds x fine-tuning seeds. {MARK} differs from the paper's score by more than twice our "
    "standard error; the paper prints no spread. If the budget, data or network of a row differs "
    "from the paper's, its last column says so, and it is not a reproduction."
)
PAIRED_LEGEND = (
    f"Differences on the same seeds, in points; {MARK} exceeds twice its standard error. Intervals "
    "are 95 % bootstraps over pre-trainings and the fine-tunings within them; with two or three "
    "seeds they are rough. With a single pre-training they contain only the variation of "
    "fine-tuning. With few seeds a standard error is itself a matter of luck. So the last column "
    "pools the spread between the pre-trainings of all methods; its number is the difference that "
    "two equal methods exceed once in twenty times."
)


def header(table: StudyTable) -> list[str]:
    """The names of all columns."""
    scores = [
        name
        for heading in table.headings
        for name in ([f"{heading} paper", f"{heading} ours"] if table.has_paper else [heading])
    ]
    epochs = ["ep paper"] if table.has_paper else []
    departures = ["not as in the paper"] if table.has_paper else []
    return ["method", *epochs, *scores, "n", "budget", "data", *departures]


def cells(table: StudyTable, row: StudyRow) -> list[str]:
    """One row as text."""
    scores = [
        text
        for pair in row.pairs
        for text in ([_number(pair.paper, ".1f")] if table.has_paper else []) + [_ours(pair)]
    ]
    epochs = [str(row.paper_epochs or NOTHING)] if table.has_paper else []
    departures = ["; ".join(row.departures) or NOTHING] if table.has_paper else []
    known = [row.count or NOTHING, row.budget or NOTHING, row.data or NOTHING]
    return [row.name, *epochs, *scores, *known, *departures]


def markdown(
    tables: Sequence[StudyTable],
    paired: Sequence[PairedRow],
    runs: Sequence[PretrainingRow],
    *,
    title: str,
) -> str:
    """All tables as one page."""
    parts = [f"# {title}", LEGEND]
    for table in tables:
        parts += [f"## {table.title}", table.note]
        parts.append(in_markdown([header(table), *(cells(table, row) for row in table.rows)]))
    if paired:
        parts += ["## Paired comparisons", PAIRED_LEGEND]
        parts.append(in_markdown([PAIRED_HEADER, *(paired_cells(row) for row in paired)]))
    if runs:
        parts += ["## How the pre-trainings went", RUNS_LEGEND]
        parts.append(in_markdown([RUNS_HEADER, *(run_cells(row) for row in runs)]))
    return "\n\n".join(part for part in parts if part) + "\n"


RUNS_HEADER = ["run", "steps", "epochs", "images/s", "GiB", "loss", "effective rank", "feature std"]
RUNS_LEGEND = (
    "Medians of the last logged steps; loss at the first and at the last one. A rank near 1 or a "
    "deviation near 0 is a collapse. Runs that shared a GPU were slower than they would be alone."
)


def run_cells(row: PretrainingRow) -> list[str]:
    """One run as text."""
    return [
        row.run,
        _number(row.steps, ",.0f"),
        _number(row.epochs, ".1f"),
        _number(row.images_per_second, ",.0f"),
        _number(row.memory_gib, ".1f"),
        NOTHING if row.loss is None else f"{row.loss[0]:.3f} to {row.loss[1]:.3f}",
        _number(row.effective_rank, ".0f"),
        _number(row.feature_std, ".2f"),
    ]


PAIRED_HEADER = [
    "measure",
    "method",
    "difference",
    "standard error",
    "95 % interval",
    "n",
    "beyond the noise",
]


def paired_cells(row: PairedRow) -> list[str]:
    """One comparison as text."""
    error = _number(row.standard_error, ".2f")
    interval = NOTHING
    if row.interval is not None:
        interval = f"{row.interval[0]:+.2f} to {row.interval[1]:+.2f}"
    difference = f"{row.difference:+.2f}{MARK if row.notable else ''}"
    beyond = NOTHING
    if row.least is not None:
        beyond = f"{'yes' if abs(row.difference) > row.least else 'no'}, {row.least:.2f}"
    return [row.measure, row.method, difference, error, interval, row.count, beyond]


def csv_text(tables: Sequence[StudyTable]) -> str:
    """One line per score of a row, with everything that is known about it."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["table", "method", "figure", "paper", "paper_epochs", "mean", "deviation"]
        + ["standard_error", "basis", "n", "differs", "budget", "data", "departures"]
    )
    for table in tables:
        for row in table.rows:
            for heading, pair in zip(table.headings, row.pairs, strict=True):
                writer.writerow([table.identity, row.name, heading, *_csv_cells(row, pair)])
    return file.getvalue()


def latex(tables: Sequence[StudyTable]) -> str:
    """All tables for ``\\input``, with booktabs."""
    return "\n\n".join(map(_latex_table, tables)) + "\n"


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _ours(pair: Pair) -> str:
    return NOTHING if pair.ours is None else pair.ours.shown()


def _csv_cells(row: StudyRow, pair: Pair) -> list[object]:
    ours = pair.ours
    epochs = "" if row.paper_epochs is None else row.paper_epochs
    theirs: list[object] = ["" if pair.paper is None else pair.paper, epochs]
    if ours is None:
        return [*theirs, "", "", "", "", "", "", "", "", ""]
    spread = ["" if value is None else value for value in (ours.deviation, ours.standard_error)]
    facts = [row.budget, row.data, "; ".join(row.departures)]
    return [*theirs, ours.mean, *spread, ours.basis, ours.count, int(ours.differs), *facts]


def _latex_table(table: StudyTable) -> str:
    head = header(table)
    lines = [
        r"\begin{table}",
        r"  \centering\footnotesize",
        rf"  \caption{{{_escaped(table.title)}. {_escaped(table.note)}}}",
        rf"  \label{{{table.identity}}}",
        rf"  \begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"    \toprule",
        f"    {' & '.join(map(_escaped, head))} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(map(_escaped, cells(table, row)))} \\\\" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    commands = (("\\", r"\textbackslash "), ("$", r"\$"), ("±", r"$\pm$"), (NOTHING, "--"))
    for sign, command in commands:
        text = text.replace(sign, command)
    for sign in "%&#_{}":
        text = text.replace(sign, rf"\{sign}")
    return text.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
