"""How many steps of a method fit into a given time on this device."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from typing import Any

from clove_ssl.atomic import write_text
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics, training_steps
from clove_ssl.runs.provenance import last_start
from clove_ssl.study.config import BudgetConfig
from clove_ssl.study.configs import in_time


@dataclass(frozen=True)
class Timing:
    """The speed of a pre-training on a device."""

    seconds_per_step: float
    data_wait: float  # share of that time
    timed_steps: int
    device: str

    def steps_in(self, seconds: float) -> int:
        """Steps that fit; one at least."""
        return max(1, math.floor(seconds / self.seconds_per_step))


def time_steps(place: RunDirectory, config: PretrainConfig, budget: BudgetConfig) -> Timing:
    """Time a short run and write down its speed; the run itself is thrown away."""
    short = place.path / "run"
    shutil.rmtree(short, ignore_errors=True)  # a timing that was interrupted is of no use
    every = budget.timed_steps
    warm = every * math.ceil(budget.warm_steps / every)  # log lines stand at multiples of every
    timed = replace(
        in_time(config),
        out=short,
        steps=warm + every,
        logging=replace(config.logging, every=every, wandb_project=None),
    )
    result = pretraining.pretrain(timed)
    if not result.finished:
        raise KeyboardInterrupt
    last = training_steps(read_metrics(RunDirectory(short)))[-1]
    timing = Timing(
        seconds_per_step=config.batch_size / last["images_per_second"],
        data_wait=last["data_wait"],
        timed_steps=every,
        device=str(last_start(RunDirectory(short))["device"]),
    )
    write_text(place.scores, json.dumps(timing.__dict__, indent=1) + "\n")
    shutil.rmtree(short)
    return timing


def read_timing(place: RunDirectory) -> Timing | None:
    """What a timing found, if it was made."""
    if not place.scores.is_file():
        return None
    try:
        values: dict[str, Any] = json.loads(place.scores.read_text(encoding="utf-8"))
        return Timing(**values)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{place.scores} is damaged: {error}. Delete it, then start the study again."
        ) from None
