"""One process among many: who it is, what it computes on, and how it agrees with the others.

``torchrun`` sets the environment; without it there is one process and every
function here is cheap and does nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clove_ssl.console import Console
from clove_ssl.errors import UserError, counted
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import damaged_lines
from clove_ssl.training.presence import GO_ON, noticing_losses

LONGEST_WAIT = timedelta(hours=2)
"""How long processes wait for the first one, which scores and writes reports alone."""

T = TypeVar("T")
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Process:
    """This process's place among all of them."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """The one that speaks and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add ``values`` over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def maximum(self, values: Tensor) -> Tensor:
        """The largest of ``values`` over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def gather(self, item: T) -> list[T]:
        """The items of all processes, in rank order."""
        if self.world_size == 1:
            return [item]
        items: list[T | None] = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items  # type: ignore[return-value]

    def wait(self) -> None:
        """Return when all processes have come here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def joined(
    device: Literal["auto", "cpu", "cuda"], *, share_gpus: bool = False
) -> Iterator[Process]:
    """Join the process group for the duration of a run.

    Processes that ``share_gpus`` talk by gloo, as NCCL wants a GPU for each.
    """
    process = _describe(device, share_gpus=share_gpus)
    if process.device.type == "cuda":
        torch.cuda.set_device(process.device)
    if process.world_size > 1:
        # NCCL refuses two processes on one GPU.
        on_gpu = process.device.type == "cuda" and not share_gpus
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            # torch's ten minutes are less than scoring a large test set takes, which the first
            # process does while the others wait.
            timeout=LONGEST_WAIT,
            device_id=process.device if on_gpu else None,
        )
    with _hearing_of_losses(process):
        yield process
    # Not after an error: the others may wait elsewhere, and this process has to end to tell them.
    if process.world_size > 1:
        dist.destroy_process_group()


@contextmanager
def _hearing_of_losses(process: Process) -> Iterator[None]:
    """Say in words that another process is gone, whether a wait fails at once or never ends."""
    if process.world_size == 1:
        yield
        return
    try:
        with noticing_losses(process.rank, process.world_size):
            yield
    except RuntimeError as error:
        if not _LOST.search(str(error)):
            raise
        raise UserError(
            f"Process {process.rank} waited for the others, and one of them is gone or did not "
            f"come within {LONGEST_WAIT}. {GO_ON}"
        ) from None


# What gloo, NCCL and the store say when a peer has closed its end, or does not answer.
_LOST = re.compile(
    r"Connection (?:closed|reset|refused)|[Bb]roken pipe|[Tt]imed out|[Tt]imeout|"
    r"NCCL (?:communicator was aborted|error)|remote process exited|failed to recv"
)


def _describe(device: Literal["auto", "cpu", "cuda"], *, share_gpus: bool) -> Process:
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    gpus = torch.cuda.device_count()
    # Round and round where there are more processes than GPUs.
    place = local_rank % gpus if share_gpus and gpus else local_rank
    return Process(
        rank=int(os.environ.get("RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
        local_rank=local_rank,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        device=choose_device(device, local_rank=place),
    )


def choose_device(device: str, *, local_rank: int | None = 0) -> torch.device:
    """The device of a process; ``auto`` is a GPU where there is one, ``cuda:1`` a certain GPU.

    Of several GPUs, ``cuda`` is the one of the process, or with ``None`` the one torch is set to.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    named = _named_device(device)
    if str(named) != "cuda" or local_rank is None:
        return named
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"Process {local_rank} of this machine has no GPU of its own; torch sees "
            f"{torch.cuda.device_count()}. Start torchrun with --nproc-per-node "
            f"{torch.cuda.device_count()}, or give --share-gpus."
        )
    return torch.device("cuda", local_rank)


def _named_device(name: str) -> torch.device:
    if not re.fullmatch(r"cpu|cuda(:\d{1,2})?", str(name)):
        raise UserError(f"{name!r} is no device. Give auto, cpu, cuda or cuda:0.")
    device = torch.device(name)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"The device {device} was asked for, but torch sees {counted(gpus, 'GPU')}. Run `clove "
            "doctor`, or leave the device out to use what is there."
        )
    return device


def placed(network: Network, device: torch.device) -> Network:
    """A network on a device, laid out as kernels there want it."""
    if device.type == "cuda":
        # The layout that tensor cores want; without it every convolution would turn its maps
        # around.
        network = network.to(memory_format=torch.channels_last)
    return network.to(device)


@contextmanager
def owned(run: RunDirectory, process: Process) -> Iterator[Console]:
    """Only the first process locks and writes the run directory."""
    with (
        directory.locked(run) if process.is_first else nullcontext(True) as is_protected,
        Console(speaks=process.is_first, log=run.log if process.is_first else None) as console,
    ):
        if not is_protected:
            console.warn(
                f"{run.path} is on a file system without locks, so the run cannot protect itself: "
                "start no second process in this folder"
            )
        if process.is_first and (damage := damaged_lines(run)):
            console.warn(damage)
        # Nobody goes on before the first process owns the folder: a refusal must reach all.
        process.wait()
        yield console
