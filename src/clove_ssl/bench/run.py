"""The part of ``clove bench`` that is a run like any other, in a process of its own.

So its start is that of a run that somebody types, with all that Python and torch
load, and its memory is its own. Whether it has to compile depends on torch's folder of
compiled code: this part comes before all others, which would fill that folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from clove_ssl.bench.clock import END_TO_END
from clove_ssl.config import files
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import CheckpointConfig, DataConfig, LoggingConfig, PretrainConfig
from clove_ssl.cores import available_cores
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics, training_steps

if TYPE_CHECKING:
    from clove_ssl.bench.command import Bench

_POLL_SECONDS = 0.05


def measure_runs(bench: Bench, method: MethodConfig, data: DataConfig) -> None:
    """A whole run from files to the optimizer, and again with each number of cores asked for."""
    _measure_run(bench, method, data, END_TO_END)
    for cores in bench.config.cores:
        with only_cores(cores):
            _measure_run(bench, method, data, f"{END_TO_END}, {cores} cores")


def check_cores(wanted: tuple[int, ...]) -> None:
    """Refuse what this machine does not have, before minutes of measuring."""
    if wanted and not hasattr(os, "sched_setaffinity"):
        raise UserError("This system cannot keep a process on some cores. Leave --cores out.")
    here = available_cores()
    if wanted and max(wanted) > here:
        raise UserError(f"--cores asks for {max(wanted)}, but there are {here}. Ask for fewer.")


@contextmanager
def only_cores(count: int) -> Iterator[None]:
    """Keep this process, and all that it starts, on some of its cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _measure_run(bench: Bench, method: MethodConfig, data: DataConfig, name: str) -> None:
    with TemporaryDirectory() as folder:
        config = _run_config(bench, method, data, Path(folder, "run"))
        start = _seconds_to_first_step(config, Path(folder, "config.yaml"))
        _, *later = training_steps(read_metrics(RunDirectory(config.out)))
    last = later[-2:]
    wait = fmean(line["data_wait"] for line in last)
    bench.record(
        f"{name} (waits {100 * wait:.1f} %)",
        fmean(line["images_per_second"] for line in last),
        memory=last[-1].get("memory_gib", 0),
        first=start,
    )


def _run_config(bench: Bench, method: MethodConfig, data: DataConfig, out: Path) -> PretrainConfig:
    every = max(1, bench.config.run_steps // 3)
    return PretrainConfig(
        out=out,
        data=data,
        method=method,
        backbone=bench.config.backbone,
        checkpoints=CheckpointConfig(every_epochs=1e9),
        logging=LoggingConfig(every=every),
        steps=3 * every,
        batch_size=bench.config.batch,
        micro_batch=bench.config.batch,
        device=bench.config.device,
        compile=bench.config.compile,
        activation_memory=bench.config.activation_memory,
        deterministic=False,
    )


def _seconds_to_first_step(config: PretrainConfig, path: Path) -> float:
    """Make a run; how long it took until its first step was done and written down."""
    files.save(config, path)
    written = RunDirectory(config.out).metrics
    command = [sys.executable, "-m", "clove_ssl", "pretrain", "--config", str(path)]
    command += ["--out", str(config.out)]
    process = subprocess.Popen(command)
    try:
        first = _seconds_until_written(written, process)
    except KeyboardInterrupt:  # it need not have heard of it
        process.terminate()
        process.wait()
        raise
    if process.returncode or first is None:
        raise UserError(
            f"The run that was to be measured ended with exit status {process.returncode}; what it "
            "said is above. Measure the rest with: clove bench --parts step data"
        )
    return first


def _seconds_until_written(file: Path, process: subprocess.Popen[bytes]) -> float | None:
    """Wait for the end of a process; when it had begun to write a file, if it did."""
    begin, first = time.perf_counter(), None
    while process.poll() is None:
        if first is None and file.exists() and file.stat().st_size:
            first = time.perf_counter() - begin
        time.sleep(_POLL_SECONDS)
    return first
