"""Everything that can influence a pre-training run.

Configs are frozen dataclasses: typed, importable without torch, and complete.
The docstring under a field is its ``--help`` text and its entry in the docs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.limits import check_least, check_positive, check_seed
from clove_ssl.config.probing import RunProbeConfig
from clove_ssl.errors import UserError
from clove_ssl.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where images come from and how they are read."""

    source: Annotated[str, tyro.conf.arg(aliases=["--data"])] = "scenes"
    """Folder of images (searched recursively), text file with one path per line, pattern of .tar
    shards such as "shards/{000000..000099}.tar" (also behind a URL such as s3://, with the extra
    ``stream``), or ``scenes`` for the built-in images."""
    max_bad: float = 0.001
    """Share of unreadable files at which the run stops; ten are always forgiven."""
    max_pixels: int = 100_000_000
    """Larger images are refused as decompression bombs."""
    workers: int | None = None
    """Processes that read and render; by default one per core (16 at most), 0 for none."""
    render: Literal["auto", "cpu", "gpu"] = "auto"
    """Where views are made: by the workers, or on the GPU that trains, which then also decodes
    ordinary JPEGs if it can. ``auto`` takes the GPU where there is one and Triton works."""
    prefetch: int = 2
    """Batches each worker prepares ahead."""
    scenes_count: int = 20_000
    """Number of built-in images."""
    scenes_size: int = 160
    """Side of a built-in image in pixels."""

    def __post_init__(self) -> None:
        check_least(0, "data", max_bad=self.max_bad, workers=self.workers)
        check_least(
            1,
            "data",
            max_pixels=self.max_pixels,
            prefetch=self.prefetch,
            scenes_count=self.scenes_count,
            scenes_size=self.scenes_size,
        )


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The network that is pre-trained."""

    name: str = "resnet50"
    """Any of ``clove list backbones``: torchvision names, or ``timm:NAME`` with that extra."""
    stage: Literal["last", "c2", "c3", "c4", "c5"] = "last"
    """Feature map the method works on, by its depth: c2 has stride 4, c5 (the last) stride 32."""
    output_stride: Literal[16, 32] = 32
    """16 dilates the last stage instead of striding it (ResNets only)."""
    zero_init_last: bool = True
    """Start every residual block of a ResNet as the identity (last batch-norm scale zero)."""
    weights: Path | None = None
    """Start from this backbone file or run instead of random weights."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer and learning-rate schedule."""

    name: Literal["lars", "sgd", "adamw"] = "lars"
    lr: float = 1.0
    """Learning rate per 256 images of ``batch_size``; the peak is printed at the start."""
    scale_lr: Literal["linear", "none"] = "linear"
    """``linear``: peak = lr * batch_size / 256; ``none``: peak = lr."""
    momentum: float = 0.9
    """Momentum of LARS and SGD."""
    weight_decay: float = 2e-5
    """Weight decay of what ``decay`` names."""
    decay: Literal["weights", "all"] = "weights"
    """What decays: ``weights`` spares parameters of one dimension (biases, norms); ``all`` does
    not, as in MoCo's and torchvision's code. LARS spares them in any case."""
    trust: float = 0.001
    """Trust coefficient of LARS; parameters of one dimension are not rescaled."""
    warmup_epochs: float = 5.0
    """Linear warm-up."""
    warmup_start: float = 0.01
    """Learning rate at the first step, as a share of the peak."""
    final_lr: float = 0.01
    """Learning rate at the end of the cosine, as a share of the peak."""

    def __post_init__(self) -> None:
        if self.name == "lars" and self.decay == "all":
            raise UserError(
                "optimizer.decay is all, but LARS never decays parameters of one dimension. Give "
                "--optimizer.decay weights, or another --optimizer.name."
            )
        check_positive("optimizer", lr=self.lr)
        check_least(
            0,
            "optimizer",
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            trust=self.trust,
            warmup_epochs=self.warmup_epochs,
            warmup_start=self.warmup_start,
            final_lr=self.final_lr,
        )

    def peak_lr(self, batch_size: int) -> float:
        """The highest learning rate of the schedule."""
        return self.lr * batch_size / 256 if self.scale_lr == "linear" else self.lr


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the state of a run is written, and how much of it is kept."""

    every_epochs: float = 1.0
    """Epochs between checkpoints; fractions are allowed."""
    min_steps: int = 100
    """Steps between checkpoints at least, since epochs over few images are short."""
    keep: int = 2
    """Most recent checkpoints kept; two survive damage to the last one."""
    milestone_epochs: int | None = None
    """Keep a checkpoint for good every this many epochs."""

    def __post_init__(self) -> None:
        check_positive("checkpoints", every_epochs=self.every_epochs)
        check_least(
            1,
            "checkpoints",
            min_steps=self.min_steps,
            keep=self.keep,
            milestone_epochs=self.milestone_epochs,
        )


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """What is written while a run is going; ``metrics.jsonl`` always is."""

    every: int = 20
    """Optimizer steps between log lines."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run directory (extra ``tensorboard``)."""
    wandb_project: str | None = None
    """Also send metrics to this Weights & Biases project (extra ``wandb``)."""

    def __post_init__(self) -> None:
        check_least(1, "logging", every=self.every)


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """When a run counts as collapsing; see docs/health.md."""

    min_std: float = 0.2
    """Warn when features spread less than this share of an ideal spread."""
    min_rank: float = 4.0
    """Warn when features effectively use fewer dimensions than this."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Pre-train a backbone on unlabelled images."""

    out: Path
    """Run directory; must be new or empty."""
    data: DataConfig = field(default_factory=DataConfig)
    method: MethodConfig = field(default_factory=lambda: METHODS.load("clove")())
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    probe: RunProbeConfig = field(default_factory=RunProbeConfig)
    epochs: int = 200
    """Passes over the images."""
    steps: int | None = None
    """Optimizer steps, instead of ``epochs``."""
    batch_size: int = 2048
    """Images per optimizer step over all processes; each one's share is derived."""
    micro_batch: int | None = None
    """Images per forward pass and process, with gradients accumulated over several; batch norm
    sees the micro-batches of all processes together. By default at most 256 (32 on a CPU)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the network; losses and teacher weights are always fp32, but for products
    whose factors are rounded to 11 bits (TF32) unless the network is fp32, too."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Compile the networks with torch.compile, one graph per view size: faster steps after a
    minute or two of waiting. ``auto`` does it on a GPU for runs of 3,000 steps and more."""
    activation_memory: float = 1.0
    """Share of the activations that compiled networks keep for the backward pass; the rest is
    computed again, which saves memory and costs time."""
    sync_norm: bool = True
    """Share batch-norm statistics between processes."""
    deterministic: bool = True
    """Repeat a run bit for bit on the same GPU; off allows faster kernels. CPUs always repeat."""
    seed: int = 0
    """Determines initial weights, image order and augmentation."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.epochs < 1 or (self.steps is not None and self.steps < 1):
            raise UserError(
                f"batch_size={self.batch_size}, epochs={self.epochs}, steps={self.steps}: "
                "each must be at least 1. For a short trial try --steps 10 --batch-size 16."
            )
        check_least(1, micro_batch=self.micro_batch)
        check_seed(self.seed)
        check_activation_memory(self.activation_memory)
        if not self.method.trains and (self.steps is not None or self.backbone.weights):
            raise UserError(
                f"{self.method.name} trains nothing and keeps the weights of the seed, so "
                f"steps={self.steps} and backbone.weights={self.backbone.weights} would have no "
                "effect. Leave both out."
            )

    def share_per_process(self, processes: int) -> int:
        """Images of a step that one process handles; refuses to round."""
        return share_per_process(self.batch_size, processes)

    def total_steps(self, images: int) -> int:
        """Optimizer steps of the whole run; batches run on across the ends of epochs."""
        if not self.method.trains:
            return 0
        return (
            self.steps
            if self.steps is not None
            else max(1, self.epochs * images // self.batch_size)
        )


def check_activation_memory(share: float) -> None:
    """Refuse what is not a share of the activations."""
    if not 0 < share <= 1:
        raise UserError(
            f"activation_memory is {share}, but it is a share above 0 and up to 1. Leave it out to "
            "keep all activations, or try --activation-memory 0.5."
        )


def share_per_process(batch_size: int, processes: int) -> int:
    """Images of a step that one process handles; refuses to round."""
    share, rest = divmod(batch_size, processes)
    if rest or not share:
        raise UserError(
            f"batch_size={batch_size} does not divide over {processes} processes. "
            f"Try --batch-size {max(1, share) * processes} or {(share + 1) * processes}."
        )
    return share
