"""Kill a run with SIGKILL at random moments, and resume it each time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.export.safetensors_file import content_hash, read_backbone_file
from clove_ssl.runs.directory import RunDirectory


def command(*arguments: str) -> list[str]:
    """A ``clove`` command in a process of its own."""
    return [sys.executable, "-m", "clove_ssl", *arguments]


def weights_hash(run: Path) -> str:
    """Hash of all weights a run has exported, computed from the tensors themselves."""
    state, _ = read_backbone_file(RunDirectory(run).backbone)
    return content_hash(state)


def run_with_kills(config: PretrainConfig, *, kills: int, seed: int) -> list[int]:
    """Finish the run at ``config.out`` in spite of ``kills`` kills; gives the steps they hit."""
    chance = random.Random(seed)
    file = config.out.with_suffix(".yaml")
    files.save(config, file)
    arguments = ["pretrain", "--config", str(file), "--out", str(config.out)]
    steps = []
    for _ in range(kills):
        process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL)
        _wait_for_training(process, config.out, after=len(_log(config.out)))
        time.sleep(chance.uniform(0, 2.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps.append(_log(config.out).count("step "))
        arguments = ["resume", str(config.out)]
    subprocess.run(command(*arguments), check=True, stdout=subprocess.DEVNULL)
    return steps


def _wait_for_training(process: subprocess.Popen[bytes], out: Path, *, after: int) -> None:
    """Wait until the run has logged a step, so that the kill hits it at work."""
    while process.poll() is None and "step " not in _log(out)[after:]:
        time.sleep(0.05)


def _log(out: Path) -> str:
    log = out / "log.txt"
    return log.read_text() if log.exists() else ""
