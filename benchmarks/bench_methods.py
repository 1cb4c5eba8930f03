"""Does every method run at the speed of its two backbones?

Run:  python -m benchmarks.bench_methods [--backbone resnet50] [--batch 256] [--compile always]
          [--floor whole] [--methods byol pixpro ...] [--out results.jsonl]
Measures the step of every method's published recipe beside the floor of its own views,
one after the other in one process: student forward and backward on all views,
teacher forward on the large ones. A method that sends each view through its networks on its
own has a second floor that does so too. Prints one line per method.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace
from pathlib import Path

import torch

from clove_ssl.bench.clock import Measurement
from clove_ssl.bench.command import Bench
from clove_ssl.bench.config import BenchConfig
from clove_ssl.bench.step import measure_floor, measure_step
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.methods.recipes import all_recipes, recipe
from clove_ssl.methods.teacher_student import TeacherStudentMethod
from clove_ssl.registry import METHODS

CLASSES = 1000  # of labelled images, which there are none of here


def published(method: str) -> PretrainConfig:
    """The first recipe of a method that is not a small one."""
    name = next(name for name in all_recipes() if name.startswith(f"{method}-r50"))
    return recipe(name, Path("unused"))


def measure(method: str, options: argparse.Namespace) -> str:
    """Floor and step of one method, as a line."""
    config = published(method)
    chosen = config.method.for_classes(CLASSES) if config.method.needs_labels else config.method
    bench = Bench(
        BenchConfig(
            method=chosen,
            backbone=replace(config.backbone, name=options.backbone),
            batch=options.batch,
            steps=options.steps,
            compile=options.compile,
            floor=options.floor,
            parts=("step",),
            out=options.out,
        )
    )
    batch = bench.batch(chosen, options.batch)
    floor = measure_floor(bench, batch, taught=chosen.has_teacher)
    model = bench.build(chosen)
    step = measure_step(bench, model, batch)
    line = (
        f"{method}: step {step.images_per_second:,.0f} images/s, {step.memory_gib:.1f} GiB, "
        + compared(step, floor)
    )
    if isinstance(model, TeacherStudentMethod) and not model.passes_together:
        del model  # the floor's memory is its own
        by_view = measure_floor(bench, batch, taught=True, joined=False, name="floor, view by view")
        line += ", " + compared(step, by_view)
    return line


def compared(step: Measurement, floor: Measurement) -> str:
    """A floor, and how much of it the step reaches."""
    ratio = step.images_per_second / floor.images_per_second
    return f"{floor.name} {floor.images_per_second:,.0f}, ratio {ratio:.2f}"


def main() -> None:
    """All methods that train."""
    trained = [name for name in METHODS.names() if METHODS.load(name).trains]
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", nargs="+", default=trained, choices=trained)
    parser.add_argument("--backbone", default=BackboneConfig().name)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", default="never", choices=("never", "always"))
    parser.add_argument("--floor", default="parts", choices=("parts", "whole"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for method in options.methods:
        print(measure(method, options), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
