"""What ``clove bench`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from clove_ssl.config.methods.base import MethodConfig
from clove_ssl.config.methods.clove import CLoVEConfig


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Measure the floor, the step, rendering, reading, and a whole run, side by side."""

    backbone: str = "resnet50"
    """Any of ``clove list backbones``."""
    method: MethodConfig = field(default_factory=CLoVEConfig)
    batch: int = 256
    """Images per step."""
    data: str | None = None
    """Images to read, as for ``clove pretrain``; by default JPEGs of 427x320 made for the
    occasion."""
    workers: int | None = None
    """Reading processes; by default one per core, 16 at most."""
    steps: int = 20
    """Steps per measurement, after three to warm up."""
    run_steps: int = 60
    """Steps of the end-to-end measurement."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the networks; ``auto`` does on a GPU."""
    growth: bool = False
    """Also measure how the step grows with batch, image size and number of small views, without
    compilation."""
    out: Path | None = None
    """Append one JSON line per measurement to this file."""
    trace: Path | None = None
    """Write a trace of three steps to this file, for chrome://tracing or Perfetto."""
