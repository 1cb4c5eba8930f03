"""What a run will do, what it needs at least, and whether this machine has it.

The numbers of a plan follow from a config, the data and the machine. Of its needs only what is
certain is counted: weights with their gradients and the optimizer's state, the pixels of one
forward pass, the batches that workers hold ready, checkpoints. Feature maps come on top. So what
is refused here could not have run, and what is not may still run out of memory.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clove_ssl.console import Console, duration
from clove_ssl.cores import total_memory
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import list_checkpoints
from clove_ssl.schedules import Schedule

LARGEST_MICRO_BATCH = {"cuda": 256, "cpu": 32}
GIB = 2**30
SHORTEST_STEP = 1e-3  # seconds
FASTEST_IMAGES = 1e5  # images that a process sees in a second
LONGEST_RUN = 100 * 86_400.0  # seconds


@dataclass(frozen=True)
class RunPlan(ABC):
    """What a run will do, step by step; subclasses know the learning rate."""

    images: int
    batch_size: int
    processes: int
    micro_batch: int
    total_steps: int
    warmup_steps: int
    peak_lr: float
    checkpoint_every: int
    milestone_every: int | None

    @property
    def micro_batches(self) -> int:
        """Forward passes per optimizer step of one process."""
        return self.batch_size // (self.processes * self.micro_batch)

    def epoch(self, step: int) -> float:
        """How often each image has been seen when ``step`` steps are done."""
        return step * self.batch_size / self.images

    @abstractmethod
    def lr(self) -> Schedule:
        """The learning rate as a function of the step."""

    def values(self) -> dict[str, Any]:
        """The numbers as they stand in ``provenance.json``."""
        return {**asdict(self), "micro_batches": self.micro_batches}

    def writes_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is due when ``step`` steps are done."""
        due = step % self.checkpoint_every == 0 or step == self.total_steps
        return due or self.is_milestone(step)

    def is_milestone(self, step: int) -> bool:
        """Whether that checkpoint is kept for good."""
        return self.milestone_every is not None and step % self.milestone_every == 0


def fit_micro_batch(asked: int | None, share: int, largest: int) -> int:
    """The images of one forward pass: what was asked for, or the most that fit and divide."""
    if asked is None:
        return next(size for size in range(min(share, largest), 0, -1) if share % size == 0)
    if asked < 1 or share % asked:
        fits = [size for size in range(1, share + 1) if share % size == 0]
        raise UserError(
            f"micro_batch={asked} does not divide the {share} images each process handles per "
            f"step. Try --micro-batch {min(fits, key=lambda size: abs(size - asked))}."
        )
    return asked


@dataclass(frozen=True)
class Needs:
    """Bytes that a process needs at least."""

    weights: int  # with gradients and the state of the optimizer
    pixels: int  # of one forward pass
    waiting: int  # in batches that workers hold ready
    checkpoint: int  # on the disk

    def on_device(self) -> int:
        """Bytes of the memory in which the networks are."""
        return self.weights + self.pixels


def weights_and_checkpoint(network: nn.Module, states_per_weight: int) -> tuple[int, int]:
    """Bytes of a network in training, and of its checkpoint; tensors may be without memory."""
    state = _bytes(network.state_dict().values())
    trained = _bytes(each for each in network.parameters() if each.requires_grad)
    return state + (1 + states_per_weight) * trained, state + states_per_weight * trained


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def check_memory(needs: Needs, device: torch.device, *, processes_here: int, lower: str) -> None:
    """Refuse what cannot fit into memory; ``lower`` names the options that make it smaller."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        _check(needs, needs.on_device(), total, "the GPU", lower)
        _check(needs, processes_here * needs.waiting, total_memory(), "this machine", lower)
    else:
        wanted = processes_here * (needs.on_device() + needs.waiting)
        _check(needs, wanted, total_memory(), "this machine", lower)


def _check(needs: Needs, wanted: int, total: int | None, who: str, lower: str) -> None:
    if total is None or wanted <= total:
        return
    raise UserError(
        f"This run needs at least {gib(wanted)} of memory, and {who} has {gib(total)}: weights, "
        f"gradients and optimizer {gib(needs.weights)}, the images of a forward pass "
        f"{gib(needs.pixels)}, prefetched batches {gib(needs.waiting)}. Lower {lower}."
    )


def checkpoint_space(checkpoint: int, folder: Path, *, keep: int, milestones: int) -> int:
    """Bytes that checkpoints will still take: those kept, one being written, and milestones."""
    there = list_checkpoints(folder)
    kept = sum(1 for each in there if each.milestone)
    passing = max(1, keep + 1 - (len(there) - kept))
    return (passing + max(0, milestones - kept)) * checkpoint


def check_disk(wanted: int, folder: Path, *, what: str, lower: str) -> None:
    """Refuse what cannot fit onto the disk of a folder that may not be there yet."""
    free = free_space(folder)
    if free is not None and wanted > free:
        raise UserError(
            f"{what} need {gib(wanted)}, and the disk of {folder} has {gib(free)} free. Give --out "
            f"a place with more room, or lower {lower}."
        )


def free_space(folder: Path) -> int | None:
    """Free bytes of the disk on which a folder is, or would be."""
    place = Path(os.path.abspath(folder))
    existing = next((each for each in (place, *place.parents) if each.is_dir()), None)
    try:
        return shutil.disk_usage(existing).free if existing else None
    except OSError:
        return None


def check_time(steps: int, images: int, *, processes: int) -> None:
    """Refuse what would last for months on any machine: so many steps, or images in all."""
    least = max(steps * SHORTEST_STEP, images / (FASTEST_IMAGES * processes))
    if least > LONGEST_RUN:
        raise UserError(
            f"{steps:,} steps with {images:,} images take at least {duration(least)}, even on the "
            "fastest machine. Give fewer --steps, --epochs or --iterations, or a smaller "
            "--batch-size."
        )


def announce_needs(needs: Needs, space: int, console: Console) -> None:
    """Say what is certain; the time is known from the first logged step on."""
    memory = needs.on_device() + needs.waiting
    console.choice("needs", f"at least {gib(memory)} of memory", f"{gib(space)} for checkpoints")


def gib(size: int) -> str:
    """A size as a person reads it."""
    if size < GIB / 10:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / GIB:,.1f} GiB"
