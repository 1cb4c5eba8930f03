"""What ``clove predict`` and ``clove evaluate`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.ranges import BatchSize, Range, Ranged, Share

ResultFormat = Literal["coco", "yolo", "csv", "masks"]


@dataclass(frozen=True, kw_only=True)
class PredictConfig(Ranged):
    """Apply a fine-tuned model to images: pictures with what was found, and the results as
    files."""

    model: Annotated[Path, tyro.conf.Positional]
    """A finished run of ``clove finetune``, or its export/model.safetensors."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Images, folders of them (searched recursively), .tar shards and video files."""
    out: Path
    """Folder for pictures and results; must be new or empty."""
    format: tuple[ResultFormat, ...] = ()
    """Format of the results: ``coco`` (one JSON), ``yolo`` (a text file per image), ``csv`` (one
    table), ``masks`` (a PNG per image); several may be named. By default coco for detectors, masks
    for segmenters."""
    score: Share = 0.5
    """Objects with a lower score are left out of pictures and results."""
    draw: bool = True
    """Write the images with what was found in them."""
    every: Annotated[int, Range(1, 10**6)] = 1
    """Take every N-th frame of a video."""
    batch: BatchSize | None = None
    """Images processed together, if they have the same size; by default 8 on a GPU, 1 on a CPU.
    Results do not depend on it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Ranged):
    """Score a fine-tuned model on another data set."""

    model: Annotated[Path, tyro.conf.Positional]
    """A finished run of ``clove finetune``, or its export/model.safetensors."""
    data: LabelledDataConfig = field(default_factory=LabelledDataConfig)
    out: Path | None = None
    """Folder for predictions, scores and pictures; by default evaluated/NAME inside the run."""
    pictures: Annotated[int, Range(0, 10_000)] = 12
    """Number of test images whose predictions are drawn beside the ground truth."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
