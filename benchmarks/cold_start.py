"""How long until the first step of a compiled run, with an empty folder of compiled code and again?

Run:  python -m benchmarks.cold_start [--batch 256]
Each start is a process of its own. Prints one JSON line per start: seconds to import and
build everything, to compile ahead in helper processes, of the first step and of one after it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any


def start_here(batch_size: int) -> dict[str, Any]:
    """One start in this process."""
    start = time.perf_counter()
    from clove_ssl.config.benching import BenchConfig
    from clove_ssl.config.pretraining import OptimizerConfig
    from clove_ssl.engine.benchmark import Bench
    from clove_ssl.engine.benchmark_step import PROGRESS
    from clove_ssl.engine.repeatability import start_repeatably
    from clove_ssl.optimizers import build_optimizer

    config = BenchConfig(batch=batch_size, compile="always")
    bench = Bench(config)
    start_repeatably(0, bench.device, deterministic=False)
    model = bench.build(config.method)
    optimizer = build_optimizer(OptimizerConfig(), model, peak_lr=1e-3)
    batch = bench.batch(config.method, batch_size)

    def step() -> float:
        begin = time.perf_counter()
        with bench.precision.autocast():
            output = model(batch, PROGRESS)
        output.loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.after_step(PROGRESS)
        bench.synchronize()
        return time.perf_counter() - begin

    built = time.perf_counter() - start
    ahead = bench.compile_ahead(model, batch)
    first, second = step(), step()
    return {"built": built, "ahead": ahead, "first_step": first, "second_step": second}


def main() -> None:
    """Start twice with the same folder of compiled code, which is empty at first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--here", action="store_true", help="start once, in this process")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(start_here(options.batch)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.cold_start", "--here"]
        command += ["--batch", str(options.batch)]
        for start in ("cold", "warm"):
            ended = subprocess.run(
                command, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            print(json.dumps({"start": start, **json.loads(ended.stdout)}), flush=True)


if __name__ == "__main__":
    main()
