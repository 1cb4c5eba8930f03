"""Where a run stands, found out from its files."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import SCENES, PretrainConfig
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import last_start

Status = Literal["finished", "running", "interrupted"]


@dataclass(frozen=True)
class RunState:
    """Where a run stands; what cannot be known before the first logged step is ``None``."""

    status: Status
    step: int  # the last one that was logged
    total_steps: int | None
    images: int | None
    epoch: float | None


def read_state(
    run: RunDirectory, config: PretrainConfig, metrics: Sequence[Mapping[str, float]]
) -> RunState:
    """Find out from the files of a run how far it has come."""
    last = metrics[-1] if metrics else {}
    images = _planned_images(run) or _images(config, last)
    is_known = images is not None or not config.method.trains
    total = config.total_steps(images or 0) if is_known else config.steps
    return RunState(
        _status(run, run.backbone), int(last.get("step", 0)), total, images, last.get("epoch")
    )


def read_finetuning_state(
    run: RunDirectory, config: FinetuneConfig, metrics: Sequence[Mapping[str, float]]
) -> RunState:
    """The same for a fine-tuning run, which has finished when it has been scored."""
    last = metrics[-1] if metrics else {}
    step = int(last.get("step", 0))
    return RunState(_status(run, run.scores), step, config.total_iterations, None, None)


def _planned_images(run: RunDirectory) -> int | None:
    """The size of the data, as the last start found it; earlier versions did not write it down."""
    plan = last_start(run).get("choices", {}).get("plan")
    planned = plan.get("images") if isinstance(plan, dict) else None
    return planned if type(planned) is int and 0 < planned < 2**63 else None


def _images(config: PretrainConfig, last: Mapping[str, float]) -> int | None:
    """The size of the data, which a run logs as the progress of its epochs."""
    epoch = last.get("epoch", 0.0)
    if math.isfinite(epoch) and epoch > 1e-12:  # not so where the log is damaged
        return round(last["step"] * config.batch_size / epoch)
    return config.data.scenes_count if config.data.source == SCENES else None


def _status(run: RunDirectory, written_last: Path) -> Status:
    if written_last.is_file():
        return "finished"
    return "running" if _is_locked(run) else "interrupted"


def _is_locked(run: RunDirectory) -> bool:
    """Whether a process holds the run, asked without writing anything."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        handle = os.open(run.path / ".lock", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # there is none, or it is a link that leads nowhere
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False
