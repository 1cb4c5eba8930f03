"""What cannot fit is refused before anything takes memory, with the figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders.runs.contrastive_runs import small_method
from builders.runs.tiny_runs import tiny_config

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.pretraining import CheckpointConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining.choices import PretrainNeeds, check_needs, decide_sizes
from clove_ssl.pretraining.going_on import unrestored_method
from clove_ssl.training import plan as shared
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.processes import Process

ALONE = Process(0, 1, 0, 1, torch.device("cpu"))


def check(config: PretrainConfig) -> PretrainNeeds:
    needs = check_needs(config, ALONE, decide_sizes(config, ALONE, images=10**6))
    assert needs is not None
    return needs


def test_the_size_of_a_checkpoint_is_known_before_it_is_written(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run")
    method = unrestored_method(config)
    optimizer = build_optimizer(config.optimizer, method, 0.1)
    sum(weight.sum() for weight in method.parameters() if weight.requires_grad).backward()
    optimizer.step()
    store = CheckpointStore(tmp_path, keep=1, warn=print)
    state = {"learner": method.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    size = store.save(1, state).stat().st_size
    estimate = check(config).memory.checkpoint
    assert estimate <= size <= 1.5 * estimate + 200_000  # names and the archive come on top


def test_the_estimate_draws_no_random_number(tmp_path: Path) -> None:
    config, before = tiny_config(tmp_path / "run"), torch.get_rng_state()
    check(config)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": small_method("moco", queue_size=2**24, head=replace(
            small_method("moco").head, out=2**16))},
        {"batch_size": 2**20, "micro_batch": 2**20},
    ],
    ids=["queue", "batch"],
)  # fmt: skip
def test_a_run_that_memory_cannot_hold_is_refused(
    changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "total_memory", lambda: 2**34)
    config = tiny_config(tmp_path / "run", **changes)
    with pytest.raises(UserError, match=r"needs at least .* GiB of memory.*has 16.0 GiB.*Lower"):
        check(config)


def test_checkpoints_that_the_disk_cannot_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = SimpleNamespace(total=2**30, used=0, free=100_000)
    monkeypatch.setattr(shared.shutil, "disk_usage", lambda place: facts)
    config = tiny_config(tmp_path / "run", checkpoints=CheckpointConfig(keep=3))
    files.save(config, tmp_path / "config.yaml")
    start = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(config.out)]
    assert cli.main(start) == 2
    said = capsys.readouterr().err
    assert "The checkpoints of this run need" in said
    assert "0.1 MiB free" in said
    assert not config.out.exists()


def test_a_run_that_lasts_for_months_on_any_machine_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", steps=10**9, batch_size=2**15)
    with pytest.raises(UserError, match=r"1,000,000,000 steps .* take at least 3792 d"):
        check(config)
    check(tiny_config(tmp_path / "run", steps=10**7))
