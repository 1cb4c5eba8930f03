"""How many cores this process may use, without torch: for its workers, helpers and the doctor."""

from __future__ import annotations

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


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
