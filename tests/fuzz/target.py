"""What is attacked: a parser, good files for it, and what it may take.

A case is one changed file of a small folder that was good before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzz.formats import Damage
from fuzz.mutations import damaged

from clove_ssl.errors import UserError

Files = Mapping[str, bytes]
"""Contents by path, relative to a folder."""
MEGABYTE = 2**20


@dataclass(frozen=True)
class Limit:
    """What a parser may take for a file, beyond what the process has already."""

    seconds: float  # of processor time
    megabytes: float
    seconds_per_megabyte: float = 0.5
    megabytes_per_megabyte: float = 8.0

    def time(self, size: float) -> float:
        """Seconds for a file of ``size`` megabytes."""
        return self.seconds + self.seconds_per_megabyte * size

    def memory(self, size: float) -> float:
        """Megabytes for a file of ``size`` megabytes."""
        return self.megabytes + self.megabytes_per_megabyte * size


@dataclass(frozen=True)
class Case:
    """One attack."""

    seed: str  # name of the folder that was good
    path: str  # of the file in it that is changed
    data: bytes

    def file_name(self) -> str:
        """Where the case is kept, in the corpus of its target."""
        return f"{self.seed}@{self.path.replace('/', '+')}"


def by_length(data: bytes) -> float:
    """The size of a file in megabytes, as most limits count it."""
    return len(data) / MEGABYTE


@dataclass(frozen=True)
class Target:
    """A parser under attack."""

    name: str
    seeds: Callable[[], dict[str, Files]]
    read: Callable[[Path], None]  # what is in a folder
    limit: Limit
    damages: Mapping[str, Damage] = field(default_factory=dict)  # by the end of a file's name
    changed: tuple[str, ...] = ("",)  # ends of the names of files that are attacked
    refusals: tuple[type[BaseException], ...] = (UserError,)
    size: Callable[[bytes], float] = by_length
    turns: int = 1  # slices in a round; more where a case takes long
    may_start: bool = False  # whether asking the machine by other programs is its task

    def case(self, seeds: Mapping[str, Files], chance: Random) -> Case:
        """Draw a case."""
        seed = chance.choice(list(seeds))
        files = seeds[seed]
        path = chance.choice([path for path in files if path.endswith(self.changed)])
        others = [data for name in seeds for data in seeds[name].values()]
        data = files[path]
        if chance.random() < 0.05:  # the beginning of one file, the end of another
            other = chance.choice(others)
            data = (
                data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]
            )
        damage = next((d for end, d in self.damages.items() if path.endswith(end)), damaged)
        return Case(seed, path, damage(data, chance))
