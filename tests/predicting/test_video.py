"""Videos that end before their end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.predicting.inputs import Inputs

BREAKS_OFF = """
from types import SimpleNamespace
import numpy as np

class Container(SimpleNamespace):
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def decode(self, video):
        yield SimpleNamespace(to_ndarray=lambda format: np.zeros((4, 6, 3), np.uint8))
        raise ArithmeticError("invalid data found")

def open(path):
    return Container(streams=SimpleNamespace(video=[SimpleNamespace(frames=5)]))
"""


def test_a_video_that_breaks_off_is_named_behind_its_last_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "av.py").write_text(BREAKS_OFF)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.mp4").touch()
    first, second = Inputs((tmp_path / "a.mp4",))
    assert isinstance(first.pixels, Tensor)
    assert second.pixels == "the video cannot be read on (invalid data found)"
    assert second.name.endswith("a.mp4:frame 2")
    del sys.modules["av"]  # it is none


def test_frames_that_are_missing_are_told(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "a.avi"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 5.0, (64, 48))
    frame = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    for _ in range(12):
        video.write(frame)
    video.release()
    assert all(isinstance(image.pixels, Tensor) for image in Inputs((path,)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    *_, last = Inputs((path,))
    assert isinstance(last.pixels, str)
    assert "claims 12 frames" in last.pixels


def test_a_pipe_is_no_video(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(UserError, match=r"a.mp4 is no file"):
        Inputs((tmp_path / "a.mp4",))
