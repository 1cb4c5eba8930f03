"""Does the fast path learn like the slow one? Two runs of the same config, step by step.

Run:  python -m benchmarks.fast_path --data PHOTOS [--steps 200]   (needs a GPU)

The reference renders views in CPU workers and computes in fp32 without compilation; the
fast run renders on the GPU, computes in bf16 and is compiled. Seed, images and
augmentation are equal, so the losses may differ only by rounding and by what training
makes of it. One JSON line per logged step and one with the largest differences.
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


def config_for(path: str, data: str, steps: int, out: Path) -> PretrainConfig:
    """The small recipe, on one of the two paths."""
    config = recipe("clove-r18-small", out)
    fast = path == "fast"
    return replace(
        config,
        data=replace(config.data, source=data, render="gpu" if fast else "cpu"),
        precision="bf16" if fast else "fp32",
        compile="always" if fast else "never",
        logging=LoggingConfig(every=5),
        steps=steps,
    )


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in ("reference", "fast"):
            out = Path(folder) / path
            pretrain(config_for(path, arguments.data, arguments.steps, out))
            curves[path] = read_metrics(RunDirectory(out))
    largest = dict.fromkeys(FIGURES, 0.0)
    for slow, fast in zip(curves["reference"], curves["fast"], strict=True):
        line = {name: (round(slow[name], 4), round(fast[name], 4)) for name in FIGURES}
        print(json.dumps({"step": slow["step"], **line}))
        for name in FIGURES:
            largest[name] = max(largest[name], abs(slow[name] - fast[name]))
    print(json.dumps({"largest difference": largest, "steps": arguments.steps}))


if __name__ == "__main__":
    main()
