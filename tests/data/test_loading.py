"""Worker processes: how many there are, and that none outlives its main process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from clove_ssl import cores
from clove_ssl.config.choice import Choice
from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.loading import choose_workers, silent_without, start_worker


@pytest.mark.parametrize(
    ("granted", "trains_on_cpu", "workers", "why"),
    [
        ("max 100000", False, 12, "12 cores"),
        ("250000 100000", False, 2, "2 of 12 cores, which the container grants"),
        ("50000 100000", False, 1, "1 of 12 cores, which the container grants"),
        ("800000 100000", True, 4, "8 of 12 cores, which the container grants, half for training"),
    ],
)
def test_workers_are_no_more_than_the_container_lets_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    granted: str,
    trains_on_cpu: bool,
    workers: int,
    why: str,
) -> None:
    (tmp_path / "cpu.max").write_text(granted)
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cores, "allowed_cores", lambda: 12)
    chosen = choose_workers(DataConfig(), processes_here=1, trains_on_cpu=trains_on_cpu)
    assert chosen == Choice(workers, why)


def test_as_many_workers_as_asked_for() -> None:
    chosen = choose_workers(DataConfig(workers=40), processes_here=1, trains_on_cpu=True)
    assert chosen == Choice(40, "as asked")


class LargeItems(Dataset[bytes]):
    """Items that do not fit into a pipe, so that whoever sends them waits for a reader."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> bytes:
        return bytes(1 << 20)


def read_one(sender: Connection) -> None:
    """Start a worker, tell its number, and read nothing more."""
    loader = DataLoader(LargeItems(), batch_size=None, num_workers=1, worker_init_fn=start_worker)
    batches = iter(loader)
    next(batches)
    sender.send(batches._workers[0].pid)  # type: ignore[attr-defined]
    time.sleep(600)


def is_running(process: int) -> bool:
    """Whether a process that is not our child runs; one that nobody buries does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.forks
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are seen in /proc")
def test_no_worker_outlives_a_killed_main_process() -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    main = context.Process(target=read_one, args=(sender,))
    main.start()
    worker = receiver.recv()
    assert is_running(worker)
    main.kill()
    main.join()
    for _ in range(600):
        if not is_running(worker):
            break
        time.sleep(0.05)
    else:
        os.kill(worker, 9)
        pytest.fail("the worker stayed")


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset by peer"), EOFError()])
def test_a_worker_whose_main_process_was_killed_has_nothing_to_say(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    for parent, said in ((os.getpid(), False), (os.getppid(), True)):  # the former is no parent
        silent_without(parent)(type(error), error, None)
        assert (type(error).__name__ in capfd.readouterr().err) is said
    silent_without(os.getpid())(ValueError, ValueError("a fault of ours"), None)
    assert "a fault of ours" in capfd.readouterr().err


KILLED_WHILE_FETCHING = """
import multiprocessing, os, signal, sys, time
from multiprocessing import connection, resource_sharer
from clove_ssl.data.loading import start_worker

def work(pipe):
    if sys.argv[1] == "started":
        start_worker(0)
    pipe.send(resource_sharer.DupFd(os.pipe()[1])._id)
    time.sleep(3)
    os._exit(0)

near, far = multiprocessing.Pipe()
multiprocessing.get_context("fork").Process(target=work, args=(far,)).start()
address, _ = near.recv()
main = connection.Client(address, authkey=multiprocessing.current_process().authkey)
os.write(main.fileno(), b"..")  # the beginning of a message
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("start", ["started", "plain"])
def test_a_main_process_killed_while_it_fetches_a_batch_leaves_no_traceback(start: str) -> None:
    command = [sys.executable, "-c", KILLED_WHILE_FETCHING, start]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert ("Traceback" in said) is (start == "plain")  # such as every worker of Python has
