"""The pictures of a run inside a page: as data, in a moderate size."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image, features

from clove_ssl.config.showing import PICTURES, PictureKind
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError
from clove_ssl.report.runs import ReportedRun

_MOST_WIDTH = 1250  # pixels
_WEBP_SIDE = 16_383  # pixels; the format has no larger ones
MAIN_PICTURES: tuple[PictureKind, ...] = ("features", "matches", "similarity")
"""What is shown at once, and drawn at the end of every run."""
_PREDICTIONS = "Test images: ground truth on the left, predictions on the right"
_MEANINGS: dict[PictureKind, str] = {
    "features": "What looks alike to the network has the same colour. Good features follow the "
    "things in the picture.",
    "similarity": "Bright places look to the network like the place in the ring.",
    "matches": "What the network learns from: places that both views show belong together.",
    "views": "What the network sees of an image.",
    "attention": "Where the cell in the ring takes its context from, by head.",
}


@dataclass(frozen=True)
class InlinePicture:
    """A picture as text."""

    title: str
    format: str
    data: str
    width: int
    height: int

    @property
    def is_wide(self) -> bool:
        """Whether it needs the whole width of a page."""
        return self.width > 1.6 * self.height


@dataclass(frozen=True)
class PictureGroup:
    """The pictures of one kind, of all runs that have it."""

    title: str
    meaning: str
    is_main: bool  # shown at once; others are folded
    pictures: list[tuple[ReportedRun, InlinePicture]]

    @property
    def is_narrow(self) -> bool:
        """Whether another group fits beside it."""
        return len(self.pictures) == 1 and not self.pictures[0][1].is_wide


def picture_groups(runs: Sequence[ReportedRun]) -> list[PictureGroup]:
    """What ``clove show`` drew of pre-trainings, and the predictions of fine-tunings, by kind."""
    groups: dict[str, PictureGroup] = {}
    for kind in (*MAIN_PICTURES, *(kind for kind in PICTURES if kind not in MAIN_PICTURES)):
        for run in runs:
            path = run.run.pictures / f"{kind}.png"
            if not run.is_finetuning and path.is_file():
                group = PictureGroup(PICTURES[kind], _MEANINGS[kind], kind in MAIN_PICTURES, [])
                _add(groups.setdefault(kind, group), run, path)
    for run in runs:
        paths = sorted(run.run.pictures.glob("*.png")) if run.is_finetuning else []
        for number, path in enumerate(paths):
            group = PictureGroup(_PREDICTIONS, "", number == 0, [])
            _add(groups.setdefault(f"predictions {number}", group), run, path)
    return sorted(groups.values(), key=lambda group: not group.is_main)


def _add(group: PictureGroup, run: ReportedRun, path: Path) -> None:
    group.pictures.append((run, _inline(path, group.title, path.stat().st_mtime_ns)))


@lru_cache(maxsize=64)
def _inline(path: Path, title: str, changed: int) -> InlinePicture:
    """A PNG file as text, made smaller where it is large.

    Kept until the file has ``changed``, because a live page is made every few seconds.
    """
    try:
        pixels = decode(read_whole(path))
    except (OSError, DecodeError) as error:
        raise UserError(
            f"{path} is no picture that can be read: {error}. Delete it, then: clove report RUN"
        ) from None
    shown = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    if shown.width > _MOST_WIDTH:
        height = max(1, round(shown.height * _MOST_WIDTH / shown.width))
        shown = shown.resize((_MOST_WIDTH, height), Image.Resampling.LANCZOS)
    kind, content = _compressed(shown)
    text = base64.b64encode(content).decode()
    return InlinePicture(title, kind, text, shown.width, shown.height)


def _compressed(picture: Image.Image) -> tuple[str, bytes]:
    """The picture in few bytes with its letters legible; what browsers call the format."""
    buffer = io.BytesIO()
    if features.check("webp") and picture.height <= _WEBP_SIDE:
        picture.save(buffer, format="WEBP", quality=88, method=4)
        return "webp", buffer.getvalue()
    picture.quantize(256).save(buffer, format="PNG", optimize=True)
    return "png", buffer.getvalue()
