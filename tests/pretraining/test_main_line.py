"""How many files a reader opens who follows ``clove pretrain`` from the command to a step."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import clove_ssl
from clove_ssl import cli

PACKAGE = Path(clove_ssl.__file__).parent
MAIN_LINE = ("cli.py", "whole_runs.py", "pretraining/", "training/")
TINY = {
    "--method.views.global-size": "64",
    "--method.views.local-size": "32",
    "--method.whole.width": "64",
    "--method.projector.hidden": "32",
    "--backbone.name": "timm:test_resnet",
    "--batch-size": "4",
    "--steps": "2",
    "--workers": "0",
    "--device": "cpu",
}


class Trace:
    """Files with functions of the main line, or with functions that it calls."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._known: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        called = self._file(frame.f_code) if event == "call" else None
        if called is None:
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(PACKAGE)):
            caller = caller.f_back  # such as contextlib, between a block and its context manager
        calling = None if caller is None else self._file(caller.f_code)
        if called.startswith(MAIN_LINE) or (calling or "").startswith(MAIN_LINE):
            self.files.add(called)

    def _file(self, code: CodeType) -> str | None:
        """The file of a function of ours; bodies of modules and classes are none."""
        if code not in self._known:
            path = Path(code.co_filename)
            is_function = bool(code.co_flags & 1)  # CO_OPTIMIZED
            ours = is_function and path.is_relative_to(PACKAGE)
            self._known[code] = path.relative_to(PACKAGE).as_posix() if ours else None
        return self._known[code]


@pytest.mark.usefixtures("unmeasured")
def test_the_main_line_of_a_run_passes_forty_files_at_most(tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    for number in range(4):  # which come twice, so they are kept
        pixels = np.full((96, 96, 3), 30 * number, np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.jpg")
    options = {"--data": str(photos), "--out": str(out), **TINY}
    words = [word for option in options.items() for word in option]
    trace, before = Trace(), sys.getprofile()
    sys.setprofile(trace)
    try:
        assert cli.main(["pretrain", "clove-plus-r18-small", *words]) == 0
    finally:
        sys.setprofile(before)
    assert {"cli.py", "training/loop.py", "methods/clove_plus/method.py"} <= trace.files
    assert len(trace.files) <= 40, sorted(trace.files)
