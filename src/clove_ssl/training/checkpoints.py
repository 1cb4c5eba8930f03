"""Checkpoints that survive anything.

A checkpoint is written under a temporary name, flushed to the disk and then
renamed, with a SHA-256 beside it that is renamed first: a checkpoint that can
be seen is complete. Loading verifies the sum and falls back to the previous
good file. Only tensors and plain values are stored and loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from clove_ssl.atomic import SUFFIX, cause, replacing, write_text
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import Checkpoint, list_checkpoints

State = dict[str, Any]


class CheckpointStore:
    """The checkpoints of a run."""

    def __init__(self, folder: Path, *, keep: int, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self._keep = keep
        self._warn = warn

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, newest first."""
        return list_checkpoints(self.folder)

    def save(self, step: int, state: State, *, milestone: bool = False) -> Path:
        """Write a checkpoint, then remove those that are too old."""
        path = self.folder / f"step-{step:09d}{'-kept' if milestone else ''}.pt"
        try:
            _write(path, state)
        except OSError as error:
            raise self._explain(error, path) from error
        self._rotate()
        return path

    def load_latest(self) -> State | None:
        """The newest intact checkpoint, on the CPU; ``None`` when there is none at all."""
        candidates = self.all()
        for checkpoint in candidates:
            if checkpoint.is_intact():
                return load_state(checkpoint.path)
            self._warn(f"{checkpoint.path} is damaged; trying the checkpoint before it.")
        if candidates:
            raise UserError(
                f"All {len(candidates)} checkpoints in {self.folder} are damaged, so the run "
                "cannot be resumed. Start it again in a new --out folder."
            )
        return None

    def last_path(self) -> str:
        """The newest checkpoint for messages."""
        newest = self.all()[:1]
        return str(newest[0].path) if newest else "none"

    def _rotate(self) -> None:
        passing = [checkpoint for checkpoint in self.all() if not checkpoint.milestone]
        for checkpoint in passing[self._keep :]:
            checkpoint.path.unlink(missing_ok=True)
            checkpoint.checksum.unlink(missing_ok=True)
        for leftover in self.folder.glob(f"*{SUFFIX}"):
            leftover.unlink(missing_ok=True)

    def _explain(self, error: OSError, path: Path) -> UserError:
        return UserError(
            f"{path} could not be written: {cause(error)}. The checkpoint before it is intact "
            f"({self.last_path()}). Free some space, then: clove resume {self.folder.parent}"
        )


def load_state(path: Path) -> State:
    """Read a checkpoint; nothing in it can run code."""
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _write(path: Path, state: State) -> None:
    with replacing(path) as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, cast(IO[bytes], hashing))
        except RuntimeError as error:
            # torch turns the system's error, such as a full disk, into one of its own.
            raise hashing.failure or error from None
        # Renamed first, so that a checkpoint that can be seen has its checksum.
        write_text(path.with_suffix(".sha256"), hashing.hexdigest() + "\n")


class _HashingFile:
    """Passes writes on and hashes them on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
