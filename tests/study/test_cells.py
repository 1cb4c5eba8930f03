"""What a study says about its cells, whatever lies in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clove_ssl.errors import UserError
from clove_ssl.study.cells import StudyFolder, find_cell
from clove_ssl.study.costs import read_speeds


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "an unknown reason"), (b"a\nlast\xe9\n", "last\\xe9"), (None, "")],
)
def test_the_reason_of_a_failure_may_be_anything(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    folder = StudyFolder(tmp_path)
    (tmp_path / "cells").mkdir()
    if content is not None:
        folder.failure("probe/a").write_bytes(content)
    assert folder.why_failed("probe/a") == told


@pytest.mark.parametrize("asked", ["²", "9" * 5000, "-1", ""])
def test_what_is_no_number_of_a_cell_is_refused(asked: str) -> None:
    with pytest.raises(UserError, match="is no cell"):
        find_cell((), asked)


@pytest.mark.parametrize("speed", [10**400, "9", None, -1, float("nan")])
def test_a_speed_that_is_none_is_refused(tmp_path: Path, speed: object) -> None:
    line = {"name": "step", "method": ["a"], "backbone": {}, "images_per_second": speed}
    (tmp_path / "bench.jsonl").write_text(json.dumps(line))
    with pytest.raises(UserError, match="expected images per second"):
        read_speeds([tmp_path / "bench.jsonl"])


def test_names_and_nesting_of_measurements_may_be_anything(tmp_path: Path) -> None:
    line = {"name": "step", "method": ["a"], "backbone": {}, "images_per_second": 3}
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps(line))
    assert read_speeds([path]).of_method("clove", "resnet18") is None
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="no file of measurements"):
        read_speeds([path])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        read_speeds([tmp_path / "pipe"])
