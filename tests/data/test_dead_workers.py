"""Workers that die: the run says which one, of what, and how it goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from clove_ssl.data.dead_workers import explained_deaths
from clove_ssl.data.loading import batches_of, start_worker
from clove_ssl.errors import UserError

pytestmark = pytest.mark.forks


def explained() -> AbstractContextManager[None]:
    return explained_deaths(workers=8, config="run/config.yaml", resume="clove resume run")


class Dying(Dataset[int]):
    """Something becomes of the worker that reads the third entry."""

    def __init__(self, how: str) -> None:
        self._how = how

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 2 and self._how == "memory":
            raise MemoryError
        if index == 2 and self._how == "code":
            os._exit(7)
        if index == 2:
            os.kill(os.getpid(), getattr(signal, self._how))
        return index


def batches(how: str) -> Iterator[int]:
    loader = DataLoader(
        Dying(how),
        batch_size=None,
        num_workers=1,
        worker_init_fn=start_worker,
        generator=torch.Generator(),
    )
    return batches_of(loader)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "SIGKILL",
            r"Data worker .* (was ended: Killed|ended suddenly).*usually.*no memory",
        ),
        ("code", r"Data worker with process number \d+ ended"),
        ("memory", "Data worker 0 found no memory for its images"),
    ],
)
def test_a_dead_worker_is_named_with_what_to_do(how: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught, explained():
        list(batches(how))
    assert "now 8, try 4" in str(caught.value)
    assert "run/config.yaml" in str(caught.value)
    assert str(caught.value).endswith("Go on with: clove resume run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "/dev/shm"),
        ("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ", "a library"),
        ("DataLoader worker (pid(s) 7, 8) exited unexpectedly", "number 7, 8 ended suddenly"),
        (
            "Caught RuntimeError in DataLoader worker process 3.\nRuntimeError: unable to write to "
            "file </torch_12_3>: No space left on device (28)",
            "Data worker 3 found no room in /dev/shm",
        ),
    ],
)
def test_what_torch_says_is_put_into_words(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words), explained():
        raise RuntimeError(text)


def put_and_die(queue: Any) -> None:
    queue.put(torch.ones(3))
    queue.close()
    queue.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_with_a_batch_in_its_hands_is_told_of() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=put_and_die, args=(queue,))
    worker.start()
    worker.join()
    told = pytest.raises(UserError, match=r"A data worker ended suddenly.*clove resume run")
    with told, explained():
        queue.get()


def test_a_missing_file_is_no_dead_worker(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), explained():
        (tmp_path / "a").read_bytes()


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), MemoryError(), KeyError("a")])
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), explained():
        raise error
