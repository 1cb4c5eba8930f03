"""How long a checkpoint stops training: written at once, and by a thread from a copy.

Run:  python -m benchmarks.bench_checkpoints [--recipe clove-r18-small] [--rounds 7] [--folder DIR]
Prints one JSON line: milliseconds that the loop stands still (medians), their ratio, how long a
write takes until it is on the disk, and what the parts of a plain write cost. Whatever is queued
on a GPU ends before a time is taken, so that only the checkpoint is in it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from clove_ssl.methods.clove.recipes import RECIPES
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining.going_on import unrestored_method
from clove_ssl.training.checkpoints import CheckpointStore, CheckpointWriter, State
from clove_ssl.training.numerics import random_state
from clove_ssl.training.processes import choose_device


def state_of(recipe: str, device: torch.device) -> State:
    """What a run of this recipe would write after its first step."""
    config = RECIPES[recipe](Path("run"))
    method = unrestored_method(config).to(device)
    optimizer = build_optimizer(config.optimizer, method, 0.1)
    for weight in method.parameters():
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
    optimizer.step()
    return {
        "step": 1,
        "learner": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": random_state(device),
    }


def milliseconds(act: Callable[[], object], *, rounds: int, after: Callable[[], None]) -> float:
    """Median time of an act; what comes ``after`` each is not counted."""
    times = []
    for _ in range(rounds + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        times.append(1e3 * (time.perf_counter() - start))
        after()
    return statistics.median(times[1:])  # the first one gets its memory from the system


def compare(state: State, folder: Path, *, rounds: int) -> dict[str, float]:
    """All times of a checkpoint of this state, in milliseconds."""
    store = CheckpointStore(folder, keep=2, warn=print)
    writer, nothing = CheckpointWriter(store), lambda: None

    def begin() -> None:
        writer.save(1, state, milestone=False, before=nothing)

    def begin_and_wait() -> None:
        begin()
        writer.wait()

    plain = milliseconds(lambda: store.save(1, state), rounds=rounds, after=nothing)
    stopped = milliseconds(begin, rounds=rounds, after=writer.wait)
    whole = milliseconds(begin_and_wait, rounds=rounds, after=nothing)
    return {
        "plain_stopped_ms": plain,
        "thread_stopped_ms": stopped,
        "ratio": plain / stopped,
        "thread_until_on_disk_ms": whole,
    }


def parts(state: State, folder: Path, *, rounds: int) -> dict[str, float]:
    """What a plain write consists of, in milliseconds; size in MB."""
    file = io.BytesIO()
    torch.save(state, file)
    content = file.getvalue()

    def write() -> None:
        with (folder / "content").open("wb") as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())

    acts: dict[str, Callable[[], object]] = {
        "serialise_ms": lambda: torch.save(state, io.BytesIO(content)),
        "checksum_ms": lambda: hashlib.sha256(content),
        "disk_ms": write,
    }
    times = {n: milliseconds(a, rounds=rounds, after=lambda: None) for n, a in acts.items()}
    return {"size_mb": len(content) / 1e6, **times}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="clove-r18-small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk that is meant; a temporary one")
    options = parser.parse_args()
    made = state_of(options.recipe, choose_device("auto"))
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        times = compare(made, Path(place), rounds=options.rounds)
        times |= parts(made, Path(place), rounds=options.rounds)
    figures = {name: round(value, 1) for name, value in times.items()}
    print(json.dumps({"recipe": options.recipe, **figures}))
