"""Do the fast paths learn like the slow one? Runs of the same config, step by step.

Run:  python -m benchmarks.fast_path --data PHOTOS [--steps 200 --seed 0 --nudges 0]
      [--paths captured compiled]   (needs a GPU)

The reference renders views in CPU workers and computes in fp32, kernel by kernel. The fast
runs render on the GPU and compute in bf16: ``plain`` kernel by kernel, ``captured`` the same
recorded, ``compiled`` by torch.compile. Seed, images and augmentation are equal, so the losses
may differ only by rounding and by what training makes of it. One JSON line per logged step of
each fast run and one with its largest and mean differences.

What does training make of a rounding? With ``--nudges 5`` each path is run five times more,
with learning rates that are 1 to 5 millionths larger: the differences of these runs are the band
in which a path lies by chance.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from clove_ssl.config.pretraining import LoggingConfig, PretrainConfig
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.run import pretrain
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics

PATHS = ("plain", "captured", "compiled")
FIGURES = ("loss", "cos_positive", "cos_negative", "effective_rank", "gradient_norm")


Curves = list[dict[str, float]]


def config_for(
    path: str, out: Path, *, data: str, steps: int, seed: int, nudge: int
) -> PretrainConfig:
    """The small recipe on one of the paths, its learning rate some millionths larger."""
    config = recipe("clove-r18-small", out)
    is_fast = path != "reference"
    return replace(
        config,
        data=replace(config.data, source=data, render="gpu" if is_fast else "cpu"),
        optimizer=replace(config.optimizer, lr=config.optimizer.lr * (1 + 1e-6 * nudge)),
        precision="bf16" if is_fast else "fp32",
        compile="always" if path == "compiled" else "never",
        capture="always" if path == "captured" else "never",
        logging=LoggingConfig(every=5),
        steps=steps,
        seed=seed,
    )


def curves_of(path: str, nudge: int = 0, **asked: Any) -> Curves:
    """The logged figures of a run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        pretrain(config_for(path, out, nudge=nudge, **asked))
        # What a run learned is measured at its end, in lines without a loss.
        return [line for line in read_metrics(RunDirectory(out)) if "loss" in line]


def compare(reference: Curves, fast: Curves, which: dict[str, Any]) -> None:
    """Print both, step by step, and how far they are apart at most and on average."""
    apart: dict[str, list[float]] = {name: [] for name in FIGURES}
    for slow, quick in zip(reference, fast, strict=True):
        line = {name: (round(slow[name], 4), round(quick[name], 4)) for name in FIGURES}
        print(json.dumps({**which, "step": slow["step"], **line}))
        for name in FIGURES:
            apart[name].append(abs(slow[name] - quick[name]))
    summary = {
        "largest difference": {name: max(values) for name, values in apart.items()},
        "mean difference": {name: fmean(values) for name, values in apart.items()},
    }
    print(json.dumps({**which, **summary, "steps": reference[-1]["step"]}), flush=True)


def main() -> None:
    """Run all and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nudges", type=int, default=0)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=["captured", "compiled"])
    asked = vars(parser.parse_args())
    paths, nudges = asked.pop("paths"), asked.pop("nudges")
    reference = curves_of("reference", **asked)
    for path, nudge in product(paths, range(nudges + 1)):
        which = {"path": path, "seed": asked["seed"], "nudge": nudge}
        compare(reference, curves_of(path, nudge, **asked), which)


if __name__ == "__main__":
    main()
