"""Do probes tell random weights, a short and a longer run apart, and what do they cost?

Run:  python -m benchmarks.probe_runs --photos "photos/*.tar" --out runs [--voc VOC2012]
          [--classes "test/*.tar"] [--short 4] [--long 40]
Pre-trains ``clove-r18-small`` twice with probes at their default interval, prints one
JSON line per run with the share of time its probes took, then one per figure with the
values and intervals of random weights, the short and the long run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config.probing import ProbeConfig
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining import run as pretraining
from clove_ssl.probes.command import probe_backbones
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import PROBE_SECONDS, read_metrics

BETTER_WHEN_LOWER = ("alignment", "uniformity")


def pretrain(photos: str, out: Path, *, epochs: int) -> dict[str, Any]:
    """One run; what its probes took of its time."""
    config = recipe("clove-r18-small", out)
    data = replace(config.data, source=photos)
    # Runs of minutes do not repay a compilation.
    config = replace(config, epochs=epochs, data=data, compile="never", deterministic=False)
    start = time.perf_counter()
    pretraining.pretrain(config)
    seconds = time.perf_counter() - start
    probes = [row[PROBE_SECONDS] for row in read_metrics(RunDirectory(out)) if PROBE_SECONDS in row]
    share = sum(probes) / seconds
    return {"run": str(out), "seconds": seconds, "probes": probes, "share": share}


def compare(backbones: tuple[str, ...], **options: Any) -> Iterator[dict[str, Any]]:
    """Each figure for all backbones, worst expected first."""
    results = probe_backbones(ProbeConfig(backbones=backbones, size=160, **options))
    for figure in results[backbones[0]]:
        scores = [results[name][figure] for name in backbones]
        values = [score.value for score in scores]
        line: dict[str, Any] = {"data": options["data"], "figure": figure, "values": values}
        line |= {"intervals": [score.interval for score in scores], "chance": scores[0].chance}
        if figure not in BETTER_WHEN_LOWER:
            line["ordered"] = values == sorted(values)
        first, last = scores[0].interval, scores[-1].interval
        if first and last:
            line["apart"] = first[1] < last[0] or last[1] < first[0]
        yield line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--voc")
    parser.add_argument("--coco")
    parser.add_argument("--classes")
    parser.add_argument("--short", type=int, default=4)
    parser.add_argument("--long", type=int, default=40)
    options = parser.parse_args()
    runs = {f"{epochs}-epochs": epochs for epochs in (options.short, options.long)}
    for name, epochs in runs.items():
        print(json.dumps(pretrain(options.photos, options.out / name, epochs=epochs)))
    backbones = ("random:resnet18", *(str(options.out / name) for name in runs))
    for data in filter(None, (options.voc, options.coco)):
        for line in compare(backbones, data=data):
            print(json.dumps(line))
    if options.classes:
        for line in compare(backbones, data=options.classes, train=options.photos):
            print(json.dumps(line))


if __name__ == "__main__":
    main()
