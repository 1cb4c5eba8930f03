"""A short attack on every parser, and all cases that were ever found.

``make fuzz MINUTES=30`` is the long one; ``docs/reliability.md`` says what was measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from fuzz.campaign import Campaign, Silence, kept_cases
from fuzz.target import Case, Limit, Target
from fuzz.targets.all import TARGETS
from fuzz.worker import Workspace, case_of
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.errors import UserError

TRAINED = ("run-directories", "resumed-runs", "studies")
FEW = {"command-lines": 5, "yaml": 5, "models": 5, "hub-folders": 5, **dict.fromkeys(TRAINED, 0)}
FEW |= {name: 8 for name in TARGETS if name.startswith("own-")}
SHORT = {name: FEW.get(name, 20) for name in TARGETS}
"""Drawn cases of each target; some folders are made by training, which takes too long here."""


@pytest.mark.parametrize("name", [name for name in TARGETS if SHORT[name]])
def test_found_and_drawn_cases_are_read_or_refused_within_limits(name: str) -> None:
    campaign = Campaign({name: TARGETS[name]}, seed=0, keep=None)
    seeds = campaign.seeds[name]
    drawn = [case_of(TARGETS[name], seeds, 0, number) for number in range(SHORT[name])]
    campaign.warm_up()
    campaign.replay(name, kept_cases(name, seeds) + drawn)
    tally = campaign.tallies[name]
    assert tally.tried >= SHORT[name]
    assert tally.refused + tally.accepted == tally.tried
    assert not tally.faults, tally.found


def broken(read: object) -> Campaign:
    """A campaign against a parser of one file."""
    target = Target("broken", lambda: {"a": {"file": b"x"}}, read, Limit(0.2, 20))
    campaign = Campaign({"broken": target}, seed=0, keep=None)
    campaign.replay("broken", [Case("a", "file", b"bad")])
    return campaign


def refuse(folder: object) -> None:
    raise UserError("no")


def leave_a_file(folder: Path) -> None:
    outside = folder.parent.parent / f"{folder.parent.name}-escape"
    outside.touch()
    outside.unlink()


def burn_time(folder: object) -> None:
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass


def take_memory(folder: object) -> None:
    assert len(bytes(64 * 2**20).replace(b"\0", b"\1"))


def ask_for_terabytes(folder: object) -> None:
    try:
        bytearray(2**42)
    except MemoryError:
        raise UserError("too much") from None


def die(folder: object) -> None:
    os._exit(139)


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (refuse, "refused"),
        (lambda folder: 1 / 0, "tracebacks"),
        (leave_a_file, "escapes"),
        (burn_time, "over_limit"),
        (take_memory, "over_limit"),
        (ask_for_terabytes, "over_limit"),
        (die, "deaths"),
    ],
)
def test_the_attack_notices(read: object, count: str) -> None:
    tally = broken(read).tallies["broken"]
    assert tally.tried == 1
    assert getattr(tally, count) == 1
    assert tally.faults == (count != "refused")


@pytest.mark.parametrize(
    ("program", "least", "most"),
    [
        ("import time; time.sleep(60)", 0.8, 2.5),
        ("while True: pass", 0.05, 2.5),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", 0.8, 2.5),
    ],
)
def test_sleep_and_work_count_as_silence(program: str, least: float, most: float) -> None:
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        time.sleep(1.0)  # let it begin
        silence = Silence(process.pid)
        for _ in range(10):
            time.sleep(0.1)
            silence.look()
        assert least < silence.seconds < most
        silence.end()
        assert silence.look() < 0.5
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["tars", "weights", "coco"])
def test_cases_that_hypothesis_draws_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """The same cases by another generator, which makes those that fail as simple as it can."""
    target = TARGETS[name]
    seeds = target.seeds()

    @given(st.randoms(use_true_random=False))
    def check(chance: Random) -> None:
        case = target.case(seeds, chance)
        workspace = Workspace(tmp_path / case.seed, seeds[case.seed])
        workspace.change(case)
        with suppress(*target.refusals):
            target.read(workspace.folder)
        workspace.restore()

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_the_page_states_the_limits(name: str) -> None:
    limit = TARGETS[name].limit
    numbers = (limit.seconds, limit.seconds_per_megabyte)
    numbers += (limit.megabytes, limit.megabytes_per_megabyte)
    row = f"| {name} | " + " | ".join(f"{number:g}" for number in numbers) + " |"
    assert row in (Path(__file__).parents[2] / "docs/reliability.md").read_text()
