"""What importing costs a run before it does anything, and what ``clove`` saves of it.

Run:  python -m benchmarks.bench_start [--rounds 5] [--kernels clove-r18-small]
Prints one JSON line: seconds of processor time (medians, of new processes in turn) to import all
that a pre-training run needs, plainly and as ``clove`` does, their ratio, the pause of one later
look for garbage either way, and which packages take the time, by Python's own account.
With ``--kernels`` also how many kernels the recipe has on an H200, and how long helpers take to see
and compile them by one core and by all, with an empty cache; this needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import Counter

from clove_ssl.cores import available_cores

IMPORTS = "from clove_ssl.pretraining import run"
PLAIN = f"""
import gc, json, time
from clove_ssl import cli
start = time.process_time()
{IMPORTS}
imported = time.process_time()
gc.collect()
print(json.dumps([imported - start, time.process_time() - imported]))
"""
AS_CLOVE = PLAIN.replace(
    IMPORTS,
    f"from clove_ssl.command_line.importing import starting\nwith starting():\n    {IMPORTS}",
)
KERNELS = """
import json, os, tempfile, time
from pathlib import Path
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.compile import kernels
from clove_ssl.training.numerics import Precision
kernels.LONGEST_WAIT = 600
kernels.available_cores = lambda: {cores}
config = recipe({recipe!r}, Path("out"))
with tempfile.TemporaryDirectory() as folder:
    os.environ["TRITON_CACHE_DIR"] = folder
    start = time.perf_counter()
    helper = kernels.Helper()
    helper._order(kernels.Wanted(config, 256, Precision("bf16", "", "cuda"), (9, 0)))
    helper.wait()
    print(json.dumps([len(list(Path(folder).glob("*/*.cubin"))), time.perf_counter() - start]))
"""
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\w+)(?:\.(\w+))?")


def measured(program: str) -> tuple[float, float]:
    """Seconds of imports, and of one look for garbage, in a process of their own."""
    imports, look = printed(program)
    return imports, look


def printed(program: str) -> list[float]:
    """The numbers that a program prints, in a process of its own."""
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers: list[float] = json.loads(said)
    return numbers


def compiled(recipe: str) -> dict[str, float]:
    """How many kernels a recipe has, and how long it takes to compile them."""
    count, alone = printed(KERNELS.format(recipe=recipe, cores=1))
    _, together = printed(KERNELS.format(recipe=recipe, cores=available_cores()))
    return {"kernels": count, "kernels_one_core_s": alone, "kernels_all_cores_s": together}


def by_package() -> dict[str, float]:
    """Seconds of the packages that take most; torch's compiler is counted apart."""
    command = [sys.executable, "-X", "importtime", "-c", IMPORTS]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spent: Counter[str] = Counter()
    for microseconds, package, part in LINE.findall(said):
        apart = package == "torch" and part in {"_dynamo", "_inductor", "distributed"}
        spent[f"{package}.{part}" if apart else package] += int(microseconds)
    return {name: round(each / 1e6, 2) for name, each in spent.most_common(10)}


def compare(rounds: int) -> dict[str, float]:
    """Medians of both ways."""
    measured(PLAIN)  # so that all files have been read once
    pairs = [(measured(PLAIN), measured(AS_CLOVE)) for _ in range(rounds)]
    plain, clove = (statistics.median(pair[way][0] for pair in pairs) for way in (0, 1))
    looks = [statistics.median(pair[way][1] for pair in pairs) for way in (0, 1)]
    return {
        "plain_s": plain,
        "clove_s": clove,
        "ratio": plain / clove,
        "plain_look_s": looks[0],
        "clove_look_s": looks[1],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", metavar="RECIPE")
    asked = parser.parse_args()
    measured_figures = compare(asked.rounds) | (compiled(asked.kernels) if asked.kernels else {})
    figures = {name: round(value, 3) for name, value in measured_figures.items()}
    print(json.dumps({**figures, "by_package_s": by_package()}))
