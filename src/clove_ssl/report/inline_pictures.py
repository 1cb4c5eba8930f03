"""The pictures of a run inside a page: as data, in a moderate size."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image

from clove_ssl.config.showing import PICTURES
from clove_ssl.errors import UserError
from clove_ssl.report.runs import ReportedRun

_MOST_WIDTH = 1250  # pixels


@dataclass(frozen=True)
class InlinePicture:
    """A PNG as text."""

    title: str
    data: str
    width: int
    height: int


def inline_pictures(run: ReportedRun) -> list[InlinePicture]:
    """What ``clove show`` drew of a pre-training run, or the predictions of a fine-tuning run."""
    return [_inline(path, title, path.stat().st_mtime_ns) for path, title in _found(run)]


@lru_cache(maxsize=64)
def _inline(path: Path, title: str, changed: int) -> InlinePicture:
    """A PNG file as text, made smaller where it is large.

    Kept until the file has ``changed``, because a live page is made every few seconds.
    """
    try:
        with Image.open(path) as picture:
            shown = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # what PIL says of damaged files
        raise UserError(
            f"{path} is no picture that can be read: {error}. Delete it, then: clove report RUN"
        ) from None
    if shown.width > _MOST_WIDTH:
        height = round(shown.height * _MOST_WIDTH / shown.width)
        shown = shown.resize((_MOST_WIDTH, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    # 256 colours of its own keep a sheet legible in a third of the bytes.
    shown.quantize(256).save(buffer, format="PNG", optimize=True)
    text = base64.b64encode(buffer.getvalue()).decode()
    return InlinePicture(title, text, shown.width, shown.height)


def _found(run: ReportedRun) -> Iterator[tuple[Path, str]]:
    if run.is_finetuning:
        for path in sorted(run.run.pictures.glob("*.png")):
            yield path, "Test images, the truth on the left, predictions on the right"
        return
    for kind, title in PICTURES.items():
        path = run.run.pictures / f"{kind}.png"
        if path.is_file():
            yield path, title
