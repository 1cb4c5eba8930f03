"""What the config of a fine-tuning leaves open: decided at each start, said, and written down."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from clove_ssl.config.choice import Choice
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.data.loading import choose_workers
from clove_ssl.finetuning.plan import FinetunePlan
from clove_ssl.tasks.base import TaskModel
from clove_ssl.training.captured import decide_capture
from clove_ssl.training.numerics import Precision
from clove_ssl.training.processes import Process

MOST_CAPTURED_PIXELS = 8_000_000
"""Of a micro-batch. With more, the GPU is busy for nine tenths of a step and more without graphs,
which would take as much memory as the step itself (docs/results/finetuning.md)."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything that one start of a run decides."""

    plan: FinetunePlan
    precision: Precision
    workers: Choice[int]
    capture: Choice[bool]

    def values(self) -> dict[str, Any]:
        """The choices as they stand in ``provenance.json``."""
        return {
            "precision": self.precision.values(),
            "capture": asdict(self.capture),
            "workers": asdict(self.workers),
            "plan": self.plan.values(),
        }

    def facts(self) -> dict[str, str]:
        """Those that a user is told."""
        facts = {"precision": f"{self.precision.name} ({self.precision.reason})"}
        if self.precision.device_type == "cuda":
            decided = "yes" if self.capture.value else "no"
            facts["captured steps"] = f"{decided} ({self.capture.reason})"
        return facts


def choose_readers(config: FinetuneConfig, process: Process) -> Choice[int]:
    """How many workers read images."""
    return choose_workers(
        config.data,
        processes_here=process.local_world_size,
        trains_on_cpu=process.device.type == "cpu",
    )


def choose_capture(
    config: FinetuneConfig, plan: FinetunePlan, process: Process, model: TaskModel
) -> Choice[bool]:
    """Whether a part of the steps is captured, by default wherever it can be and pays."""
    obstacle = model.why_not_captured()
    obstacles = {
        "on a CPU": process.device.type != "cuda",
        f"{process.world_size} processes share a step": process.world_size > 1,
        obstacle: bool(obstacle),
    }
    pixels = plan.micro_batch * _largest_image(config.task)
    busy = f"batches of up to {pixels / 1e6:.0f} million pixels keep the GPU busy by themselves"
    return decide_capture(
        config.capture,
        obstacles,
        reason="first stage, choice of regions and box head, for frequent image sizes",
        costs=busy if pixels > MOST_CAPTURED_PIXELS else "",
    )


def _largest_image(task: object) -> int:
    """Pixels of the largest image that a detector is trained on."""
    sides, longest = getattr(task, "train_sides", (1,)), getattr(task, "longest", 1)
    return int(max(sides)) * int(longest)
