"""Everything that can influence a pre-training run.

Configs are frozen dataclasses: typed, importable without torch, and complete.
The docstring under a field is its ``--help`` text and its entry in the docs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.probing import RunProbeConfig
from clove_ssl.config.ranges import (
    BatchSize,
    Epochs,
    LearningRate,
    NonNegative,
    PartialShare,
    Positive,
    PositiveShare,
    Prefetch,
    Range,
    Ranged,
    SceneCount,
    SceneSide,
    Seed,
    Share,
    Steps,
    Workers,
)
from clove_ssl.config.views import ViewSpec
from clove_ssl.errors import UserError, counted
from clove_ssl.registry import METHODS

SCENES = "scenes"
"""Named as a source, the built-in images."""
FEW_IMAGES = 100
_CELL = 32  # pixels of the cells of most last maps


@dataclass(frozen=True, kw_only=True)
class DataConfig(Ranged):
    """Where images come from and how they are read."""

    source: Annotated[str, tyro.conf.arg(aliases=["--data"])] = SCENES
    """Folder of images (searched recursively), text file with one path per line, pattern of .tar
    shards such as "shards/{000000..000099}.tar" (also behind a URL such as s3://, with the extra
    ``stream``), or ``scenes`` for the built-in images."""
    more: tuple[str, ...] = ()
    """Further folders, lists or shards, whose images follow those of ``source`` in this order; on
    the command line simply --data A B."""
    max_bad: Share = 0.001
    """Share of unreadable files above which the run stops; ten are always allowed."""
    max_pixels: Annotated[int, Range(1, 2**31 - 1)] = 100_000_000
    """Larger images are refused as decompression bombs."""
    workers: Annotated[Workers | None, tyro.conf.arg(aliases=["--workers"])] = None
    """Processes that read and render; by default one per core (16 at most), 0 for none."""
    render: Literal["auto", "cpu", "gpu"] = "auto"
    """Where views are rendered: by the workers, or on the GPU that trains, which then also decodes
    ordinary JPEGs if it can. ``auto`` uses the GPU if there is one and Triton works."""
    cache: Literal["auto", "gpu", "ram", "off"] = "auto"
    """Where decoded photos are kept, so that no file is read twice: on the GPU, or in host memory,
    which the processes of a machine share. ``auto`` keeps them if all fit into 10 % of the free GPU
    memory (one process) or 50 % of the free host memory, and says so."""
    prefetch: Prefetch = 2
    """Batches each worker prepares ahead."""
    scenes_count: SceneCount = 20_000
    """Number of built-in images."""
    scenes_size: SceneSide = 160
    """Side of a built-in image in pixels."""

    def __post_init__(self) -> None:
        if not (self.source and all(self.more)):
            raise UserError(
                "data has an empty name, perhaps of a variable that is not set. Give a folder, a "
                f"list, .tar shards or `{SCENES}`, such as: --data photos/"
            )

    @property
    def shown(self) -> str:
        """All sources by their names, for pages that others read."""
        return ", ".join(map(shown_source, (self.source, *self.more)))

    def located(self) -> DataConfig:
        """The same images, by names that hold in whatever folder a run is resumed."""
        more = tuple(map(absolute_source, self.more))
        return replace(self, source=absolute_source(self.source), more=more)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Ranged):
    """The network that is pre-trained."""

    name: str = "resnet50"
    """Any of ``clove list backbones``: torchvision names, or ``timm:NAME`` with the extra
    ``timm``."""
    stage: Literal["last", "c2", "c3", "c4", "c5"] = "last"
    """Feature map the method works on: c2 has stride 4, and so on to c5 (the last) with stride
    32."""
    output_stride: Literal[16, 32] = 32
    """16 dilates the last stage instead of striding it (ResNets only)."""
    zero_init_last: bool = True
    """Start every residual block of a ResNet as the identity (last batch-norm scale zero)."""
    stem_scale: Annotated[float, Range(2**-10, 2**10)] = 1.0
    """Multiply the random initial weights of the first convolution by this, if a batch norm follows
    it. Features and LARS are not affected; when SGD fine-tunes the network later, larger weights
    keep more of what they have learned."""
    last_norm: Annotated[float, Range(2**-10, 2**10)] | None = None
    """Export the convolutions of the last stage with this share of the norm of random initial
    weights; None: as they were trained (ResNets only). Features stay the same; when SGD fine-tunes
    the network later, it rotates smaller weights faster."""
    weights: Path | None = None
    """Start from this backbone file or run instead of random weights; ``imagenet`` stands for
    torchvision's own weights."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Ranged):
    """Optimizer and learning-rate schedule."""

    name: Literal["lars", "sgd", "adamw"] = "lars"
    lr: Annotated[LearningRate, tyro.conf.arg(aliases=["--lr"])] = 1.0
    """Learning rate per 256 images of ``batch_size``; the peak is printed at the start."""
    scale_lr: Literal["linear", "none"] = "linear"
    """``linear``: peak = lr * batch_size / 256; ``none``: peak = lr."""
    momentum: PartialShare = 0.9
    """Momentum of LARS and SGD."""
    weight_decay: NonNegative = 2e-5
    """Weight decay of the parameters that ``decay`` selects."""
    decay: Literal["weights", "all"] = "weights"
    """Which parameters decay: ``weights`` excludes parameters of one dimension (biases, norms);
    ``all`` includes them, as in MoCo's and torchvision's code. LARS always excludes them."""
    trust: NonNegative = 0.001
    """Trust coefficient of LARS; parameters of one dimension are not rescaled."""
    warmup_epochs: NonNegative = 5.0
    """Epochs of linear warm-up."""
    warmup_start: Share = 0.01
    """Learning rate at the first step, as a share of the peak."""
    final_lr: Share = 0.01
    """Learning rate at the end of the cosine, as a share of the peak."""

    def __post_init__(self) -> None:
        if self.name == "lars" and self.decay == "all":
            raise UserError(
                "optimizer.decay is all, but LARS never decays parameters of one dimension. Give "
                "--optimizer.decay weights, or another --optimizer.name."
            )

    def peak_lr(self, batch_size: int) -> float:
        """The highest learning rate of the schedule."""
        return self.lr * batch_size / 256 if self.scale_lr == "linear" else self.lr


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Ranged):
    """When checkpoints are written, and how many are kept."""

    every_epochs: Positive = 1.0
    """Epochs between checkpoints; fractions are allowed."""
    min_steps: Steps = 100
    """Least number of steps between checkpoints, since epochs over few images are short."""
    keep: Annotated[int, Range(1, 1000)] = 2
    """Number of recent checkpoints to keep; with two, a run survives damage to the last one."""
    milestone_epochs: Epochs | None = None
    """Keep a checkpoint permanently every this many epochs."""


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Ranged):
    """What is written during a run, besides ``metrics.jsonl``, which is always written."""

    every: Steps = 20
    """Optimizer steps between log lines."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run directory (extra ``tensorboard``)."""
    wandb_project: str | None = None
    """Also send metrics to this Weights & Biases project (extra ``wandb``)."""


@dataclass(frozen=True, kw_only=True)
class HealthConfig(Ranged):
    """When a run counts as collapsing; see docs/health.md."""

    min_std: NonNegative = 0.2
    """Warn if the spread of features is below this share of a uniform spread."""
    min_rank: NonNegative = 4.0
    """Warn if the effective rank of features is below this."""


@dataclass(frozen=True, kw_only=True)
class LateViewsConfig(Ranged):
    """Larger views in the last part of a run, because fine-tuning uses larger images."""

    share: Share = 0.0
    """Share of the steps, at the end of the run, with larger views; 0: none."""
    enlarge: Annotated[float, Range(1, 8)] = 1.4
    """Factor for their sides, rounded to whole cells of 32 pixels."""

    def first_step(self, total_steps: int) -> int:
        """Steps before the larger views; all, if there are none."""
        return total_steps - round(self.share * total_steps)

    def specs(self, usual: tuple[ViewSpec, ...]) -> tuple[ViewSpec, ...]:
        """The larger views."""
        return tuple(replace(spec, size=self._side(spec.size)) for spec in usual)

    def most_pixels(self, usual: tuple[ViewSpec, ...]) -> int:
        """Pixels of all views of an image, when they are largest."""
        return _pixels(self.specs(usual) if self.share else usual)

    def cost(self, usual: tuple[ViewSpec, ...]) -> float:
        """Pixels of all steps, divided by those of as many steps with usual views."""
        before, after = (_pixels(specs) for specs in (usual, self.specs(usual)))
        return 1 + self.share * (after / before - 1) if before else 1.0

    def _side(self, side: int) -> int:
        return max(side, _CELL * round(side * self.enlarge / _CELL))


def _pixels(specs: tuple[ViewSpec, ...]) -> int:
    return sum(spec.size**2 for spec in specs)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Ranged):
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
    late_views: LateViewsConfig = field(default_factory=LateViewsConfig)
    epochs: Epochs = 200
    """Passes over the images."""
    steps: Steps | None = None
    """Optimizer steps, instead of ``epochs``."""
    batch_size: BatchSize = 2048
    """Images per optimizer step over all processes; each process gets an equal share."""
    micro_batch: BatchSize | None = None
    """Images per forward pass and process, with gradients accumulated over several passes; batch
    norm uses the micro-batches of all processes together. By default at most 256 (32 on a CPU)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the network. Losses and teacher weights are always fp32; unless the network
    is fp32 too, factors of products in them are rounded to 11 bits (TF32)."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Compile the networks with torch.compile, one graph per view size: faster steps after a minute
    or two of waiting. ``auto`` does so on a GPU if the run is long enough to gain from it, and
    never if steps are captured with kernels of our own."""
    activation_memory: PositiveShare = 1.0
    """Share of the activations that compiled networks keep for the backward pass; the rest is
    recomputed, which saves memory and costs time."""
    sync_norm: bool = True
    """Share batch-norm statistics between processes."""
    capture: Literal["auto", "always", "never"] = "auto"
    """Record a step as CUDA graphs and replay it, so that the host launches it at once. ``auto``
    does so if all steps run the same kernels."""
    share_gpus: bool = False
    """Allow more processes than GPUs, to try out a run of several processes; they communicate by
    gloo, which is slower than NCCL."""
    deterministic: bool = True
    """Make a run repeatable bit for bit on the same GPU; off allows faster kernels. Runs on CPUs
    are always repeatable."""
    seed: Seed = 0
    """Determines initial weights, image order and augmentation."""

    def __post_init__(self) -> None:
        if not self.method.trains and (self.steps is not None or self.backbone.weights):
            raise UserError(
                f"{self.method.name} trains nothing and keeps the weights of the seed, so "
                f"steps={self.steps} and backbone.weights={self.backbone.weights} would have no "
                "effect. Leave both out."
            )
        if self.late_views.share and any(spec.patch for spec in self.method.view_specs()):
            raise UserError(
                f"{self.method.name} cuts frames of a fixed size into patches, which cannot be "
                "enlarged. Leave out --late-views.share."
            )

    def located(self) -> PretrainConfig:
        """The config with paths that hold in whatever folder the run is resumed."""
        backbone, probe, weights = self.backbone, self.probe, self.backbone.weights
        if weights is not None and weights.exists():
            backbone = replace(backbone, weights=weights.absolute())
        if probe.data is not None:
            probe = replace(probe, data=absolute_source(probe.data))
        return replace(self, data=self.data.located(), backbone=backbone, probe=probe)

    def share_per_process(self, processes: int) -> int:
        """Images of a step that one process handles; refuses to round."""
        return share_per_process(self.batch_size, processes)

    def total_steps(self, images: int) -> int:
        """Optimizer steps of the whole run; batches run on across the ends of epochs."""
        if not self.method.trains:
            return 0
        if self.steps is not None:
            return self.steps
        return max(1, self.epochs * images // self.batch_size)


def absolute_source(source: str) -> str:
    """The name of images that holds in whatever folder somebody is."""
    if source == SCENES or "://" in source:
        return source
    return os.path.abspath(os.path.expanduser(source))


def shown_source(source: str) -> str:
    """What images are called, without the folders of somebody's machine."""
    return source if "://" in source else Path(source).name or source


def share_per_process(batch_size: int, processes: int) -> int:
    """Images of a step that one process handles; refuses to round."""
    share, rest = divmod(batch_size, processes)
    if rest or not share:
        raise UserError(
            f"batch_size={batch_size} does not divide over {processes} processes. "
            f"Try --batch-size {max(1, share) * processes} or {(share + 1) * processes}."
        )
    return share


def data_warnings(
    config: PretrainConfig, *, images: int | None, shorter_side: int | None
) -> Iterator[str]:
    """Sentences about few images, batches that are larger than the data, and small images."""
    if not config.method.trains:
        return
    if images is not None:
        yield from _few_images(config, images)
    yield from _small_images(config, shorter_side)


def _few_images(config: PretrainConfig, images: int) -> Iterator[str]:
    have = counted(images, "image")
    if images < FEW_IMAGES:
        yield (
            f"Only {have}: what is learned will hold for these and hardly for others. Give a few "
            "hundred images at least, thousands if you have them."
        )
    if images < config.batch_size:
        times = config.batch_size / images
        yield (
            f"A batch of {config.batch_size:,} is larger than the data: every step sees each of "
            f"the {have} {times:.3g} times. Try --batch-size {max(2, images // 2)}."
        )


def _small_images(config: PretrainConfig, shorter_side: int | None) -> Iterator[str]:
    largest = max((spec.size for spec in config.method.view_specs()), default=0)
    if shorter_side is not None and shorter_side < largest:
        yield (
            f"The images are about {shorter_side} pixels on their shorter side, smaller than the "
            f"views of {largest} pixels, which therefore enlarge them: slower, without more to "
            "see. Use smaller views, or the images in their full size."
        )
