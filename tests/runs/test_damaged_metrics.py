"""metrics.jsonl is a witness: damaged lines are named and left out, and everything goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.runs.interruptions import assert_same, crash_after, final_state
from builders.runs.tiny_runs import tiny_config

from clove_ssl import cli
from clove_ssl.pretraining.run import pretrain
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import MetricsFile, damaged_lines, read_metrics

DAMAGED = {
    "a flipped byte": b'{"step": 2, "lo\xf3s": 1.0}',
    "a flipped quote": b'{"step": 2, #loss": 1.0}',
    "text for a number": b'{"step": 2, "loss": "1.0"}',
    "text for a step": b'{"step": "2", "loss": 1.0}',
    "a list": b'{"step": 2, "loss": [1.0]}',
    "nothing": b'{"step": 2, "loss": null}',
    "a truth value": b'{"step": true, "loss": 1.0}',
    "no step": b'{"loss": 1.0}',
    "a negative step": b'{"step": -3, "loss": 1.0}',
    "an infinite step": b'{"step": Infinity, "loss": 1.0}',
    "no object": b"[1, 2]",
    "a huge number": b'{"step": 2, "loss": 1' + b"0" * 400 + b"}",
    "a huge step": b'{"step": 1' + b"0" * 5000 + b"}",
    "deep nesting": b'{"step": 2, "loss": ' + b"[" * 100_000 + b"}",
    "zeros": bytes(512),
}
GOOD = b'{"step": 1, "loss": 3.0}\n'


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_line_is_left_out_and_named(kind: str, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.metrics.write_bytes(GOOD + DAMAGED[kind] + b"\n" + GOOD.replace(b"1", b"3"))
    assert [row["step"] for row in read_metrics(run)] == [1, 3]
    assert f"{run.metrics}: line 2 is damaged and left out" in damaged_lines(run)
    MetricsFile(run.metrics, start_step=1).close()
    assert run.metrics.read_bytes() == GOOD


def test_losses_that_are_not_finite_are_no_damage(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.metrics.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": -Infinity}\n{"step": 3,')
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    assert damaged_lines(run) == ""


def test_many_damaged_lines_are_counted(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.metrics.write_bytes(b"x\n" * 20)
    assert "lines 1, 2, 3, 4, 5 and 15 more are damaged" in damaged_lines(run)


def add_damage(run: RunDirectory) -> None:
    odd = b'{"step": 3, "loss": Infinity, "epoch": NaN}\n{"step": 3, "epoch": 1e-320}\n'
    damaged = b"".join(line + b"\n" for line in DAMAGED.values())
    run.metrics.write_bytes(damaged + run.metrics.read_bytes() + odd + damaged)


def test_a_run_with_a_damaged_log_is_resumed_examined_reported_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tiny_config(tmp_path / "whole"), tiny_config(tmp_path / "broken")
    pretrain(whole)
    crash_after(3, monkeypatch, broken)
    run = RunDirectory(broken.out)
    for command in (["doctor", str(run.path)], ["report", str(run.path), "--no-pictures"]):
        add_damage(run)
        capsys.readouterr()
        assert cli.main(command) in (0, 1)
        assert "lines 1, 2, 3, 4, 5 and" in capsys.readouterr().out.replace("\n", " ")
    assert cli.main(["resume", str(run.path)]) == 0
    assert "are damaged and left out" in run.log.read_text()
    assert_same(final_state(run.path), final_state(whole.out))
    assert damaged_lines(run) == ""
    add_damage(run)
    out = str(tmp_path / "a.safetensors")
    assert cli.main(["export", str(run.path), "--to", "safetensors", "--out", out]) == 0
    assert "are damaged and left out" in capsys.readouterr().out
