"""SIGKILL, SIGTERM, SIGINT and SIGHUP: nothing is lost but the work since the last checkpoint."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from builders.runs.interruptions import assert_same, figures, final_state
from builders.runs.killing import has_said, run_with_kills, start, wait_until, weights_hash
from builders.runs.tiny_runs import NO_CHECKPOINTS, tiny_config

from clove_ssl.config import files
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs import directory
from clove_ssl.training import checkpoints
from clove_ssl.training.checkpoints import CheckpointStore

pytestmark = [pytest.mark.forks, pytest.mark.usefixtures("one_thread")]


def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "whole", steps=8, checkpoints=NO_CHECKPOINTS))
    killed = tiny_config(tmp_path / "killed", steps=8)
    (step,) = run_with_kills(killed, kills=1, seed=0, longest_pause=0.2)
    assert step < 8
    assert weights_hash(tmp_path / "whole") == weights_hash(tmp_path / "killed")


@pytest.fixture
def slow_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing a checkpoint takes longer than the steps up to the next one."""
    write_text = checkpoints.write_text

    def slow(path: Path, text: str) -> None:
        time.sleep(0.3)
        write_text(path, text)
        time.sleep(0.3)

    monkeypatch.setattr(checkpoints, "write_text", slow)


@pytest.mark.usefixtures("slow_writes")
def test_a_run_that_is_killed_while_it_writes_ends_the_same(tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "whole", steps=8, checkpoints=NO_CHECKPOINTS))
    killed, chance = tiny_config(tmp_path / "killed", steps=8), random.Random(0)
    log, config = killed.out / "log.txt", tmp_path / "config.yaml"
    files.save(killed, config)
    arguments = ["pretrain", "--config", str(config), "--out", str(killed.out)]
    for step in (2, 4):
        process = start(*arguments)
        name = f"step-{step:09d}.pt.*.writing"
        wait_until(process, lambda name=name: any(killed.out.glob(f"checkpoints/{name}")))
        wait_until(process, lambda step=step: has_said(log, f"step {step + 1}/"))
        time.sleep(chance.uniform(0, 0.6))
        process.kill()
        process.join()
        arguments = ["resume", str(killed.out)]
    assert pretraining.resume(killed.out).finished
    assert weights_hash(tmp_path / "whole") == weights_hash(killed.out)
    assert figures(tmp_path / "whole") == figures(killed.out)
    assert_same(final_state(tmp_path / "whole"), final_state(killed.out))


@pytest.mark.usefixtures("slow_writes")
def test_a_signal_during_a_write_waits_for_it(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", steps=10_000)
    files.save(config, tmp_path / "config.yaml")
    arguments = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(config.out)]
    process = start(*arguments)
    wait_until(process, lambda: any(config.out.glob("checkpoints/*.pt.*.writing")))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(timeout=60)
    assert process.exitcode == 0
    store = CheckpointStore(config.out / "checkpoints", keep=2, warn=print)
    assert [checkpoint.is_intact() for checkpoint in store.all()] == [True, True]
    assert f"Stopped after step {store.all()[0].step}." in (config.out / "log.txt").read_text()
    assert not list(config.out.rglob("*.writing"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_writes_a_checkpoint_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    config = tiny_config(tmp_path / "run", steps=10_000, checkpoints=NO_CHECKPOINTS)
    files.save(config, tmp_path / "config.yaml")
    arguments = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(config.out)]
    usual = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, if tests have it, is inherited
    process = start(*arguments, said=tmp_path / "said.txt")
    signal.signal(signal.SIGHUP, usual)
    wait_until(process, lambda: has_said(config.out / "log.txt", "step 2/"))
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(timeout=60)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0
    assert f"clove resume {config.out}" in (tmp_path / "said.txt").read_text()
    assert len(list((config.out / "checkpoints").glob("*.pt"))) == 1


def start_in_terminal(config: Path, out: Path, *before: str) -> tuple[subprocess.Popen[bytes], int]:
    """A run in a terminal of its own, and the end of it that a window would hold."""
    window, terminal = pty.openpty()
    command = [*before, sys.executable, "-m", "clove_ssl", "pretrain", "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=_take_the_terminal,
    )
    os.close(terminal)
    return process, window


def _take_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, if tests have it, is inherited


def drained_until(window: int, process: subprocess.Popen[bytes], log: Path, text: str) -> None:
    """Read what the terminal shows, as a window does, until the log has a text."""
    end = time.monotonic() + 60
    while not has_said(log, text):
        assert process.poll() is None
        assert time.monotonic() < end
        if select.select([window], [], [], 0.1)[0]:
            os.read(window, 65536)


def test_a_run_whose_terminal_is_closed_leaves_a_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", steps=10_000, checkpoints=NO_CHECKPOINTS)
    files.save(config, tmp_path / "config.yaml")
    process, window = start_in_terminal(tmp_path / "config.yaml", config.out)
    drained_until(window, process, config.out / "log.txt", "step 2/")
    os.close(window)
    assert process.wait(timeout=60) == 0
    assert "Stopped after step" in (config.out / "log.txt").read_text()
    assert len(list((config.out / "checkpoints").glob("*.pt"))) == 1


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", steps=30, checkpoints=NO_CHECKPOINTS)
    files.save(config, tmp_path / "config.yaml")
    process, window = start_in_terminal(
        tmp_path / "config.yaml", config.out, "sh", "-c", "trap '' HUP; exec \"$@\"", "sh"
    )
    drained_until(window, process, config.out / "log.txt", "step 2/")
    os.close(window)
    assert process.wait(timeout=60) == 0
    assert (config.out / "export" / "backbone.safetensors").is_file()


def test_a_run_that_was_killed_before_its_config_was_written_is_started_again(
    tmp_path: Path,
) -> None:
    config = tiny_config(tmp_path / "run", steps=1)
    directory.make(config.out)
    (config.out / "config.yaml.123.writing").write_text("me")
    pretraining.pretrain(config)
    assert not list(config.out.glob("*.writing"))
    with pytest.raises(UserError, match="is not empty"):
        pretraining.pretrain(config)


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/step-1.pt", "config.yaml.mine.writing"])
def test_a_folder_with_anything_else_is_not_taken(name: str, tmp_path: Path) -> None:
    run = directory.make(tmp_path / "run")
    (run.path / name).write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        directory.check_is_new(run.path)
