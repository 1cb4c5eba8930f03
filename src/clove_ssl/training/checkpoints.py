"""Checkpoints that survive anything.

A checkpoint is written under a temporary name, flushed to the disk and then
renamed, with a SHA-256 beside it that is renamed first: a checkpoint that can
be seen is complete. Loading verifies the sum and falls back to the previous
good file. Only tensors and plain values are stored and loaded.

A file may be what was written and still not what this run needs: of a later
version, of another network, or made by somebody else. Nothing is taken from it
before its parts were looked at; what does not fit is said in one sentence.

Checkpoints are written while training goes on. The state is copied to the memory of the host,
which takes a moment; a thread serialises the copy, sums it up and brings it to the disk. There is
one write at a time, so memory holds one copy at most, and none outlives the loop: whoever starts
processes, reads checkpoints or ends the run behind it finds them complete.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from clove_ssl.atomic import SUFFIX, cause, replacing, write_text
from clove_ssl.errors import UserError
from clove_ssl.layers.transfers import tensors_of
from clove_ssl.runs.directory import Checkpoint, list_checkpoints

State = dict[str, Any]

FORMAT = 1
"""Raised when parts of a checkpoint change their meaning; files without one have version 0."""
_MOST_WORDS = 300  # characters of what torch says about a file


class BadCheckpoint(UserError):
    """A file that is no checkpoint, or lacks a part."""


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
            _write(path, {"format": FORMAT, **state})
        except OSError as error:
            raise self._explain(error, path) from error
        self._rotate()
        return path

    def load_latest(self, needs: Mapping[str, type] | None = None) -> State | None:
        """The newest intact checkpoint, on the CPU; ``None`` when there is none at all.

        ``needs`` are its parts with their types, without which it is of no use.
        """
        candidates = self.all()
        for checkpoint in candidates:
            try:
                if checkpoint.is_intact():
                    return _checked(load_state(checkpoint.path), checkpoint, needs or {})
                fault = f"{checkpoint.path} is damaged"
            except BadCheckpoint as error:
                fault = str(error)
            self._warn(f"{fault}; trying the checkpoint before it.")
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

    @contextmanager
    def fitting(self, step: int) -> Iterator[None]:
        """Say which checkpoint it is whose parts do not fit into the networks of the run."""
        newest = next((each.path for each in self.all() if each.step == step), self.folder)
        with fitting(newest):
            yield


class CheckpointWriter:
    """Writes the checkpoints of a store in a thread, one after the other."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, state: State, *, milestone: bool, before: Callable[[], None]) -> None:
        """Copy the state and begin to write it, once the write before has ended.

        ``before`` is called by the thread: what must be on the disk when the checkpoint is.
        """
        self.wait()
        arguments = (step, Snapshot(state), milestone, before)
        # No daemon: a program that ends in any other way than by a kill waits for the file.
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong in a write that has ended; does not wait for one that has not."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Return when the last checkpoint is on the disk, or raise why it is not."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Leave no write behind, however the block ends.

        A checkpoint that could not be written came before whatever ended the block, and is told.
        """
        try:
            yield
        finally:
            self.wait()

    def _write(
        self, step: int, snapshot: Snapshot, milestone: bool, before: Callable[[], None]
    ) -> None:
        try:
            before()
            self._store.save(step, snapshot.ready(), milestone=milestone)
        except BaseException as error:  # for the training loop, which is the one that can tell it
            self._error = error


class Snapshot:
    """A state as it is now, in the memory of the host, where no later step reaches it.

    Tensors that share memory share it in the copy as well, and keep their strides, so that both
    give the same file. From a GPU the copy is queued between this step and the next one, and
    neither host nor device waits for it.
    """

    def __init__(self, state: State) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        # Who is found in this table is not copied by deepcopy; the rest are small plain values.
        copies = {id(tensor): self._copied(tensor) for tensor in tensors_of(state)}
        self._state: State = copy.deepcopy(state, copies)
        self._queued: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors_of(state)):
            self._queued = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._queued.record()

    def ready(self) -> State:
        """The copy; waits for what a GPU still has to bring."""
        if self._queued is not None:
            self._queued.synchronize()
        return self._state

    def _copied(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = _on_host(storage)
        mine = self._storages[storage._cdata]
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(mine, tensor.storage_offset(), tensor.shape, tensor.stride())


def _on_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy, which from a GPU is only queued."""
    there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    if not there.is_cuda:
        # By one thread: memory is the limit, and many threads would wait for each other.
        return torch.from_numpy(there.numpy().copy()).untyped_storage()
    here = torch.empty(there.shape, dtype=torch.uint8, pin_memory=True)
    return here.copy_(there, non_blocking=True).untyped_storage()


def load_state(path: Path) -> State:
    """Read a checkpoint; nothing in it can run code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, from the archive, the pickle and the tensors
        raise BadCheckpoint(f"{path} is not a checkpoint ({_first_words(error)})") from None
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{path} is not a checkpoint (it holds a {type(state).__name__})")
    version = state.get("format", 0)
    if not isinstance(version, int) or version > FORMAT:
        raise UserError(
            f"{path} has format version {version!r:.40}; this clove-ssl reads up to {FORMAT}. "
            "Type: pip install --upgrade clove-ssl"
        )
    return state


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Explain why the parts of a checkpoint do not fit into what they are loaded into."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(
            f"{path} does not fit this run: {_first_words(error)}. It was written by another run, "
            "or config.yaml was changed since. Restore the config, or remove this checkpoint to "
            "continue from the one before."
        ) from None


def restore_optimizer(optimizer: Optimizer, state: State) -> None:
    """Load the state of an optimizer; ValueError for shapes that are not those of the weights."""
    optimizer.load_state_dict(state)
    for parameter, known in optimizer.state.items():
        for name, value in known.items():
            is_tensor = isinstance(value, torch.Tensor) and value.ndim > 0
            if is_tensor and value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)} for weights of {tuple(parameter.shape)}"
                raise ValueError(f"the optimizer's {name} has the shape {shapes}")


def _checked(state: State, checkpoint: Checkpoint, needs: Mapping[str, type]) -> State:
    """The state, if it is of the step that its name says and has all its parts."""
    step = state.get("step")
    if step != checkpoint.step or not isinstance(step, int):
        raise BadCheckpoint(f"{checkpoint.path} says it is of step {step!r:.40}")
    for name, kind in needs.items():
        if not isinstance(state.get(name), kind):
            raise BadCheckpoint(f"{checkpoint.path} has no part called {name}")
    return state


def _first_words(error: BaseException) -> str:
    """What is wrong, in one line of bounded length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:_MOST_WORDS].rstrip(". ") or type(error).__name__


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
