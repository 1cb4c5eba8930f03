"""Checkpoints are written while training goes on.

At a checkpoint the state is copied to the memory of the host, which takes a moment; a thread
serialises the copy, sums it up and brings it to the disk. There is one write at a time, so memory
holds one copy at most, and none outlives the loop: whoever starts processes, reads checkpoints or
ends the run behind it finds them complete. What goes wrong in the thread is raised by the loop.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from clove_ssl.layers.transfers import tensors_of
from clove_ssl.training.checkpoints import CheckpointStore, State


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
