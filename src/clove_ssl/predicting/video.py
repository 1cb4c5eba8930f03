"""Frames of a video file, by PyAV or OpenCV, whichever is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.decode import DecodeError
from clove_ssl.errors import UserError

_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".ts"),
)

_MISCOUNTED = 2  # frames by which headers of good files are wrong
_MISCOUNTED_SHARE = 0.05


def is_video_name(name: str) -> bool:
    """Whether the suffix promises a video."""
    return name.lower().endswith(_SUFFIXES)


class Video:
    """A video that can be opened.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._program = _find_program()
        if self._program == "av":
            with self._open_av() as container:
                self.frames = container.streams.video[0].frames or None
        else:
            capture = self._open_cv2()
            count = int(capture.get(import_module("cv2").CAP_PROP_FRAME_COUNT))
            self.frames = count if count > 0 else None
            capture.release()

    def read(self, *, every: int) -> Iterator[tuple[int, Tensor]]:
        """The numbers of frames, from 1 on, and their pixels, uint8 (3, H, W) RGB.

        Where a file is damaged in the middle, ``DecodeError`` comes behind the last good frame.
        """
        read = self._read_av if self._program == "av" else self._read_cv2
        for number, pixels in enumerate(read()):
            if number % every == 0:
                yield number + 1, torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)

    def _read_av(self) -> Iterator[Any]:
        with self._open_av() as container:
            frames = container.decode(video=0)
            while True:
                try:
                    pixels = next(frames).to_ndarray(format="rgb24")
                except StopIteration:
                    return
                except Exception as error:  # those of FFmpeg, one class for each
                    raise DecodeError(f"the video cannot be read on ({error})") from None
                yield pixels

    def _read_cv2(self) -> Iterator[Any]:
        capture, count = self._open_cv2(), 0
        try:
            while (answer := capture.read())[0]:
                count += 1
                yield answer[1][..., ::-1]
        finally:
            capture.release()
        missing = (self.frames or 0) - count  # OpenCV does not tell an end from a fault
        if missing > max(_MISCOUNTED, _MISCOUNTED_SHARE * count):
            raise DecodeError(f"the video ends here, although it claims {self.frames:,} frames")

    def _open_av(self) -> Any:
        try:
            container = import_module("av").open(str(self.path))
        except Exception as error:  # its errors are those of FFmpeg, one class for each
            raise self._unreadable(str(error)) from None
        if not container.streams.video:
            raise self._unreadable("it has no pictures")
        return container

    def _open_cv2(self) -> Any:
        # What its FFmpeg has to say about a bad file would stand between our lines.
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
        capture = import_module("cv2").VideoCapture(str(self.path))
        if not capture.isOpened():
            raise self._unreadable("OpenCV does not open it")
        return capture

    def _unreadable(self, reason: str) -> UserError:
        return UserError(
            f"{self.path} is no video that can be read: {reason}. Cut it into images with another "
            "program, such as ffmpeg -i VIDEO frames/%06d.jpg, and name that folder."
        )


def _find_program() -> str:
    for module in ("av", "cv2"):
        if find_spec(module) is not None:
            return module
    raise UserError(
        "Videos need a decoder, and neither PyAV nor OpenCV is installed. Type: pip install av; or "
        "name a folder with the frames as images."
    )
