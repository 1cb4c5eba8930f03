"""Everything that can influence a fine-tuning run.

``solver`` holds the published protocol and stays as it is; ``iterations``, ``batch_size`` and
``lr`` are what a user changes about it, so that a run can always say how it differs. What files
call ``iterations`` is called steps wherever a person reads or types it, as in pre-training. Files
keep the name, since ``steps`` of ``solver`` are its decays and old runs must stay readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.pretraining import LoggingConfig
from clove_ssl.config.ranges import (
    BatchSize,
    Epochs,
    LearningRate,
    NonNegative,
    PartialShare,
    PositiveShare,
    Prefetch,
    Range,
    Ranged,
    SceneCount,
    SceneSide,
    Seed,
    Several,
    Share,
    Steps,
    StepsFromZero,
    Workers,
)
from clove_ssl.errors import UserError
from clove_ssl.registry import TASKS

RANDOM = "random"
Minutes = Annotated[float, Range(0, 10**6, above=True)]
_NOT_OF_THE_PROTOCOL = ("surface", "scores")
"""Fields of tasks that name files and tables."""
WARMUP_SHARE = 10
"""A warm-up takes at most one in so many steps, unless it was asked for."""


@dataclass(frozen=True, kw_only=True)
class LabelledDataConfig(Ranged):
    """Images with annotations to train and test on."""

    root: Annotated[Path | None, tyro.conf.arg(aliases=["--data"])] = None
    """Folder of VOC (VOCdevkit), COCO, LVIS or Cityscapes; without it, built-in scenes are written
    into the run. For your own classes, a folder or file of COCO, VOC, YOLO, LabelMe or masks."""
    train_annotations: Path | None = None
    """Annotation file for training, in COCO's format, instead of the one below ``root``."""
    train_images: Path | None = None
    """Folder that the image names in that file are relative to."""
    test_annotations: Path | None = None
    """Annotation file for testing, in COCO's format."""
    test_images: Path | None = None
    """Folder that the image names in that file are relative to."""
    train_lists: tuple[str, ...] = ()
    """VOC lists to train on, such as 2007:trainval 2012:trainval; by default the protocol's, or
    those of the only year there is."""
    test_lists: tuple[str, ...] = ()
    """VOC lists to test on, such as 2007:test."""
    faulty: Literal["auto", "refuse", "leave-out"] = "auto"
    """What to do with annotations that cannot be right, such as boxes without area; ``auto`` leaves
    out those of COCO's own files, and refuses all others."""
    validation_share: Annotated[float, Range(0, 0.9, above=True)] = 0.2
    """Share of your own images used for validation, if the data has no split for it."""
    split_seed: Seed = 0
    """Decides, together with the image names, which images these are."""
    workers: Annotated[Workers | None, tyro.conf.arg(aliases=["--workers"])] = None
    """Processes that read images; by default one per core (16 at most), 0 for none."""
    prefetch: Prefetch = 2
    """Batches each worker prepares ahead."""
    scenes_train: SceneCount = 400
    """Number of built-in scenes to train on."""
    scenes_test: SceneCount = 100
    """Number of built-in scenes to test on."""
    scenes_size: SceneSide = 160
    """Side of a built-in scene in pixels."""

    @property
    def uses_scenes(self) -> bool:
        """Whether nothing of a user's data was named."""
        named = (self.root, *self.files("train"), *self.files("test"))
        return not any((*named, self.train_lists, self.test_lists))

    def files(self, split: Literal["train", "test"]) -> tuple[Path | None, Path | None]:
        """The annotation file and the image folder that were given for a split."""
        if split == "train":
            return self.train_annotations, self.train_images
        return self.test_annotations, self.test_images

    def lists(self, split: Literal["train", "test"]) -> tuple[str, ...]:
        """The lists of VOC that were given for a split."""
        return self.train_lists if split == "train" else self.test_lists


@dataclass(frozen=True, kw_only=True)
class SolverConfig(Ranged):
    """The published schedule: SGD, a linear warm-up, and drops of the learning rate at given
    steps."""

    lr: LearningRate = 0.02
    """Peak learning rate for ``batch_size`` images."""
    batch_size: BatchSize = 16
    """Images per step."""
    iterations: Steps = 90_000
    """Steps of the whole run."""
    steps: Annotated[tuple[StepsFromZero, ...], Several(rising=True)] = (60_000, 80_000)
    """Steps at which the learning rate is multiplied by ``decay``."""
    decay: Share = 0.1
    warmup_iterations: StepsFromZero = 1000
    """Steps of the linear warm-up."""
    warmup_factor: Share = 0.001
    """Learning rate at the first step of the warm-up, as a share of the peak."""
    momentum: PartialShare = 0.9
    weight_decay: NonNegative = 1e-4
    """Weight decay of weights and biases; parameters of norms have none."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Ranged):
    """When the model is scored, and with which norm statistics."""

    every: Steps | None = None
    """Steps between evaluations; by default there is only one, at the end."""
    precise_norm_batches: StepsFromZero = 200
    """Training batches (micro-batches of all processes) over which norm statistics are measured
    anew before an evaluation; 0 keeps the running ones."""
    pictures: Annotated[int, Range(0, 10_000)] = 12
    """Number of test images whose predictions are drawn beside the ground truth."""
    best: bool = False
    """Keep the model and the scores of the best evaluation instead of the last one."""
    patience: Annotated[int, Range(1, 10_000)] | None = None
    """Stop after this many evaluations without a better score, once the learning rate has dropped
    for the first time; by default the run is not stopped early. Needs ``best``."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Ranged):
    """Fine-tune a backbone on a downstream task and score it."""

    out: Path
    """Run directory; must be new or empty."""
    backbone: str
    """Run, backbone file or released checkpoint to start from, or ``random``."""
    task: TaskConfig
    data: LabelledDataConfig = field(default_factory=LabelledDataConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    architecture: str | None = None
    """The network; by default the one of the backbone file, or resnet50 for random weights."""
    allow_partial: bool = False
    """Start even if the file lacks tensors of the network or some do not fit."""
    heads: bool = False
    """Also load the heads of the backbone's file: a whole detector of Detectron2, MMDetection or
    torchvision, or a run of clove finetune. What does not fit is initialised anew and listed."""
    epochs: Epochs | None = None
    """Own classes: passes over the training images; by default it depends on their number."""
    minutes: Minutes | None = None
    """Own classes: time for training and evaluations together, planned from steps timed at the
    start."""
    iterations: Annotated[Steps | None, tyro.conf.arg(aliases=["--steps"])] = None
    """Shorten (or lengthen) the schedule to this many steps; its drops move in proportion."""
    warmup_iterations: Annotated[
        StepsFromZero | None, tyro.conf.arg(aliases=["--warmup-steps"])
    ] = None
    """Steps of warm-up; by default the protocol's, but at most a tenth of the run."""
    batch_size: BatchSize | None = None
    """Images per step over all processes, instead of the protocol's; the learning rate is scaled in
    proportion, the schedule is not."""
    lr: LearningRate | None = None
    """Peak learning rate, used as given, instead of the protocol's scaled by the batch."""
    fraction: PositiveShare = 1.0
    """Share of the training images to train on."""
    runs: Annotated[int, Range(1, 1000)] = 1
    """Repeat with this many seeds, in sub-directories, and give mean and standard deviation."""
    micro_batch: BatchSize | None = None
    """Images per forward pass and process, with gradients accumulated over several passes; by
    default a process's whole share of the batch."""
    checkpoint_every: Steps = 1000
    """Steps between checkpoints, of which two are kept."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """Number format of the network; ``auto`` takes the fastest that the device has. Losses and
    weights are always fp32; unless the network is fp32 too, factors of products in them are rounded
    to 11 bits (TF32)."""
    sync_norm: bool = True
    """Share batch-norm statistics between processes."""
    capture: Literal["auto", "always", "never"] = "auto"
    """Record the first stage of a detector's step, the choice of regions and the box head as CUDA
    graphs, for every size that comes often, and replay them. ``auto`` does so on a GPU with one
    process, for batches of up to 8 million pixels; larger ones do not profit."""
    deterministic: bool = False
    """Make a run repeatable bit for bit on the same GPU, which needs a much slower RoIAlign. Runs
    on CPUs are always repeatable."""
    seed: Seed = 0
    """Determines the head's initial weights, image order, augmentation and sampling."""

    def __post_init__(self) -> None:
        if self.heads and self.backbone == RANDOM:
            raise UserError(
                "--heads needs a detector to start from, but the backbone is random. Give the "
                "detector's file as --backbone, or leave out --heads."
            )
        budgets = {"--epochs": self.epochs, "--minutes": self.minutes}
        given = [name for name, value in budgets.items() if value is not None]
        if given and self.task.is_published:
            raise UserError(
                f"{given[0]} is for own classes; {self.task.name} has a published schedule. Give "
                "--steps to shorten it, or choose detect, instances, segment or keypoints."
            )
        if len(given) == 2 or (given and self.iterations is not None):
            raise UserError(
                "--epochs, --minutes and --steps each say how long a run is. Give one of them."
            )
        if self.evaluation.patience is not None and not self.evaluation.best:
            raise UserError(
                "--evaluation.patience ends a run by its best score, which is not kept. Add "
                "--evaluation.best, or leave out the patience."
            )

    @property
    def effective_batch(self) -> int:
        """Images of a step."""
        return self.solver.batch_size if self.batch_size is None else self.batch_size

    @property
    def peak_lr(self) -> float:
        """As asked for, or the protocol's in proportion to the batch."""
        if self.lr is not None:
            return self.lr
        return self.solver.lr * self.effective_batch / self.solver.batch_size

    @property
    def total_iterations(self) -> int:
        """Steps of the run."""
        return self.solver.iterations if self.iterations is None else self.iterations

    @property
    def warmup(self) -> int:
        """Steps of warm-up.

        Fresh heads need their time to settle, however long a run is. So a shorter one keeps the
        published warm-up, unless that would be too large a part of it.
        """
        if self.warmup_iterations is not None:
            return self.warmup_iterations
        return min(self.solver.warmup_iterations, self.total_iterations // WARMUP_SHARE)

    def scaled(self, iterations: int) -> int:
        """A point of the published schedule in this run, which may be shorter."""
        return round(iterations * self.total_iterations / self.solver.iterations)

    def differences(self) -> list[str]:
        """How the run leaves the protocol, in sentences; nothing about it is silent."""
        return [*_differences(self)] if self.task.is_published else []


def _differences(config: FinetuneConfig) -> Iterator[str]:
    solver, total, batch = config.solver, config.total_iterations, config.effective_batch
    if total != solver.iterations:
        yield (
            f"{total:,} steps instead of {solver.iterations:,}: decays in proportion, at "
            f"{', '.join(f'{config.scaled(step):,}' for step in solver.steps) or 'none'}."
        )
    if config.warmup != solver.warmup_iterations:
        reason = "at most a tenth of the run" if config.warmup_iterations is None else "as asked"
        yield (
            f"{config.warmup:,} steps of warm-up instead of {solver.warmup_iterations:,}, {reason}."
        )
    if batch != solver.batch_size:
        yield (
            f"{batch} images a step instead of {solver.batch_size}: the schedule stays at "
            f"{total:,} steps, so {batch / solver.batch_size:.3g} times the images are seen."
        )
    if config.lr is not None:
        yield f"The peak learning rate is {config.lr:g} as asked; the protocol has {solver.lr:g}."
    elif batch != solver.batch_size:
        yield (
            f"The peak learning rate is {config.peak_lr:g} instead of {solver.lr:g}, in proportion "
            "to the batch."
        )
    if config.heads:
        yield "The heads start from those of a detector instead of afresh."
    if config.fraction < 1:
        yield f"Only {100 * config.fraction:g} % of the training images are used."
    if config.precision != "fp32":
        yield f"The network runs in {config.precision} instead of fp32."
    if config.micro_batch is not None and config.micro_batch < batch:
        yield (
            f"Forward passes of {config.micro_batch} images a process: batch norms that are "
            f"trained see those instead of all {batch}."
        )
    changed = _changed_settings(config)
    if changed:
        yield f"Settings that are not the published ones: {', '.join(changed)}."


def _changed_settings(config: FinetuneConfig) -> list[str]:
    """Everything about the solver, the task and the norms that is not as in the protocol."""
    published = type(config.task).protocol(config.out, config.backbone)
    mine, theirs = _settings(config), _settings(published)
    return [
        f"{name} {_shown(value)} (published: {_shown(theirs[name])})"
        for name, value in mine.items()
        if value != theirs[name]
    ]


def _settings(config: FinetuneConfig) -> dict[str, Any]:
    """Values that move scores by the names of their options, without what names files."""
    flat: dict[str, Any] = {}
    for part in ("solver", "task"):
        _flatten(asdict(getattr(config, part)), part, flat)
    flat["evaluation.precise-norm-batches"] = config.evaluation.precise_norm_batches
    flat["sync-norm"] = config.sync_norm
    return flat


def _flatten(values: Mapping[str, Any], path: str, into: dict[str, Any]) -> None:
    for name, value in values.items():
        inner = f"{path}.{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            _flatten(value, inner, into)
        elif name not in _NOT_OF_THE_PROTOCOL:
            into[inner] = value


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def protocol(name: str, out: Path, backbone: str) -> FinetuneConfig:
    """The published protocol of a task, complete."""
    return TASKS.load(name).protocol(out, backbone)


def task_summaries() -> dict[str, str]:
    """What each task is, in one line."""
    return {
        name: (TASKS.load(name).__doc__ or "").strip().splitlines()[0] for name in TASKS.names()
    }


def own_tasks() -> list[str]:
    """The tasks for classes of a user's own, which have no published protocol."""
    return [name for name in TASKS.names() if not TASKS.load(name).is_published]
