"""Many tiny steps, while everything a process could leak is recorded: ``make soak STEPS=20000``.

A run is started as a user starts it, with a worker, checkpoints and a probe of its files. Every
second its memory, open files, threads, shared memory, temporary files and, on a GPU, GPU memory
are recorded. After the first fifth, in which caches fill, none of them may go on growing: the
straight line through the rest must be flat within its own error, or its rise be negligible.

With ``--recipe`` and ``--data`` the steps are those of a real run at full speed.

Run:  python -m benchmarks.soak [--steps 20000] [--minutes 20] [--device cpu] [--out soak.jsonl]
      [--recipe clove-plus-r18-small --data "photos/{000000..000005}.tar"]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from builders.runs.tiny_runs import tiny_config  # noqa: E402

from clove_ssl.config import files  # noqa: E402
from clove_ssl.config.pretraining import (  # noqa: E402
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    PretrainConfig,
)
from clove_ssl.config.views import ViewsConfig  # noqa: E402
from clove_ssl.methods import recipes  # noqa: E402
from clove_ssl.methods.clove.config import CLoVEConfig  # noqa: E402

Sample = dict[str, float]
WARM_UP = 0.2
NEGLIGIBLE = {
    "memory MB": 8.0,
    "mapped memory MB": 8.0,
    "GPU memory MB": 2.0,
    "GPU tensors MB": 2.0,
    "open files": 0.9,
    "threads": 0.9,
    "shared memory MB": 1.0,
    "temporary files": 0.9,
    "files of the run": 0.9,
}
"""What may be gained over the whole run; less is no leak that anybody meets."""


def soak_config(out: Path, *, steps: int, device: str) -> PretrainConfig:
    """Steps of some milliseconds that still load, render, train, log and save."""
    config = tiny_config(out, steps=steps, batch_size=2, device=device)
    assert isinstance(config.method, CLoVEConfig)
    views = ViewsConfig(global_size=32, local_count=0)
    loss = replace(config.method.loss, top_k=2)
    return replace(
        config,
        method=replace(config.method, views=views, loss=loss),
        data=DataConfig(scenes_count=20, scenes_size=32, workers=1),
        checkpoints=CheckpointConfig(every_epochs=steps * 2 / 20 / 40, min_steps=1),  # forty
        logging=LoggingConfig(every=50),
    )


def full_speed_config(
    recipe: str, data: str, out: Path, *, steps: int, steps_per_checkpoint: int
) -> PretrainConfig:
    """A run as its users start it, with more checkpoints."""
    config = recipes.recipe(recipe, out)
    return replace(
        config,
        data=replace(config.data, source=data),
        steps=steps,
        checkpoints=CheckpointConfig(every_epochs=1e-3, min_steps=steps_per_checkpoint),
    )


def record(config: PretrainConfig, folder: Path, *, every: float, seconds: float) -> list[Sample]:
    """Run the config in processes of its own and look at them now and then."""
    path, temporary = folder / "config.yaml", folder / "temporary"
    temporary.mkdir()
    files.save(config, path)
    command = [sys.executable, "-m", "clove_ssl", "pretrain", "--config", str(path)]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    samples: list[Sample] = []
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [*command, "--out", str(config.out)],
            stdout=said,
            stderr=said,
            env=environment,
            start_new_session=True,
        )
        end = time.monotonic() + seconds
        with suppress(KeyboardInterrupt):
            while process.poll() is None and time.monotonic() < end:
                time.sleep(every)
                samples += _look(process.pid, config.out, temporary)
        if process.poll() is None:  # what is there is judged
            process.terminate()
            process.wait()
            return samples
    assert process.returncode == 0, (folder / "said.txt").read_text()[-2000:]
    return samples


def _look(pid: int, run: Path, temporary: Path) -> Iterator[Sample]:
    """One sample, if the run has begun and is still there."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    members = _session(pid)
    if not lines or not members:
        return
    last = json.loads(lines[-1])
    sample = {
        "step": float(last["step"]),
        "memory MB": sum(_memory(member, "Pss_Anon", "Pss_Shmem") for member in members),
        # A page that main process and worker share counts twice here, so nothing is gained when one
        # of them writes to it and gets a copy, as a look for garbage does; a leak is.
        "mapped memory MB": sum(_memory(member, "Anonymous") for member in members),
        "open files": float(sum(_count(Path(f"/proc/{member}/fd")) for member in members)),
        "threads": float(sum(_count(Path(f"/proc/{member}/task")) for member in members)),
        "shared memory MB": sum(_memory(member, "Pss_Shmem") for member in members),
        "temporary files": float(sum(1 for _ in temporary.rglob("*"))),
        "files of the run": float(sum(1 for _ in run.rglob("*") if _.suffix not in _PASSING)),
    }
    if taken := _gpu_memory(members):
        sample["GPU memory MB"] = taken
    if "memory_gib" in last:
        sample["GPU tensors MB"] = 1024 * last["memory_gib"]
    yield sample


_PASSING = {".writing", ".pt", ".sha256"}
"""Ends of files that come and go while a run saves."""


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def _memory(pid: int, *kinds: str) -> float:
    """Megabytes of a process: those it shares with nobody, and its part of what it shares.

    Those of files are never asked for: a library counts more when others stop using it.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    sizes = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return sum(int(sizes[kind].split()[0]) for kind in kinds) / 1024


def _count(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0


def _gpu_memory(members: list[int]) -> float:
    """What the driver lends them, or 0 where it does not tell, as in some containers."""
    if not shutil.which("nvidia-smi"):
        return 0.0
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    output = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    rows = [line.replace(" ", "").split(",") for line in output.splitlines()]
    names = {str(member) for member in members}
    return float(sum(int(used) for pid, used in rows if pid in names and used.isdigit()))


def slopes(samples: list[Sample]) -> dict[str, dict[str, float | bool]]:
    """The rise of every quantity over the run, its error, and whether it is flat."""
    last = samples[-1]["step"]
    # What comes behind the last step, such as the report, is no step.
    kept = [sample for sample in samples if WARM_UP * last <= sample["step"] < last]
    steps = np.array([sample["step"] for sample in kept])
    found = {}
    for name in NEGLIGIBLE.keys() & set.intersection(*map(set, kept)):
        values = np.array([sample[name] for sample in kept])
        rise, error = _line(steps / max(last, 1.0), values)
        flat = rise <= max(3 * error, NEGLIGIBLE[name])
        found[name] = {
            "median": float(np.median(values)),
            "most": float(values.max()),
            "rise": round(rise, 3),
            "error": round(error, 3),
            "flat": flat,
        }
    return found


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of the straight line through points, and its standard error.

    The slope is the median over all pairs of points: what grows once, such as a cache or an arena
    of the allocator, is no leak, and turns the line of least squares.
    """
    if len(x) < 3 or np.ptp(x) == 0:
        return math.nan, math.nan
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] != x[first]
    first, second = first[apart], second[apart]
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
    centred = x - x.mean()
    rest = y - slope * x
    rest = rest - rest.mean()
    return slope, float(np.sqrt(rest @ rest / (len(x) - 2) / (centred @ centred)))


def _config(options: argparse.Namespace, run: Path) -> PretrainConfig:
    if options.recipe:
        return full_speed_config(
            options.recipe,
            options.data,
            run,
            steps=options.steps,
            steps_per_checkpoint=max(1, options.steps // 40),
        )
    return soak_config(run, steps=options.steps, device=options.device)


def main() -> int:
    """Run, print, and say by the exit code whether everything stayed flat."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--recipe", default="", help="steps of this recipe instead of tiny ones")
    parser.add_argument("--data", default="scenes", help="what the recipe learns from")
    parser.add_argument("--run", type=Path, default=None, help="folder of the run, which is kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="and not longer")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=None, help="file to which a line is added")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clove-soak-") as name:
        folder = Path(name)
        config = _config(options, options.run or folder / "run")
        seconds = 60 * options.minutes
        samples = record(config, folder, every=options.every, seconds=seconds)
    result = slopes(samples)
    for quantity, figures in sorted(result.items()):
        print(f"{quantity:<18}", *(f"{key} {value}" for key, value in figures.items()), sep="  ")
    seconds = time.monotonic() - start
    line = {
        "recipe": options.recipe or "tiny",
        "steps": samples[-1]["step"],
        "device": options.device,
        "seconds": round(seconds),
        **result,
    }
    print(f"{samples[-1]['step']:.0f} steps in {seconds:.0f} s, {len(samples)} samples")
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return int(not all(figures["flat"] for figures in result.values()))


if __name__ == "__main__":
    sys.exit(main())
