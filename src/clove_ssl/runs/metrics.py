"""``metrics.jsonl``, the truth about a run, and its copies for other viewers.

One JSON object per logged step. Lines after the step a run is resumed from
are dropped, so the file reads as if the run had never been interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


class Sink(Protocol):
    """A viewer that wants to see every logged step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """Appends to ``metrics.jsonl``."""

    def __init__(self, path: Path, *, start_step: int) -> None:
        kept = [line for line in _lines(path) if _step(line) <= start_step]
        write_text(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()

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
        self._sinks: list[Sink] = [MetricsFile(run.metrics, start_step=start_step)]
        if config.tensorboard:
            self._sinks.append(TensorBoardSink(run))
        if config.wandb_project:
            self._sinks.append(WandbSink(run, config.wandb_project))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step."""
        for sink in self._sinks:
            sink.write(step, metrics)

    def close(self) -> None:
        """Flush and close every sink."""
        for sink in self._sinks:
            sink.close()


def read_metrics(run: RunDirectory) -> list[dict[str, float]]:
    """Every logged step of a run, oldest first; a torn last line is left out."""
    return [json.loads(line) for line in _lines(run.metrics)]


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


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines() if _step(line) >= 0]


def _step(line: str) -> int:
    """The step of a line, or -1 when the line was cut off by a crash."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return -1


def _missing(extra: str, remedy: str) -> UserError:
    return UserError(
        f"{extra} is not installed. Type: pip install 'clove-ssl[{extra}]', or leave it out with "
        f"{remedy}."
    )
