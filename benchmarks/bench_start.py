"""What importing costs a run before it does anything, and what ``clove`` saves of it.

Run:  python -m benchmarks.bench_start [--rounds 5]
Prints one JSON line: seconds of processor time (medians, of new processes in turn) to import all
that a pre-training run needs, plainly and as ``clove`` does, their ratio, the pause of one later
look for garbage either way, and which packages take the time, by Python's own account.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import Counter

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
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\w+)(?:\.(\w+))?")


def measured(program: str) -> tuple[float, float]:
    """Seconds of imports, and of one look for garbage, in a process of their own."""
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    imports, look = json.loads(said)
    return imports, look


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
    figures = {n: round(v, 3) for n, v in compare(parser.parse_args().rounds).items()}
    print(json.dumps({**figures, "by_package_s": by_package()}))
