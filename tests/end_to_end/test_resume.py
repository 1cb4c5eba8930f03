"""A run that was interrupted ends like one that was not, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from references.tiny_runs import tiny_config, tiny_method

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.engine import pretraining
from clove_ssl.engine.checkpoints import CheckpointStore
from clove_ssl.engine.loop import TrainingLoop
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics

TIMING = ("images_per_second", "data_wait")


class Crash(Exception):
    """Stands for anything that ends a process."""


def crash_after(steps: int, monkeypatch: pytest.MonkeyPatch, config: PretrainConfig) -> None:
    """Run until ``steps`` steps are done, then die without cleaning up."""
    train_step = TrainingLoop._train_step

    def dying(loop: TrainingLoop, *args: Any) -> bool:
        if loop.step == steps:
            raise Crash
        return train_step(loop, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_train_step", dying)
        with pytest.raises(Crash):
            pretraining.pretrain(config)


def final_state(run: Path) -> dict[str, Any]:
    store = CheckpointStore(RunDirectory(run).checkpoints, keep=2, warn=print)
    state = store.load_latest()
    assert state is not None
    return state


def losses(run: Path) -> list[dict[str, float]]:
    lines = read_metrics(RunDirectory(run))
    return [{k: v for k, v in line.items() if k not in TIMING} for line in lines]


def assert_same(a: Any, b: Any) -> None:
    """Equal to the last bit, through nested containers."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


@pytest.mark.parametrize("variant", ["intra", "inter", "accumulated"])
def test_a_crashed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    changes: dict[str, Any] = {"micro_batch": 4} if variant == "accumulated" else {}
    if variant == "inter":
        changes["method"] = tiny_method(negatives="inter", queue_size=24)
    pretraining.pretrain(tiny_config(tmp_path / "whole", **changes))
    crash_after(2, monkeypatch, tiny_config(tmp_path / "torn", **changes))
    result = pretraining.resume(tmp_path / "torn")
    assert result.finished
    assert_same(final_state(tmp_path / "torn"), final_state(tmp_path / "whole"))
    assert losses(tmp_path / "torn") == losses(tmp_path / "whole")


def test_workers_do_not_change_a_run(tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "none"))
    config = tiny_config(tmp_path / "two")
    data = config.data.__class__(**{**config.data.__dict__, "workers": 2})
    pretraining.pretrain(tiny_config(tmp_path / "two", data=data))
    assert losses(tmp_path / "none") == losses(tmp_path / "two")


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "run"))
    before = final_state(tmp_path / "run")
    card = (tmp_path / "run" / "export" / "model_card.md").read_text()
    assert pretraining.resume(tmp_path / "run").finished
    assert_same(final_state(tmp_path / "run"), before)
    assert (tmp_path / "run" / "export" / "model_card.md").read_text() == card


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_after(2, monkeypatch, tiny_config(tmp_path / "run"))
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("scenes_count: 20", "scenes_count: 21"))
    with pytest.raises(UserError, match="has 21 images, but this run was started with 20"):
        pretraining.resume(tmp_path / "run")
