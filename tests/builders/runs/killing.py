"""Commands in processes of their own, which tests kill at random moments and resume.

The processes are forked: they have torch already, and starting it takes longer than the runs.
Forked processes must not use several threads, so neither may the runs they are compared with.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.weights.safetensors_file import content_hash, read_backbone_file


def start(*arguments: str, said: Path | None = None) -> BaseProcess:
    """Start a ``clove`` command; what it says goes to a file, or nowhere."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(arguments, said))
    process.start()
    return process


def wait_until(process: BaseProcess, condition: Callable[[], bool]) -> None:
    """Wait for something that a process will do."""
    while not condition():
        assert process.is_alive(), f"the process ended with {process.exitcode}"
        time.sleep(0.02)


def has_said(log: Path, words: str, *, after: int = 0) -> bool:
    """Whether a log holds some words, behind its first characters."""
    return log.exists() and words in log.read_text()[after:]


def weights_hash(run: Path) -> str:
    """Hash of all weights a run has exported, computed from the tensors themselves."""
    state, _ = read_backbone_file(RunDirectory(run).backbone)
    return content_hash(state)


def run_with_kills(
    config: PretrainConfig, *, kills: int, seed: int, longest_pause: float = 2.5
) -> list[int]:
    """Finish the run at ``config.out`` in spite of ``kills`` kills; gives the steps they hit.

    A kill comes at a random moment within ``longest_pause`` seconds of a logged step.
    """
    chance = random.Random(seed)
    file, log = config.out.with_suffix(".yaml"), config.out / "log.txt"
    files.save(config, file)
    arguments = ["pretrain", "--config", str(file), "--out", str(config.out)]
    steps = []
    for _ in range(kills):
        before = len(log.read_text()) if log.exists() else 0
        process = start(*arguments)
        while process.is_alive() and not has_said(log, "step ", after=before):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, longest_pause))
        process.kill()
        process.join()
        steps.append(log.read_text().count("step "))
        arguments = ["resume", str(config.out)]
    process = start(*arguments)
    process.join()
    assert process.exitcode == 0
    return steps


def _command(arguments: tuple[str, ...], said: Path | None) -> None:
    torch.set_num_threads(1)
    with open(said or os.devnull, "w") as output:
        os.dup2(output.fileno(), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - pytest has replaced it
        code = cli.main(arguments)
        sys.stdout.flush()
    os._exit(code)
