"""What of the machine this process may use, cores and memory, without torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup")
QUOTA = CONTAINER / "cpu.max"
MEMORY_FACTS = Path("/proc/meminfo")


def allowed_cores() -> int:
    """Cores this process may run on, though a container may not grant it all their time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_quota(path: Path | None = None) -> float | None:
    """Cores a container grants, from its ``cpu.max``; ``None`` without a limit."""
    try:
        granted, period = (path or QUOTA).read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)


def available_cores() -> int:
    """Cores whose whole time this process can have; one at least."""
    quota = core_quota()
    return allowed_cores() if quota is None else max(1, min(allowed_cores(), int(quota)))


def describe_cores() -> str:
    """The available cores in words."""
    allowed, available = allowed_cores(), available_cores()
    if available == allowed:
        return f"{allowed} cores"
    return f"{available} of {allowed} cores, which the container grants"


def total_memory() -> int | None:
    """Bytes that this machine or container has; ``None`` where that cannot be known."""
    here = _number(r"MemTotal:\s+(\d+) kB", MEMORY_FACTS)
    limit = _number(r"(\d+)", CONTAINER / "memory.max")
    sizes = [None if here is None else 1024 * here, limit]
    return min((size for size in sizes if size is not None), default=None)


def available_memory() -> int | None:
    """Bytes of memory that can be had, within the limit of a container; ``None`` if unknown."""
    free = _number(r"MemAvailable:\s+(\d+) kB", MEMORY_FACTS)
    free = None if free is None else 1024 * free
    limit = _number(r"(\d+)", CONTAINER / "memory.max")
    used = _number(r"(\d+)", CONTAINER / "memory.current")
    if limit is None or used is None:
        return free
    # Files that were read count as used, until somebody needs the room.
    given_back = _number(r"(?m)^inactive_file (\d+)", CONTAINER / "memory.stat") or 0
    left = max(0, limit - used + given_back)
    return left if free is None else min(free, left)


def _number(pattern: str, path: Path) -> int | None:
    """The number that the pattern finds in a file of the system, if there is such a file."""
    try:
        match = re.search(pattern, path.read_text())
    except OSError:
        return None
    return None if match is None else int(match[1])
