"""Ten kills at random moments, ten resumes, and the same weights in the end.

Run:  python -m benchmarks.kill_and_resume [--kills 10] [--seed 0]
Prints one JSON line with the steps at which the run was hit and both hashes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from builders.runs.killing import run_with_kills, weights_hash  # noqa: E402
from builders.runs.tiny_runs import tiny_config  # noqa: E402

from clove_ssl.pretraining import run as pretraining  # noqa: E402


def compare(folder: Path, *, kills: int, seed: int) -> dict[str, object]:
    """Train the same config with and without kills."""
    steps = 4 * kills
    torch.set_num_threads(1)  # as in the processes that are killed
    pretraining.pretrain(tiny_config(folder / "whole", steps=steps))
    hits = run_with_kills(tiny_config(folder / "killed", steps=steps), kills=kills, seed=seed)
    hashes = [weights_hash(folder / name) for name in ("whole", "killed")]
    return {"kills": kills, "logged_steps_at_kill": hits, "hashes": hashes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(compare(Path(folder), kills=options.kills, seed=options.seed)))
