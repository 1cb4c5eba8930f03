"""Processes notice when one of the others is gone."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from builders.paired_processes import free_port

from clove_ssl.errors import UserError
from clove_ssl.training.presence import Presence
from clove_ssl.training.processes import joined


class Losses:
    """Collects what is said about others."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.came = threading.Event()

    def __call__(self, why: str) -> None:
        self.said.append(why)
        self.came.set()


def present(store: dist.Store, rank: int, losses: Losses, silence: float) -> Presence:
    return Presence(store, rank, 2, lost=losses, silence=silence, interval=0.01)


def test_a_process_that_is_silent_for_too_long_is_named() -> None:
    losses = Losses()
    with present(dist.HashStore(), 0, losses, 0.1):
        assert losses.came.wait(10)
    assert "nothing was heard of process 1" in losses.said[0]


def test_two_processes_that_are_there_do_not_disturb_each_other() -> None:
    store, losses = dist.HashStore(), Losses()
    with present(store, 0, losses, 5.0), present(store, 1, losses, 5.0):
        while store.add("clove_presence/0", 0) < 3 or store.add("clove_presence/1", 0) < 3:
            pass
    assert not losses.said


def test_a_store_that_is_gone_is_the_loss_of_the_first_process() -> None:
    class Gone:
        def add(self, key: str, amount: int) -> int:
            raise RuntimeError("Connection reset by peer")

    losses = Losses()
    with Presence(Gone(), 1, 2, lost=losses, interval=0.01):
        assert losses.came.wait(10)
    assert "the first process" in losses.said[0]


@pytest.mark.forks
def test_the_process_that_lives_says_that_another_is_gone() -> None:
    context = mp.get_context("fork")
    told, port = context.Queue(), free_port()
    pair = [context.Process(target=_work, args=(rank, port, told)) for rank in (0, 1)]
    for process in pair:
        process.start()
    words = told.get(timeout=60)
    for process in pair:
        process.join(60)
    assert "one of them is gone" in words
    assert "clove resume RUN" in words


def _work(rank: int, port: int, told: mp.Queue[str]) -> None:
    """The second process dies; the first waits for it."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in {**place, **meeting}.items()})
    try:
        with joined("cpu") as process:
            process.wait()
            if rank == 1:
                os._exit(9)
            process.wait()
    except UserError as error:
        told.put(str(error))
        told.close()
        told.join_thread()
    os._exit(0)
