"""What ``clove bench`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from clove_ssl.config.bases import MethodConfig, TaskConfig
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.config.ranges import BatchSize, PositiveShare, Range, Ranged, Steps, Workers
from clove_ssl.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Ranged):
    """Measure the floor, the step, rendering, reading, and a whole run, side by side.

    The name of a task, such as ``clove bench voc-c4``, measures its fine-tuning instead.
    """

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    method: MethodConfig = field(default_factory=lambda: METHODS.load("clove")())
    batch: BatchSize = 256
    """Images per step."""
    data: str | None = None
    """Images to read, as for ``clove pretrain``; by default JPEGs of 427x320 that are generated."""
    workers: Workers | None = None
    """Reading processes; by default one per core, 16 at most."""
    cache: Literal["auto", "gpu", "ram", "off"] = "auto"
    """Where decoded photos are kept in the whole run, as for ``clove pretrain``; reading and
    rendering are measured with each choice."""
    steps: Steps = 20
    """Steps per measurement, after three to warm up."""
    run_steps: Steps = 60
    """Steps of the end-to-end measurement."""
    cores: tuple[Annotated[int, Range(1, 2**16)], ...] = ()
    """Measure the whole run again with only this many CPU cores, once for each number."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    """Compile the networks; ``auto`` compiles the floor and the step on a GPU, and lets the whole
    run decide. Steps that are not compiled are measured as well."""
    activation_memory: PositiveShare = 1.0
    """Share of the activations that the compiled networks of a method keep for the backward pass,
    as for ``clove pretrain``; the floor keeps all."""
    floor: Literal["whole", "parts"] = "whole"
    """Compile the bare backbones of the floor as whole networks, which takes minutes, or in pieces
    as in training."""
    parts: tuple[Literal["step", "data", "run", "growth"], ...] = ("step", "data", "run")
    """What to measure: the floor and the step; reading and rendering, also with cached photos; a
    whole run, which comes first; how cost grows with batch, view sizes, small views and grid."""
    out: Path | None = None
    """Append one JSON line per measurement to this file."""
    trace: Path | None = None
    """Write a trace of three steps to this file, for chrome://tracing or Perfetto, and a table of
    their longest kernels beside it."""


@dataclass(frozen=True, kw_only=True)
class TaskBenchConfig(Ranged):
    """Measure steps of fine-tuning, the bare backbone, and reading, side by side."""

    task: TaskConfig
    data: LabelledDataConfig = field(default_factory=LabelledDataConfig)
    architecture: str = "resnet50"
    """The network, with random weights."""
    batch: BatchSize = 16
    """Images per step."""
    steps: Steps = 20
    """Steps per measurement, after some to warm up."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of the network; ``auto`` takes the fastest that the device has."""
    out: Path | None = None
    """Append one JSON line per measurement to this file."""
