"""A run that was interrupted ends like one that was not, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from references.interruptions import assert_same, crash_after, figures, final_state
from references.tiny_runs import tiny_config, tiny_method

from clove_ssl.engine import pretraining
from clove_ssl.errors import UserError


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
    assert figures(tmp_path / "torn") == figures(tmp_path / "whole")


def test_workers_do_not_change_a_run(tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "none"))
    config = tiny_config(tmp_path / "two")
    data = config.data.__class__(**{**config.data.__dict__, "workers": 2})
    pretraining.pretrain(tiny_config(tmp_path / "two", data=data))
    assert figures(tmp_path / "none") == figures(tmp_path / "two")


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
