"""Have our kernels compiled by several processes, while a run still gets ready.

Triton compiles a kernel when it is first launched, one after the other, which takes most of the
time to the first step of a first run. A helper finds out which kernels there will be
(``launches.py``), and leaves them in Triton's cache before anybody asks for them. It is a copy of
this process, which has imported all it needs, and sees no GPU. Whatever becomes of it, the run goes
on and compiles what is missing, as it would without a helper.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch

import clove_ssl
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.cores import available_cores
from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.pretraining.compile.helpers import end_with_parent
from clove_ssl.pretraining.compile.launches import (
    compile_driver,
    noted,
    outline,
    pretend_gpu,
    render_unseen,
    step_unseen,
    update_unseen,
)
from clove_ssl.training.numerics import Precision, choose_precision, start_repeatably
from clove_ssl.training.processes import Process

FEWEST_CORES = 4  # with fewer, the helper would take the time of the run that it is to save
MOST_PROCESSES = 16
LONGEST_WAIT = 30.0  # seconds; all kernels take a few
DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # where there is a GPU, one of these is
_WITH_KERNELS = ("backbones", "layers", "methods", "views", "lars_kernels.py")


@dataclass(frozen=True)
class Wanted:
    """What the kernels of a run depend on."""

    config: PretrainConfig
    images: int  # of a pass
    precision: Precision
    capability: tuple[int, int]  # of the GPU

    @property
    def renders(self) -> bool:
        """Whether views are rendered by kernels, too."""
        return self.config.data.render != "cpu"

    @property
    def mark(self) -> Path:
        """The file beside Triton's kernels that says that these are among them."""
        from triton import __version__, knobs

        config = self.config
        parts = (config.method, config.backbone, config.optimizer, config.data.render)
        facts = (parts, config.deterministic, self.images, self.precision.name, self.capability)
        versions = (torch.__version__, __version__, _code())
        name = hashlib.sha256(repr((facts, versions)).encode()).hexdigest()
        return Path(knobs.cache.dir, f"clove-{name[:32]}")


def _code() -> str:
    """A hash of all files that launch kernels or have some."""
    digest = hashlib.sha256()
    for name in _WITH_KERNELS:
        place = Path(clove_ssl.__path__[0], name)
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def waiting_helper(config: PretrainConfig) -> Helper | None:
    """A helper for a run that may need one, or nothing; before this process uses the GPU."""
    # Several processes would do the same work several times.
    alone = int(os.environ.get("WORLD_SIZE", 1)) == 1 and available_cores() >= FEWEST_CORES
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    # Asked without torch, which would use the driver.
    on_gpu = not used and any(os.path.exists(place) for place in DRIVERS)
    # Compiled networks have other kernels, and processes of their own for them (``ahead.py``).
    if not (alone and on_gpu and has_triton()) or config.compile == "always":
        return None
    try:
        return Helper()
    # No reason to end a run: there is no room for a process, or this one may have no children.
    except (OSError, AssertionError):
        return None


class Helper:
    """A process that waits until it is told which kernels to compile."""

    def __init__(self) -> None:
        # Forked, as imports alone would take longer than what is to be saved. And now: a copy of a
        # process that has used a GPU cannot compute gradients, not even on the CPU.
        context = multiprocessing.get_context("fork")
        orders, self._orders = context.Pipe(duplex=False)
        self._process = context.Process(target=_help, args=[orders, self._orders], daemon=True)
        self._process.start()
        orders.close()
        self._mark: Path | None = None  # of what it was told to compile

    def start(self, config: PretrainConfig, process: Process, *, images: int) -> None:
        """Have it compile the kernels of a run, or end if they are there already.

        Args:
            config: Of the run.
            process: Its only one.
            images: Of a pass.
        """
        # Never a reason to end a run: the helper is gone, or Triton is of another version.
        with self._orders, suppress(OSError, ImportError, AttributeError):
            if process.device.type == "cuda":
                precision = choose_precision(config.precision, process.device)
                capability = torch.cuda.get_device_capability(process.device)
                self._order(Wanted(config, images, precision, capability))

    def _order(self, wanted: Wanted) -> None:
        mark = wanted.mark  # found from many files
        if not mark.exists():
            self._orders.send(wanted)
            self._mark = mark

    def wait(self) -> None:
        """Return when it has ended, so that nothing is compiled twice."""
        if self._mark is None:  # a copy of a process with threads may hang, even with nothing to do
            self._end()
            return
        self._process.join(LONGEST_WAIT)
        if self._process.is_alive():  # something is wrong: do without it, and the next time, too
            self._end()
            with suppress(OSError):
                self._mark.touch()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()


def _help(orders: Connection, other_end: Connection) -> None:
    """What the helper does."""
    other_end.close()  # or the pipe would never end for this process
    _leave_the_run_alone()
    with suppress(Exception):  # of a pipe that ends without an order; else nobody could help it
        wanted: Wanted = orders.recv()
        compile_wanted(wanted)
        # Even if a step was not taken to its end: another helper would come as far.
        wanted.mark.touch()


def _leave_the_run_alone() -> None:
    end_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # should a library end it, nobody needs a file
    signal.set_wakeup_fd(-1)  # the pipe through which the run is told of signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which the run ends it
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    gc.disable()  # looking through objects would copy the memory that they share with the run
    torch.set_num_threads(1)  # the threads of the run are not in the copy


def compile_wanted(wanted: Wanted) -> None:
    """Compile with all cores; rendering comes first, in a run as well."""
    # Layers ask whether they have to repeat themselves.
    start_repeatably(0, torch.device("cuda"), deterministic=wanted.config.deterministic)
    pretend_gpu(wanted.capability)
    processes = _share_out([compile_driver])
    method = outline(wanted.config)
    dtype = wanted.precision.dtype if wanted.renders else torch.float32
    if wanted.renders:
        with noted() as launches:
            render_unseen(method.views(), dtype)
        processes += _share_out([launch.compile for launch in launches])
    # A method may decide by values, of which there are none; what was seen so far counts.
    with noted() as launches, suppress(Exception):
        update_unseen(wanted.config.optimizer)
        step_unseen(method, wanted.images, wanted.precision, dtype=dtype)
    processes += _share_out([launch.compile for launch in launches])
    for process in processes:
        os.waitpid(process, 0)


def _share_out(jobs: Sequence[Callable[[], None]]) -> list[int]:
    """The numbers of processes that do these."""
    count = min(MOST_PROCESSES, available_cores(), len(jobs))
    started = []
    for number in range(count):
        process = os.fork()
        if process == 0:
            _do(jobs[number::count])
        started.append(process)
    return started


def _do(jobs: Sequence[Callable[[], None]]) -> NoReturn:
    """In a process of its own, which ends here."""
    try:
        end_with_parent()
        for job in jobs:
            with suppress(Exception):  # the run will meet the same, and say so
                job()
    finally:
        os._exit(0)
