"""What a fine-tuning run needs at least; what cannot fit is refused with the number."""

from __future__ import annotations

from pathlib import Path

from clove_ssl.config.finetuning import FinetuneConfig, LabelledDataConfig
from clove_ssl.finetuning.plan import FinetunePlan
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskModel
from clove_ssl.training.needs import (
    Needs,
    check_disk,
    check_memory,
    check_time,
    checkpoint_space,
    weights_and_checkpoint,
)
from clove_ssl.training.processes import Process

KEPT_CHECKPOINTS = 2
_PIXELS_PER_BYTE = 20  # of JPEG files and masks of scenes, with much to spare


def check_room_for_scenes(data: LabelledDataConfig, folder: Path) -> None:
    """Refuse scenes that the disk cannot hold, unless they are there."""
    if not folder.is_dir():
        pixels = (data.scenes_train + data.scenes_test) * data.scenes_size**2
        lower = "--data.scenes-train, --data.scenes-test or --data.scenes-size"
        what = "The scenes of this run"
        check_disk(pixels // _PIXELS_PER_BYTE, folder, what=what, lower=lower)


def check_needs(
    config: FinetuneConfig,
    run: RunDirectory,
    plan: FinetunePlan,
    model: TaskModel,
    process: Process,
) -> None:
    """Refuse batches and checkpoints that cannot fit, and what would last for months."""
    images = plan.total_steps * plan.batch_size
    check_time(plan.total_steps, images, processes=process.world_size)
    sides = getattr(config.task, "train_sides", None) or (getattr(config.task, "crop", 1),)
    pixels = 3 * plan.micro_batch * min(sides) ** 2  # of at least a byte each
    weights, checkpoint = weights_and_checkpoint(model, states_per_weight=1)
    needs = Needs(weights, pixels, 0, checkpoint)
    lower = "--micro-batch, --batch-size or the sizes of the images"
    check_memory(needs, process.device, processes_here=process.local_world_size, lower=lower)
    space = checkpoint_space(checkpoint, run.checkpoints, keep=KEPT_CHECKPOINTS, milestones=0)
    what = "The checkpoints of this run"
    check_disk(space, run.path, what=what, lower="the sizes of its heads")
