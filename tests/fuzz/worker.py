"""A forked process that feeds cases to one parser and reports on each.

The parent has imported everything, so a worker starts in milliseconds; it ends after some seconds,
so that nothing a case leaves behind goes far. It runs under a limit of address space, and a parent
watches it: a case that ends the process, or never ends, is found there.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from fuzz.canaries import Guard
from fuzz.target import MEGABYTE, Case, Files, Target
from fuzz.targets.images import FIXED_TIME

ADDRESS_SPACE = 4 * 2**30
"""Bytes that a parser may ask for; who asks for more has believed a file."""


@dataclass
class Outcome:
    """What a case has led to."""

    number: int
    kind: str  # accepted, refused or traceback
    seconds: float
    megabytes: float
    escapes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # each is worth a case of the corpus
    text: str = ""  # of the traceback


def case_of(target: Target, seeds: Mapping[str, Files], seed: int, number: int) -> Case:
    """Case ``number`` of a run with this seed; always the same one."""
    return target.case(seeds, Random(f"{seed} {target.name} {number}"))


def work(
    target: Target, seeds: Mapping[str, Files], cases: Iterator[tuple[int, Case]], folder: Path
) -> Iterator[Outcome]:
    """Feed cases to the parser, in a process that does nothing else."""
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True  # of what is imported late, which would pass for an escape
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries in C have much to say about videos
    guard = Guard(folder)
    limit_address_space()
    workspaces: dict[str, Workspace] = {}
    for number, case in cases:
        if case.seed not in workspaces:
            place = folder / str(len(workspaces))
            workspaces[case.seed] = Workspace(place, seeds[case.seed])
        workspace = workspaces[case.seed]
        workspace.change(case)
        os.chdir(folder)
        with guard.watching(may_start=target.may_start) as escapes:
            outcome = judge(target, case, workspace.folder, number)
        outcome.escapes = escapes
        outcome.faults += [f"escape: {escapes[0]}"] if escapes else []
        workspace.restore()
        yield outcome


class Workspace:
    """A folder of good files, one of which is bad for a while."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self._files = files
        for path in files:
            self._write(path, files[path])

    def change(self, case: Case) -> None:
        self._write(case.path, case.data, stamp=FIXED_TIME + 1)

    def restore(self) -> None:
        """Take away what is new, and write anew what has changed."""
        for place, folders, names in os.walk(self.folder):
            for name in (*names, *folders):
                path = os.path.join(place, name)
                relative = os.path.relpath(path, self.folder)
                if relative in self._files or (name in folders and not os.path.islink(path)):
                    continue
                os.unlink(path)
        for relative, data in self._files.items():
            path = self.folder / relative
            if not path.is_file() or path.stat().st_mtime != FIXED_TIME:
                self._write(relative, data)

    def _write(self, relative: str, data: bytes, *, stamp: int = FIXED_TIME) -> None:
        path = self.folder / relative
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (stamp, stamp))


def judge(target: Target, case: Case, folder: Path, number: int) -> Outcome:
    """Read the case and compare what it took with the limits."""
    size = target.size(case.data)
    before, start = reset_peak(), time.process_time()
    kind, text, faults, error = "accepted", "", [], None
    try:
        target.read(folder)
    except target.refusals as refusal:
        kind, error = "refused", refusal
    except BaseException as failure:
        kind, error = "traceback", failure
        text, faults = traceback.format_exc(), [signature(failure)]
    seconds = time.process_time() - start
    megabytes = peak() - before
    if ran_out_of_memory(error):
        faults.append("memory: it asked for more than there may be")
    if seconds > target.limit.time(size):
        faults.append(f"slow: {seconds:.1f} s for {size:.2f} MB")
    if megabytes > target.limit.memory(size):
        faults.append(f"memory: {megabytes:.0f} MB for {size:.2f} MB")
    return Outcome(number, kind, seconds, megabytes, [], faults, text)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, however it was wrapped, began with one of memory."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def signature(error: BaseException) -> str:
    """What makes a traceback another one: its type, and the place in our code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "clove_ssl" in frame.filename] or list(frames)
    frame = ours[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.name}"


def limit_address_space() -> None:
    """Let requests beyond the limit fail, so that no case takes the machine's memory."""
    now = int(_status("VmSize") * MEGABYTE)
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESS_SPACE, now + ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def reset_peak() -> float:
    """Megabytes that this process has now; the peak begins anew from here."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    # Not what the process has at this moment: garbage of the case before may have gone since.
    return _status("VmHWM")


def peak() -> float:
    """The most megabytes that this process had since then."""
    return _status("VmHWM")


def _status(name: str) -> float:
    with open("/proc/self/status") as file:
        found = re.search(rf"{name}:\s+(\d+) kB", file.read())
    assert found
    return int(found[1]) / 1024


def report_to(pipe: int, outcomes: Iterator[Outcome]) -> None:
    """Write outcomes as lines of JSON."""
    for outcome in outcomes:
        os.write(pipe, json.dumps(asdict(outcome)).encode() + b"\n")


def end(code: int) -> None:
    """Leave without what belongs to the parent: its buffers, its exit handlers."""
    sys.stdout.flush()
    os._exit(code)
