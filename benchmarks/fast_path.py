"""Do the fast paths learn like the slow one? Three runs of the same config, step by step.

Run:  python -m benchmarks.fast_path --data PHOTOS [--steps 200 --seed 0]   (needs a GPU)

The reference renders views in CPU workers and computes in fp32, kernel by kernel. The fast
runs render on the GPU and compute in bf16; one is captured with kernels of our own, the
other compiled. Seed, images and augmentation are equal, so the losses may differ only by
rounding and by what training makes of it. One JSON line per logged step of each fast run
and one with its largest differences.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.pretraining import LoggingConfig, PretrainConfig
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.run import pretrain
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics

FIGURES = ("loss", "cos_positive", "cos_negative", "effective_rank", "gradient_norm")


Curves = list[dict[str, float]]


def config_for(path: str, out: Path, *, data: str, steps: int, seed: int) -> PretrainConfig:
    """The small recipe, on one of the paths."""
    config = recipe("clove-r18-small", out)
    is_fast = path != "reference"
    return replace(
        config,
        data=replace(config.data, source=data, render="gpu" if is_fast else "cpu"),
        precision="bf16" if is_fast else "fp32",
        compile="always" if path == "compiled" else "never",
        capture="always" if path == "captured" else "never",
        logging=LoggingConfig(every=5),
        steps=steps,
        seed=seed,
    )


def compare(reference: Curves, fast: Curves, path: str) -> None:
    """Print both, step by step, and how far they are apart at most."""
    largest = dict.fromkeys(FIGURES, 0.0)
    for slow, quick in zip(reference, fast, strict=True):
        line = {name: (round(slow[name], 4), round(quick[name], 4)) for name in FIGURES}
        print(json.dumps({"path": path, "step": slow["step"], **line}))
        for name in FIGURES:
            largest[name] = max(largest[name], abs(slow[name] - quick[name]))
    print(json.dumps({"path": path, "largest difference": largest, "steps": reference[-1]["step"]}))


def main() -> None:
    """Run all and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = vars(parser.parse_args())
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in ("reference", "captured", "compiled"):
            out = Path(folder) / path
            pretrain(config_for(path, out, **asked))
            # What a run learned is measured at its end, in lines without a loss.
            lines = read_metrics(RunDirectory(out))
            curves[path] = [line for line in lines if "loss" in line]
            if path != "reference":
                compare(curves["reference"], curves[path], path)


if __name__ == "__main__":
    main()
