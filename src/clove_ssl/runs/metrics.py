"""``metrics.jsonl``, the truth about a run, and its copies for other viewers.

One JSON object per logged step. Lines after the step a run is resumed from
are dropped, so the file reads as if the run had never been interrupted.
The file is a witness and no part of a run's state: a line that is damaged is
left out and named, and nothing else depends on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clove_ssl.atomic import write_text
from clove_ssl.config.pretraining import LoggingConfig
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import run_number

PROBE_PREFIX = "probe_"
"""How the names of scores begin that a probe on the way has found."""
PROBE_SECONDS = f"{PROBE_PREFIX}seconds"

_LONGEST_LINE = 2**20
_NAMED_LINES = 5


class Sink(Protocol):
    """A viewer that wants to see every logged step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """Appends to ``metrics.jsonl``."""

    def __init__(self, path: Path, *, start_step: int) -> None:
        kept = [line.text for line in _lines(path) if line.row and line.row["step"] <= start_step]
        write_text(path, "".join(text + "\n" for text in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()

    def settle(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Scalars for TensorBoard, in the run directory."""

    def __init__(self, run: RunDirectory) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard", "--logging.no-tensorboard") from None
        self._writer: Any = SummaryWriter(str(run.path / "tensorboard"))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Scalars for Weights & Biases."""

    def __init__(self, run: RunDirectory, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb", "--logging.wandb-project None") from None
        self._run: Any = wandb.init(
            project=project, name=_title(run), dir=str(run.path), id=_identity(run), resume="allow"
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Metrics:
    """All sinks of a run."""

    def __init__(self, run: RunDirectory, config: LoggingConfig, *, start_step: int) -> None:
        self._file = MetricsFile(run.metrics, start_step=start_step)
        self._sinks: list[Sink] = [self._file]
        if config.tensorboard:
            self._sinks.append(TensorBoardSink(run))
        if config.wandb_project:
            self._sinks.append(WandbSink(run, config.wandb_project))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step."""
        for sink in self._sinks:
            sink.write(step, metrics)

    def settle(self) -> None:
        """Bring every line so far to the disk: a checkpoint counts on those before its step."""
        self._file.settle()

    def close(self) -> None:
        """Flush and close every sink."""
        for sink in self._sinks:
            sink.close()


def read_metrics(run: RunDirectory) -> list[dict[str, float]]:
    """Every logged step of a run, oldest first; damaged lines are left out."""
    return [line.row for line in _lines(run.metrics) if line.row]


def damaged_lines(run: RunDirectory) -> str:
    """A sentence that names the damaged lines, or nothing; a last line torn by a crash is none."""
    numbers = [line.number for line in _lines(run.metrics) if not line.row and not line.is_torn]
    if not numbers:
        return ""
    shown = ", ".join(map(str, numbers[:_NAMED_LINES]))
    more = f" and {len(numbers) - _NAMED_LINES:,} more" if len(numbers) > _NAMED_LINES else ""
    which = f"line {shown} is" if len(numbers) == 1 else f"lines {shown}{more} are"
    return f"{run.metrics}: {which} damaged and left out; the state of the run is not concerned"


def last_values(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The last value of every metric; probes and scores have lines of their own."""
    return {name: value for row in rows for name, value in row.items()}


def training_steps(rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The lines of training steps, without those of probes and scores."""
    return [row for row in rows if "loss" in row]


def _title(run: RunDirectory) -> str:
    """The name of a run; one of several that differ in their seed also says of which."""
    whole = RunDirectory(run.path.parent)
    return f"{whole.path.name}-{run.path.name}" if whole.config.is_file() else run.path.name


def _identity(run: RunDirectory) -> str:
    """What no other run has, however alike their folders are called.

    Runs of earlier versions have no number, and are known by the name of their folder.
    """
    number = run_number(run)
    return f"{_title(run)}-{number}" if number else run.path.name


@dataclass(frozen=True)
class _Line:
    number: int  # from 1
    text: str
    row: dict[str, float] | None  # nothing when the line is damaged
    is_torn: bool  # by a crash in the middle of writing it


def _lines(path: Path) -> Iterator[_Line]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            if content.strip():
                text = content.decode("utf-8", "replace").rstrip("\r\n")
                yield _Line(number, text, _row(content), not content.endswith(b"\n"))


def _row(content: bytes) -> dict[str, float] | None:
    """The figures of a line, or nothing when it is not what a run writes."""
    if len(content) > _LONGEST_LINE:
        return None
    try:
        row = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(map(_is_figure, row.values())):
        return None
    step = row.get("step")
    return row if isinstance(step, int) and step >= 0 else None


def _is_figure(value: object) -> bool:
    """Whether a value is a number, which may be infinite or NaN where training went wrong."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _missing(extra: str, remedy: str) -> UserError:
    return UserError(
        f"{extra} is not installed. Type: pip install 'clove-ssl[{extra}]', or leave it out with "
        f"{remedy}."
    )
