"""The checkpoints of a run as files: which there are, and whether they are intact."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"step-(\d+)(-kept)?\.pt")


@dataclass(frozen=True)
class Checkpoint:
    """One file of a run."""

    path: Path
    step: int
    milestone: bool

    @property
    def checksum(self) -> Path:
        return self.path.with_suffix(".sha256")

    def is_intact(self) -> bool:
        """Whether the file is what was written."""
        if not self.checksum.exists():
            return False
        with self.path.open("rb") as file:
            return (
                hashlib.file_digest(file, "sha256").hexdigest() == self.checksum.read_text().strip()
            )


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Complete checkpoints, newest first."""
    found = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("step-*.pt")]
    checkpoints = [Checkpoint(p, int(m[1]), m[2] is not None) for p, m in found if m]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)


def newest_intact(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is what was written, if there is one."""
    return next((each for each in list_checkpoints(folder) if each.is_intact()), None)
