"""Attacks on all parsers for some minutes: slices of seconds, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fuzz.target import Case, Files, Target
from fuzz.worker import Outcome, Workspace, case_of, end, report_to, work

CORPUS = Path(__file__).parent / "corpus"
HANG = 60.0
"""Seconds of work or sleep without a word after which a case counts as hanging.

Seconds in which a busy machine lets it wait for a processor do not count."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Tally:
    """What happened to one target."""

    tried: int = 0
    refused: int = 0
    accepted: int = 0
    tracebacks: int = 0
    hangs: int = 0
    deaths: int = 0
    escapes: int = 0
    over_limit: int = 0
    peak: float = 0.0  # megabytes
    slowest: float = 0.0  # seconds
    found: dict[str, str] = field(default_factory=dict)  # faults, each with the case that showed it

    def add(self, outcome: Outcome) -> None:
        self.tried += 1
        self.refused += outcome.kind == "refused"
        self.accepted += outcome.kind == "accepted"
        self.tracebacks += outcome.kind == "traceback"
        self.escapes += bool(outcome.escapes)
        self.over_limit += any(fault.startswith(("slow", "memory")) for fault in outcome.faults)
        self.peak = max(self.peak, outcome.megabytes)
        self.slowest = max(self.slowest, outcome.seconds)

    @property
    def faults(self) -> int:
        """Everything that may not happen."""
        return self.tracebacks + self.hangs + self.deaths + self.escapes + self.over_limit


class Silence:
    """How long a process has said nothing, while it could have."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._worked = self._looked = 0.0
        self.seconds = 0.0
        self.end()

    def end(self) -> None:
        """It has said something."""
        self.seconds = 0.0
        self._looked = time.monotonic()
        _, self._worked = self._now()

    def look(self) -> float:
        """Seconds so far: those it worked, and those it slept from one look to the next."""
        sleeps, worked = self._now()
        looked = time.monotonic()
        slept = looked - self._looked if sleeps and worked == self._worked else 0.0
        self.seconds += worked - self._worked + slept
        self._worked, self._looked = worked, looked
        return self.seconds

    def _now(self) -> tuple[bool, float]:
        """Whether it sleeps, and its processor time so far."""
        try:
            fields = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True, self._worked
        return fields[0] not in "R", (int(fields[11]) + int(fields[12])) / _TICK


Cases = Callable[[int], Iterator[tuple[int, Case]]]
"""Numbered cases from a number on."""


class Slice:
    """One process that works on one target."""

    def __init__(
        self,
        target: Target,
        seeds: Mapping[str, Files],
        cases: Iterator[tuple[int, Case]],
        *,
        first: int,
    ) -> None:
        self.target = target
        self.next = first  # the case that is being read
        self.folder = Path(tempfile.mkdtemp(prefix="clove-fuzz-"))
        self.hangs = False
        self._rest = b""
        self.pipe, written = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            code = 1
            try:
                os.close(self.pipe)
                torch.set_num_threads(1)  # the threads that torch had stayed behind
                report_to(written, work(target, seeds, cases, self.folder))
                code = 0
            finally:
                end(code)
        os.close(written)
        self.silence = Silence(self.process)

    def outcomes(self) -> list[Outcome] | None:
        """What has come since the last time; ``None`` when the process has ended."""
        data = os.read(self.pipe, 1 << 20)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.silence.end()
        found = [Outcome(**json.loads(line)) for line in lines]
        if found:
            self.next = found[-1].number + 1
        return found

    def close(self, *, kill: bool = False) -> int:
        """End the process and clear its folder; gives what it ended with."""
        if kill:
            os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        os.close(self.pipe)
        shutil.rmtree(self.folder, ignore_errors=True)
        return status


class Campaign:
    """Slices of all targets in turn, a few at a time."""

    def __init__(self, targets: Mapping[str, Target], *, seed: int, keep: Path | None) -> None:
        self.targets = targets
        self.seeds = {name: target.seeds() for name, target in targets.items()}
        self.tallies = {name: Tally() for name in targets}
        self._numbers = dict.fromkeys(targets, 0)
        self._seed = seed
        self._keep = keep

    def warm_up(self) -> None:
        """Read every good folder here, so that processes find imports and tables done."""
        for name, target in self.targets.items():
            for files in self.seeds[name].values():
                with tempfile.TemporaryDirectory() as folder, suppress(*target.refusals):
                    target.read(Workspace(Path(folder), files).folder)

    def run(self, *, minutes: float, jobs: int, slice_seconds: float) -> None:
        """Attack until the time is over; ``jobs`` processes at once."""
        until = time.monotonic() + 60 * minutes
        queue = _forever([name for name, one in self.targets.items() for _ in range(one.turns)])
        running: set[Slice] = set()
        with selectors.DefaultSelector() as selector:
            while running or time.monotonic() < until:
                while len(running) < jobs and time.monotonic() < until:
                    new = self._start(next(queue), slice_seconds)
                    running.add(new)
                    selector.register(new.pipe, selectors.EVENT_READ, new)
                ready = {key.data for key, _ in selector.select(timeout=1.0)}
                for one in list(running):
                    if self._is_over(one, one in ready):
                        selector.unregister(one.pipe)
                        running.remove(one)
                        self._finish(one)

    def replay(self, name: str, cases: list[Case]) -> None:
        """Read given cases in one process, which must survive them all."""
        numbered = list(enumerate(cases))
        one = Slice(self.targets[name], self.seeds[name], iter(numbered), first=0)
        lookup = dict(numbered)
        while (outcomes := one.outcomes()) is not None:
            for outcome in outcomes:
                self._note(name, outcome, lookup[outcome.number])
        if status := one.close():
            self._died(name, status, lookup[one.next])

    def _start(self, name: str, seconds: float) -> Slice:
        """A slice with numbers of its own, since another one of the target may be running."""
        first = self._numbers[name]
        self._numbers[name] += 1_000_000
        until = time.monotonic() + seconds
        cases = self._cases(name, first, until)
        return Slice(self.targets[name], self.seeds[name], cases, first=first)

    def _cases(self, name: str, first: int, until: float) -> Iterator[tuple[int, Case]]:
        number = first
        while time.monotonic() < until:
            yield number, self._case(name, number)
            number += 1

    def _case(self, name: str, number: int) -> Case:
        return case_of(self.targets[name], self.seeds[name], self._seed, number)

    def _is_over(self, one: Slice, ready: bool) -> bool:
        name = one.target.name
        if ready:
            outcomes = one.outcomes()
            for outcome in outcomes or ():
                self._note(name, outcome, None)
            return outcomes is None
        one.hangs = one.silence.look() >= HANG
        if not one.hangs:
            return False
        self.tallies[name].hangs += 1
        self.tallies[name].tried += 1
        self._remember(name, "hang", self._case(name, one.next))
        os.kill(one.process, signal.SIGKILL)
        return True

    def _finish(self, one: Slice) -> None:
        status = one.close()
        if status and not one.hangs:
            self._died(one.target.name, status, self._case(one.target.name, one.next))

    def _died(self, name: str, status: int, case: Case) -> None:
        tally = self.tallies[name]
        tally.tried += 1
        tally.deaths += 1
        self._remember(name, f"death of the process, status {status}", case)

    def _note(self, name: str, outcome: Outcome, case: Case | None) -> None:
        self.tallies[name].add(outcome)
        for fault in outcome.faults:
            kind = fault.partition(":")[0] if fault.startswith(("slow", "memory")) else fault
            if kind not in self.tallies[name].found:
                self._remember(name, kind, case or self._case(name, outcome.number))
                self.tallies[name].found[kind] += f" ({fault})\n{outcome.text}"

    def _remember(self, name: str, fault: str, case: Case) -> None:
        """Keep a case with a new fault in the corpus."""
        where = f"seed {self._seed}, {case.seed}, {case.path}"
        if self._keep is not None:
            where = str(keep(case, self._keep / name))
        self.tallies[name].found[fault] = where


def keep(case: Case, folder: Path) -> Path:
    """Write a case into the corpus of its target."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(case.data).hexdigest()[:8]
    path = folder / f"{case.file_name()}@{digest}"
    path.write_bytes(case.data)
    return path


def kept_cases(name: str, seeds: Mapping[str, Files]) -> list[Case]:
    """The corpus of a target."""
    cases = []
    for path in sorted((CORPUS / name).glob("*@*")):
        seed, file, _ = path.name.split("@")
        assert seed in seeds, f"{path} belongs to no folder of {name}"
        cases.append(Case(seed, file.replace("+", "/"), path.read_bytes()))
    return cases


def _forever(names: list[str]) -> Iterator[str]:
    while True:
        yield from names
