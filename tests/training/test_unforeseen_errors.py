"""Errors that nobody foresaw: the process ends, with its workers, and says what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.runs.tiny_runs import tiny_config

from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.training.loop import TrainingLoop

TESTS = Path(__file__).parents[1]
FAILING_RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from builders.runs.tiny_runs import tiny_config
from clove_ssl.pretraining import run as pretraining
from clove_ssl.training.loop import TrainingLoop

def fail(loop, feed):
    feed.next()
    raise RuntimeError("out of the blue")

TrainingLoop._accumulate = fail
config = tiny_config(Path(sys.argv[1]))
pretraining.pretrain(replace(config, data=replace(config.data, workers=2)))
"""


def test_a_failed_run_does_not_wait_for_its_workers(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING_RUN, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("RuntimeError: out of the blue")


def test_a_network_that_diverges_says_at_which_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(loop: TrainingLoop, feed: object) -> None:
        raise FloatingPointError("Training diverged")

    monkeypatch.setattr(TrainingLoop, "_accumulate", diverge)
    with pytest.raises(UserError, match="Training diverged at step 1, process 0.*Try a smaller"):
        pretraining.pretrain(tiny_config(tmp_path / "run"))


HELD_RUN = """
import os, signal, sys, time
from pathlib import Path
from clove_ssl.errors import UserError
from clove_ssl.runs import directory

run = directory.make(Path(sys.argv[1]))
ready, tell = os.pipe()
with directory.locked(run):
    child = os.fork()
    if not child:
        os.write(tell, b"!")
        time.sleep(60)  # lives on while the parent has let go
        os._exit(0)
    os.read(ready, 1)
    try:
        with directory.locked(run):
            print("held by two")
    except UserError:
        print("held")
try:
    with directory.locked(run):
        print("free")
finally:
    os.kill(child, signal.SIGKILL)
"""


def test_a_child_does_not_hold_the_run_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD_RUN, str(tmp_path / "run")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.split() == ["held", "free"]
