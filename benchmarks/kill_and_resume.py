"""Ten kills at random moments, ten resumes, and the same weights in the end.

With ``--recipe`` and ``--data`` it is a real run that is killed, on a GPU where there is one.

Run:  python -m benchmarks.kill_and_resume [--kills 10] [--seed 0]
      [--recipe clove-plus-r18-small --data "photos/{000000..000005}.tar" --steps 600]
Prints one JSON line with the steps at which the run was hit and both hashes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from builders.runs.killing import run_with_kills, weights_hash  # noqa: E402
from builders.runs.tiny_runs import tiny_config  # noqa: E402

from benchmarks.soak import full_speed_config  # noqa: E402
from clove_ssl.config.pretraining import LoggingConfig, PretrainConfig  # noqa: E402

STEPS_BETWEEN_CHECKPOINTS = 20


def compare(config: PretrainConfig, *, kills: int, seed: int) -> dict[str, object]:
    """Train the same config with and without kills, in forks: no CUDA in this process."""
    torch.set_num_threads(1)
    runs = [replace(config, out=config.out / name) for name in ("whole", "killed")]
    run_with_kills(runs[0], kills=0, seed=seed)
    hits = run_with_kills(runs[1], kills=kills, seed=seed)
    hashes = [weights_hash(run.out) for run in runs]
    return {"kills": kills, "logged_lines_at_kill": hits, "hashes": hashes}


def real_config(recipe: str, data: str, out: Path, *, steps: int) -> PretrainConfig:
    """A recipe that saves and logs often enough to be killed."""
    between = STEPS_BETWEEN_CHECKPOINTS
    config = full_speed_config(recipe, data, out, steps=steps, steps_per_checkpoint=between)
    return replace(config, logging=LoggingConfig(every=between // 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", default="", help="kill a run of this recipe, not a tiny one")
    parser.add_argument("--data", default="scenes", help="what the recipe learns from")
    parser.add_argument("--steps", type=int, default=600, help="of a run of the recipe")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.recipe:
            run = real_config(given.recipe, given.data, Path(folder), steps=given.steps)
        else:
            run = tiny_config(Path(folder), steps=4 * given.kills)
        print(json.dumps(compare(run, kills=given.kills, seed=given.seed)))
