"""What ``clove show``, ``clove report``, ``clove watch`` and ``clove data`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl.config.ranges import Positive, Range, Ranged, Seed, Share

PictureKind = Literal["views", "matches", "attention", "similarity", "features"]
PICTURES: dict[PictureKind, str] = {
    "views": "Views and where they were cut out",
    "matches": "Cells of two views that show the same place",
    "attention": "What the cell in the ring looks at",
    "similarity": "Cells that are similar to the one in the ring",
    "features": "Features as colours",
}
"""All pictures with their titles, in the order of a report."""


@dataclass(frozen=True, kw_only=True)
class ShowConfig(Ranged):
    """Draw the inputs of a run and what it has learned, as one PNG sheet."""

    what: Annotated[PictureKind, tyro.conf.Positional]
    """``views``: the crops of a run on their images; ``matches``: lines between matching cells of
    two views; ``attention``: what a cell attends to, by head; ``similarity``: how similar a cell is
    to all cells of other images; ``features``: principal components of features as colours."""
    run: Annotated[Path, tyro.conf.Positional]
    """A run, finished or not; for ``similarity`` and ``features`` also any backbone file."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Images or folders of them; by default images of the run's own data, or built-in scenes."""
    out: Path | None = None
    """The PNG to write; by default inside pictures/ of the run, or beside the file."""
    count: Annotated[int, Range(1, 1000)] = 4
    """Largest number of images on the sheet, if none or a folder is named."""
    at: tuple[Share, Share] = (0.5, 0.5)
    """Position of the chosen cell, as fractions of the image's width and height, from 0 to 1
    (attention, similarity)."""
    branch: Literal["student", "teacher"] | None = None
    """The network to look at; by default student and teacher (features), the student (attention),
    or the exported one (similarity)."""
    stage: str | None = None
    """Feature map, such as c4; by default the one that was pre-trained (similarity, features)."""
    enlarge: Annotated[float, Range(0.1, 16)] = 2.0
    """Shorter side of the input, as a multiple of the side of a large view (attention, similarity,
    features)."""
    slide: Annotated[int, Range(1, 32)] = 2
    """Shifts of the input within a cell, per axis; each adds resolution without changing the scale
    of objects (similarity, features)."""
    epoch: Annotated[int, Range(0, 10**6)] = 0
    """Epoch whose random numbers are used: on the run's own images, these are the views of that
    epoch (views, matches)."""
    threshold: Positive | None = None
    """Cell diagonals within which cells match; by default the method's own (matches)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Write one HTML page about one or several runs, of pre-training and of fine-tuning."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories."""
    out: Path | None = None
    """The page; by default report.html in the run, or in the current folder for several runs."""
    pictures: bool = True
    """Draw pictures that a run does not have yet."""


@dataclass(frozen=True, kw_only=True)
class WatchConfig(Ranged):
    """Serve the report of runs on this machine while they are in progress; nothing is written."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories."""
    port: Annotated[int, Range(0, 65535)] = 8760
    """Port of the page; 0 takes any free one."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Ranged):
    """Show what is in a folder or file of labelled images, without training on it."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder or file of COCO, VOC, YOLO or LabelMe labels, or of masks."""
    out: Path | None = None
    """Folder for sheets of labelled examples, one for every split."""
    pictures: Annotated[int, Range(1, 300)] = 12
    """Number of examples on a sheet."""
    validation_share: Annotated[float, Range(0, 0.9, above=True)] = 0.2
    """Share of the images used for validation, if the data has no split for it."""
    split_seed: Seed = 0
    """Decides, together with the image names, which images these are."""
