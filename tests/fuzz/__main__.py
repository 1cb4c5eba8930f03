"""The long attack: ``make fuzz MINUTES=30``.

Prints a table, and one paragraph about each new kind of fault; the case that showed it is kept in
the corpus, which every run of the tests reads. Ends with 1 if there was a fault.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from fuzz.campaign import CORPUS, Campaign, Tally, kept_cases
from fuzz.targets.all import TARGETS

COLUMNS = (
    *("target", "tried", "refused", "accepted", "tracebacks", "hangs", "deaths", "code run"),
    *("over limit", "peak MB", "slowest s"),
)


def table(tallies: Mapping[str, Tally]) -> str:
    """One line a target, and their sum."""
    rows = [COLUMNS, *(_row(name, tally) for name, tally in tallies.items())]
    rows.append(_row("all", _sum(list(tallies.values()))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = []
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *rest]))
    return "\n".join(lines)


def _row(name: str, t: Tally) -> tuple[str, ...]:
    counts = (t.tried, t.refused, t.accepted, t.tracebacks, t.hangs, t.deaths, t.escapes)
    return (name, *(f"{n:,}" for n in (*counts, t.over_limit)), f"{t.peak:.0f}", f"{t.slowest:.2f}")


def _sum(tallies: list[Tally]) -> Tally:
    counted = ("tried", "refused", "accepted", "tracebacks", "hangs", "deaths", "escapes")
    sums = {name: sum(getattr(t, name) for t in tallies) for name in (*counted, "over_limit")}
    peaks = {name: max(getattr(t, name) for t in tallies) for name in ("peak", "slowest")}
    return Tally(**sums, **peaks)


def main() -> int:
    """Attack, print, and say by the exit code whether all held."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--slice", type=float, default=5.0, help="seconds of a process")
    parser.add_argument("--only", nargs="*", default=[], help="names of targets")
    parser.add_argument("--keep", type=Path, default=CORPUS, help="where found cases are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only or list(TARGETS)
    campaign = Campaign(
        {name: TARGETS[name] for name in names}, seed=options.seed, keep=options.keep
    )
    print(f"seed {options.seed}, {options.jobs} processes, {options.minutes:g} minutes", flush=True)
    campaign.warm_up()
    for name in names:
        campaign.replay(name, kept_cases(name, campaign.seeds[name]))
    start = time.monotonic()
    campaign.run(minutes=options.minutes, jobs=options.jobs, slice_seconds=options.slice)
    print(table(campaign.tallies))
    tried = sum(tally.tried for tally in campaign.tallies.values())
    print(f"{tried / (time.monotonic() - start):.0f} inputs a second")
    for name, tally in campaign.tallies.items():
        for fault, where in tally.found.items():
            lines = where.splitlines()
            shown = [line[:200] for line in (lines[:1] + lines[1:][-7:])]
            print(f"\n{name}: {fault}", *shown, sep="\n")
    return int(any(tally.faults for tally in campaign.tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
