"""Commands that are disturbed at random moments: ``make chaos RUNS=5``, ``make chaos KILLS=200``.

Every run must end with the weights of an undisturbed one, or with a clear error after which it can
be resumed to them. Prints a table; ends with 1 if anything was lost. With ``--kills`` commands of
all kinds are killed, or one of their workers is, until so many kills have hit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from chaos.commands import Command, group_members, nothing
from chaos.disturbances import INSTALLED, KILLS, SIGNALS, small_disk, small_files, two_places
from chaos.jobs import JOBS, Job, leftovers
from chaos.moments import STEP, Moment

from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import unreadable_files

MOST_STARTS = 12
"""After so many starts a run has to be through."""
LATER = 0.02
"""Seconds up to which a hit comes behind its moment."""


@dataclass
class Row:
    """What one disturbance did to one job."""

    runs: int = 0
    hits: int = 0  # disturbances that met a running command
    errors: int = 0  # commands that ended with a sentence
    tracebacks: int = 0
    hangs: int = 0
    orphans: int = 0  # processes that outlived the main one by seconds
    same: int = 0
    told: int = 0  # other weights, because of images that could not be read and were named
    differ: int = 0
    leftovers: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (
            self.tracebacks + self.hangs + self.orphans + self.differ + self.leftovers
        ) and (self.same + self.told == self.runs)


@dataclass(frozen=True)
class Undisturbed:
    """A run as it should be: its folder, its result, and how much it does on the way."""

    out: Path
    result: object
    events: int


class Chaos:
    """Disturbs jobs, and compares them with undisturbed ones."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder = folder
        self.chance = Random(seed)
        self.rows: dict[tuple[str, str], Row] = {}
        self._whole: dict[str, Undisturbed] = {}
        self._pairs: dict[str, object] = {}

    def undisturbed(self, job: Job) -> Undisturbed:
        """What a run is that nobody disturbs."""
        if job.name not in self._whole:
            inputs, out = self._places(f"{job.name} undisturbed")
            arguments, moment = job.arguments(inputs, out), Moment()
            command = Command(arguments, inputs / "said.txt", moment=moment)
            assert command.wait(), f"{job.name} did not end"
            assert command.code == 0, (inputs / "said.txt").read_text()
            self._whole[job.name] = Undisturbed(out, job.result(out), moment.counted())
            moment.close()
        return self._whole[job.name]

    def _places(self, name: str) -> tuple[Path, Path]:
        inputs = self.folder / name
        inputs.mkdir(parents=True)
        return inputs, inputs / "out"

    def row(self, job: Job, name: str) -> Row:
        return self.rows.setdefault((job.name, name), Row())

    def under_signals(self, job: Job, name: str) -> None:
        """Hit a run again and again, until it gets through."""
        row = self.row(job, name)
        inputs, out = self._places(f"{job.name} {name} {row.runs}")
        hits = self.chance.choice((1, 2, 3))
        in_steps = name == "SIGKILL, worker"

        def disturb(command: Command, start: int) -> None:
            if start < hits and command.wait_for_moment():
                command.wait(self.chance.uniform(0, LATER))
                row.hits += SIGNALS[name](command, self.chance)

        self._get_through(job, row, inputs, out, disturb=disturb, in_steps=in_steps)

    def _moment(self, job: Job, start: int, *, in_steps: bool = False) -> Moment:
        """A random moment of a command; one that goes on with a run does less, so earlier ones."""
        events = self.undisturbed(job).events
        if in_steps:  # while there are workers
            return Moment(STEP * self.chance.randrange(1, job.steps), counts_files=False)
        return Moment(1 + self.chance.randrange(max(1, events >> min(start, 2))))

    def installed(self, job: Job, name: str) -> None:
        """Run in a world that is wrong from the beginning, and resume in a good one."""
        row = self.row(job, name)
        inputs, out = self._places(f"{job.name} {name} {row.runs}")
        row.hits += 1
        self._get_through(job, row, inputs, out, before=INSTALLED[name](self.chance))

    def on_a_full_disk(self, job: Job) -> None:
        """Begin on a disk that is too small, and go on when there is room."""
        whole = self.undisturbed(job).out
        row = self.row(job, "full disk")
        inputs, _ = self._places(f"{job.name} full disk {row.runs}")
        needed = sum(p.stat().st_size for p in whole.rglob("*") if p.is_file()) // 1024
        room = max(16, int(needed * self.chance.uniform(0.02, 0.9)))
        row.hits += 1
        with small_disk(inputs / "disk", room) as disk:
            out = inputs / "disk" / "out"
            out.parent.mkdir(exist_ok=True)
            before = small_files(self.chance) if disk is None else nothing

            def make_room(command: Command, start: int) -> None:
                if start == 1 and disk is not None:
                    disk.enlarge()

            self._get_through(job, row, inputs, out, before=before, disturb=make_room)

    def _get_through(
        self,
        job: Job,
        row: Row,
        inputs: Path,
        out: Path,
        *,
        before: Callable[[], None] = nothing,
        disturb: Callable[[Command, int], None] = lambda command, start: None,
        in_steps: bool = False,
    ) -> None:
        row.runs += 1
        for start in range(MOST_STARTS):
            resumes = (out / "config.yaml").is_file() or (out / "study.yaml").is_file()
            arguments = (job.resumed if resumes else job.arguments)(inputs, out)
            said = inputs / f"said-{start}.txt"
            moment = self._moment(job, start, in_steps=in_steps)
            command = Command(arguments, said, before=nothing if start else before, moment=moment)
            disturb(command, start)
            moment.close()
            if not self._note_end(command, row, said):
                return
            if command.code == 0 and self._is_done(job, out):
                break
        self._compare(job, row, out)
        shutil.rmtree(inputs, ignore_errors=True)

    def _note_end(self, command: Command, row: Row, said: Path) -> bool:
        """Wait for a command; whether it ended by itself."""
        if not command.wait():
            row.hangs += 1
            row.notes.append(f"hang: {said}")
            command.end_all()
            return False
        text = said.read_text(errors="replace")
        row.errors += command.code == 2
        if "Traceback (most recent call last)" in text:
            row.tracebacks += 1
            row.notes.append(f"traceback: {last_of_traceback(text)}")
        until = time.monotonic() + 10
        while group_members(command.pid) and time.monotonic() < until:
            time.sleep(0.05)
        if left := group_members(command.pid):
            row.orphans += len(left)
            row.notes.append(f"{len(left)} processes outlived the main one by ten seconds")
            command.end_all()
        return True

    def _is_done(self, job: Job, out: Path) -> bool:
        try:
            job.result(out)
        except Exception:  # whatever is missing
            return False
        return True

    def _compare(self, job: Job, row: Row, out: Path) -> None:
        whole = self.undisturbed(job)
        try:
            result = job.result(out)
            same = result == whole.result
            if not same:
                row.notes.append(f"other result: {first_difference(result, whole.result)}")
        except Exception as error:
            same = False
            row.notes.append(f"no result: {type(error).__name__} {str(error)[:120]}")
        # An image that cannot be read is replaced by another one, and the run says so.
        told = not same and job.name == "pre-training" and unreadable_files(RunDirectory(out))
        row.same += same
        row.told += bool(told)
        row.differ += not (same or told)
        if left := leftovers(out, whole.out):
            row.leftovers += len(left)
            row.notes.append(f"left over: {', '.join(left[:4])}")

    def one_of_two_dies(self, job: Job) -> None:
        """Two processes train together; one is killed, and the other must not wait for ever."""
        row = self.row(job, "one of two dies")
        expected = self._result_of_two(job)
        row.runs += 1
        inputs, out = self._places(f"{job.name} two {row.runs}")
        moments = self._moment(job, 0, in_steps=True), self._moment(job, 0, in_steps=True)
        pair = self._start_two(job.arguments(inputs, out), inputs / "first", moments)
        victim, other = self.chance.sample(pair, 2)
        if victim.wait_for_moment():
            row.hits += victim.hit()
        victim.wait()
        if not self._note_end(other, row, other.said):
            return
        resumes = (out / "config.yaml").is_file()
        arguments = (job.resumed if resumes else job.arguments)(inputs, out)
        for command in self._start_two(arguments, inputs / "second", (None, None)):
            self._note_end(command, row, command.said)
            if command.code != 0:
                row.notes.append(f"not resumed: {command.said.read_text().strip()[-300:]}")
        same = self._is_done(job, out) and job.result(out) == expected
        row.same += same
        row.differ += not same
        shutil.rmtree(inputs, ignore_errors=True)

    def _result_of_two(self, job: Job) -> object:
        """The result of two processes that nobody disturbs; sums have another order in it."""
        if job.name not in self._pairs:
            inputs, out = self._places(f"{job.name} two undisturbed")
            pair = self._start_two(job.arguments(inputs, out), inputs / "only", (None, None))
            for command in pair:
                assert command.wait(), f"{job.name} did not end"
                assert command.code == 0, command.said.read_text()
            self._pairs[job.name] = job.result(out)
        return self._pairs[job.name]

    def _start_two(
        self, arguments: list[str], said: Path, moments: tuple[Moment | None, Moment | None]
    ) -> list[Command]:
        return [
            Command(
                arguments, said.with_name(f"{said.name}-{n}.txt"), environment=place, moment=moment
            )
            for n, (place, moment) in enumerate(zip(two_places(), moments, strict=True))
        ]


def first_difference(found: Any, expected: Any, place: str = "result") -> str:
    """Where two nested results first differ, and how."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        pairs = [(f"{place}[{key!r}]", found[key], expected[key]) for key in found]
    elif isinstance(found, list | tuple) and len(found) == len(expected):
        pairs = [(f"{place}[{n}]", one, expected[n]) for n, one in enumerate(found)]
    else:
        return f"{place} is {str(found)[:300]}, expected {str(expected)[:300]}"
    return next(first_difference(a, b, name) for name, a, b in pairs if a != b)


def last_of_traceback(text: str) -> str:
    """The end of the last traceback in a text, with the place that it names last."""
    lines = text.rpartition("Traceback (most recent call last)")[2].splitlines()[1:]
    ends = [at for at, line in enumerate(lines) if line and not line.startswith(" ")]
    end = ends[0] if ends else len(lines) - 1
    places = [line.strip() for line in lines[:end] if line.startswith("  File")]
    return f"{lines[end][:160]} ({places[-1] if places else 'nowhere'})"


COLUMNS = ("job", "disturbance", "runs", "hits", "errors", "tracebacks", "hangs", "orphans")
COLUMNS += ("same result", "files named", "other result", "leftovers")


def table(rows: dict[tuple[str, str], Row]) -> str:
    """One line for each job and disturbance."""
    cells = [COLUMNS]
    for (job, name), r in rows.items():
        counts = (r.runs, r.hits, r.errors, r.tracebacks, r.hangs, r.orphans)
        cells.append((job, name, *map(str, (*counts, r.same, r.told, r.differ, r.leftovers))))
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )


def main() -> int:
    """Disturb, print, and say by the exit code whether all held."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each job under each disturbance")
    parser.add_argument("--kills", type=int, default=0, help="kill until so many have hit, instead")
    parser.add_argument("--minutes", type=float, default=40.0, help="after which no kill begins")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--only", nargs="*", default=[], help="names of disturbances")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clove-chaos-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        chaos = Chaos(Path(folder), seed=options.seed)
        jobs = [JOBS[name] for name in options.jobs]
        if options.kills:
            enough = _kill_until(chaos, jobs, options.kills, minutes=options.minutes)
        else:
            enough = _disturb_all(chaos, jobs, options.only, runs=options.runs)
    print(f"\n{table(chaos.rows)}")
    kills = sum(row.hits for (_, name), row in chaos.rows.items() if name in KILLS)
    print(f"{kills} kills in {(time.monotonic() - start) / 60:.1f} minutes")
    for (job_name, name), row in chaos.rows.items():
        for note in dict.fromkeys(row.notes):
            print(f"{job_name}, {name}: {note}")
    return int(not enough or not all(row.is_clean for row in chaos.rows.values()))


def _kill_until(chaos: Chaos, jobs: list[Job], kills: int, *, minutes: float) -> bool:
    """Kill main processes and workers of all jobs in turn; whether so many kills have hit."""
    until = time.monotonic() + 60 * minutes
    pairs = [(job, KILLS[0]) for job in jobs] + [(j, KILLS[1]) for j in jobs if j.steps]
    while time.monotonic() < until:
        for job, name in pairs:
            if sum(row.hits for row in chaos.rows.values()) >= kills:
                return True
            chaos.under_signals(job, name)
            print(".", end="", flush=True)
    return False


def _disturb_all(chaos: Chaos, jobs: list[Job], names: list[str], *, runs: int) -> bool:
    for _ in range(runs):
        for job in jobs:
            for name in names or [*SIGNALS, *INSTALLED, "full disk", "one of two dies"]:
                if _applies(job, name):
                    _disturb(chaos, job, name)
                    print(".", end="", flush=True)
    return True


def _applies(job: Job, name: str) -> bool:
    """Whether a job has what a disturbance disturbs; short commands are only killed."""
    if name == "SIGKILL, worker":
        return job.steps > 0
    if name == "one of two dies":
        return job.steps > 0
    return job.name in ("pre-training", "fine-tuning", "study") or name == "SIGKILL, main"


def _disturb(chaos: Chaos, job: Job, name: str) -> None:
    if name in SIGNALS:
        chaos.under_signals(job, name)
    elif name in INSTALLED:
        chaos.installed(job, name)
    elif name == "full disk":
        chaos.on_a_full_disk(job)
    else:
        chaos.one_of_two_dies(job)


if __name__ == "__main__":
    sys.exit(main())
