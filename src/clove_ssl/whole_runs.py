"""Begin or continue a run, and close it: what is learned is measured, drawn and judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.finetuning.run import FinetuneResult
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.run import PretrainResult
from clove_ssl.report import command as reporting
from clove_ssl.runs.directory import RunDirectory, find, read_config


def begin(config: PretrainConfig, *, overwrite: bool = False) -> PretrainResult:
    """Pre-train a backbone, then measure, draw and judge it."""
    result = pretraining.pretrain(config, overwrite=overwrite)
    if result.finished:
        reporting.conclude(result.run)
    return result


def resume(
    path: str | Path,
    *,
    micro_batch: int | None = None,
    data: str | Path | Sequence[str | Path] = (),
    epochs: int | None = None,
    steps: int | None = None,
    max_bad: float | None = None,
    conclude: bool = True,
) -> PretrainResult | FinetuneResult:
    """Continue a run from its last good checkpoint, or make a finished one longer.

    Args:
        path: The run directory.
        micro_batch: Images per forward pass and process, where another number of processes
            needs another one than the run was started with.
        data: Where the same images are now, if they were moved.
        epochs: Make a pre-training run this long instead.
        steps: The same in optimizer steps.
        max_bad: Share of unreadable files at which the run stops.
        conclude: Measure, draw and judge a pre-training that comes to its end.
    """
    named = [data] if isinstance(data, str | Path) else data
    changes = ResumeChanges(
        micro_batch=micro_batch,
        data=tuple(map(str, named)),
        epochs=epochs,
        steps=steps,
        max_bad=max_bad,
    )
    run = find(Path(path))
    if isinstance(read_config(run), FinetuneConfig):
        return finetuning.resume(path, changes)
    before = _logged(run)
    result = pretraining.resume(path, changes)
    if conclude and result.finished and _logged(run) != before:  # else it had ended already
        reporting.conclude(run.path)
    return result


def _logged(run: RunDirectory) -> int:
    """Bytes of its log."""
    return run.metrics.stat().st_size if run.metrics.is_file() else 0
