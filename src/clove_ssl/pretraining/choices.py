"""What a config leaves open: decided once at each start of a run, said, and written down.

The steps follow from the config and the data; number format, rendering, compilation and workers
from the machine as well. Nothing else of a run asks the machine again. ``provenance.json`` keeps
the choices of every start, so that a report need not guess them.

Sizes come first: they say what a run needs at least, before its networks take any memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from clove_ssl.backbones.build import build_backbone, can_fuse_norms, outlined
from clove_ssl.config.choice import Choice
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.data.loading import choose_workers
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError, counted
from clove_ssl.methods.base import Method
from clove_ssl.pretraining.images import CacheChoice, choose_cache
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.schedules import Schedule, warmup_cosine
from clove_ssl.training.captured import decide_capture, why_not_captured
from clove_ssl.training.numerics import Precision, choose_precision
from clove_ssl.training.plan import (
    LARGEST_MICRO_BATCH,
    Needs,
    RunPlan,
    announce_needs,
    check_disk,
    check_memory,
    check_time,
    checkpoint_space,
    fit_micro_batch,
    weights_and_checkpoint,
)
from clove_ssl.training.processes import Process
from clove_ssl.views.render.gpu import has_kernels

Place = Literal["on the GPU", "in the workers"]

# Compiling takes a minute or two. A ResNet-50 in views of 2 x 224 and 6 x 96 pixels, in batches of
# 256, then saves 80 ms of 225 per step over torch's own kernels, 12 of 153 over ours, and loses 10
# where ours are captured (docs/results/speed.md).
STEPS_THAT_REPAY_COMPILATION = 1500
STEPS_THAT_REPAY_IT_BESIDE_OUR_KERNELS = 10_000

_LOWER = (
    "--micro-batch, --batch-size, the sizes of the views (--method.views...), data.workers, or the "
    "widths and the queue of the method"
)


@dataclass(frozen=True)
class PretrainPlan(RunPlan):
    """A run whose learning rate falls like a cosine."""

    start_lr: float
    final_lr: float

    def lr(self) -> Schedule:
        """The learning rate as a function of the step."""
        return warmup_cosine(
            peak=self.peak_lr,
            total_steps=self.total_steps,
            warmup_steps=self.warmup_steps,
            start=self.start_lr,
            final=self.final_lr,
        )


@dataclass(frozen=True)
class Sizes:
    """What a run will do, and with how many workers: known before any network is built."""

    plan: PretrainPlan
    workers: Choice[int]


@dataclass(frozen=True)
class PretrainNeeds:
    """What is certain about a run."""

    memory: Needs  # of each process
    disk: int  # bytes that its checkpoints will still take

    def announce(self, console: Console) -> None:
        """Say them."""
        announce_needs(self.memory, self.disk, console)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything that one start of a run decides."""

    plan: PretrainPlan
    precision: Precision
    rendering: Choice[Place]
    compilation: Choice[bool]
    capture: Choice[bool]
    workers: Choice[int]
    cache: CacheChoice

    @property
    def renders_on_gpu(self) -> bool:
        """Whether images come to the GPU as they are in their files."""
        return self.rendering.value == "on the GPU"

    def values(self) -> dict[str, Any]:
        """The choices as they stand in ``provenance.json``."""
        return {
            "precision": self.precision.values(),
            "rendering": asdict(self.rendering),
            "compilation": asdict(self.compilation),
            "capture": asdict(self.capture),
            "workers": asdict(self.workers),
            "cache": asdict(self.cache),
            "plan": self.plan.values(),
        }

    def announce(self, config: PretrainConfig, console: Console) -> None:
        """Say how the run computes, from the device to the checkpoints."""
        plan, say = self.plan, console.choice
        device = f"{plan.processes} x {self.precision.device_type}"
        say("device", device, f"torch {torch.__version__}")
        say("precision", self.precision.name, self.precision.reason)
        say("rendering", self.rendering.value)
        say("photos", self.cache.describe(), self.cache.reason)
        self._announce_compilation(config.activation_memory, console)
        if self.precision.device_type == "cuda":
            say("captured steps", "yes" if self.capture.value else "no", self.capture.reason)
        processes = counted(plan.processes, "process", "processes")
        passes = f"{processes} x {plan.micro_batches} x {plan.micro_batch}"
        say("batch", f"{plan.batch_size} images", passes)
        say("steps", f"{plan.total_steps:,}", f"{plan.epoch(plan.total_steps):.1f} epochs")
        say("learning rate", f"peak {plan.peak_lr:g}", counted(plan.warmup_steps, "warm-up step"))
        kept = f"{config.checkpoints.keep} kept"
        say("checkpoints", f"every {plan.checkpoint_every:,} steps", kept)

    def _announce_compilation(self, kept: float, console: Console) -> None:
        """``kept`` is the share of activations that stays in memory."""
        if self.compilation.value:
            console.choice("compilation", "yes", "the first step takes a minute or two")
            if kept < 1:
                why = "the rest is recomputed, to save memory"
                console.choice("activations", f"{kept:.0%} kept", why)
        elif kept < 1:
            console.warn(
                f"activation_memory={kept:g} has no effect on networks that are not compiled. "
                "Compile them: --compile always"
            )

    def warn_of_warmup(self, console: Console) -> None:
        """Say when the learning rate rises to the very end."""
        warmup, total = self.plan.warmup_steps, self.plan.total_steps
        if warmup >= total:
            console.warn(
                f"the warm-up ({warmup} steps) is longer than the run ({total}), so the peak "
                "learning rate is never reached. Shorten it: --optimizer.warmup-epochs"
            )


def decide_sizes(config: PretrainConfig, process: Process, *, images: int) -> Sizes:
    """The choices that follow from numbers alone; refuse what does not divide."""
    kind = process.device.type
    workers = choose_workers(
        config.data, processes_here=process.local_world_size, trains_on_cpu=kind == "cpu"
    )
    return Sizes(
        plan_run(config, images=images, processes=process.world_size, device_type=kind),
        workers,
    )


def check_needs(config: PretrainConfig, process: Process, sizes: Sizes) -> PretrainNeeds | None:
    """Refuse a run that cannot fit; nothing where a method cannot be built without memory."""
    plan = sizes.plan
    check_time(plan.total_steps, plan.total_steps * plan.batch_size, processes=plan.processes)
    try:
        memory = _memory_needs(config, process, sizes)
    except (RuntimeError, NotImplementedError):  # of a plug-in that reads the values of its weights
        return None
    disk = checkpoint_space(
        memory.checkpoint,
        RunDirectory(config.out).checkpoints,
        keep=config.checkpoints.keep,
        milestones=plan.total_steps // plan.milestone_every if plan.milestone_every else 0,
    )
    here = process.local_world_size
    check_memory(memory, process.device, processes_here=here, lower=_LOWER)
    check_disk(
        disk,
        config.out,
        what="The checkpoints of this run",
        lower="--checkpoints.keep or the sizes of the method",
    )
    return PretrainNeeds(memory, disk)


def _memory_needs(config: PretrainConfig, process: Process, sizes: Sizes) -> Needs:
    """Bytes of a process; all but the backbone, whose size its name bounds, needs no memory."""
    with torch.random.fork_rng(devices=[]):
        backbone = build_backbone(config.backbone).to("meta")
    with outlined():
        network = config.method.build(backbone)
    states = 2 if config.optimizer.name == "adamw" else 1
    weights, checkpoint = weights_and_checkpoint(network, states if config.method.trains else 0)
    values = 3 * sizes.plan.micro_batch * config.late_views.most_pixels(network.views())
    on_cpu = process.device.type == "cpu"
    # Of views, which a GPU may render.
    ready = sizes.workers.value * config.data.prefetch if on_cpu else 0
    return Needs(weights, (4 if on_cpu else 2) * values, max(1, ready) * values, checkpoint)


def decide(
    config: PretrainConfig,
    process: Process,
    sizes: Sizes,
    *,
    method: Method,
    source: ImageSource | None = None,
) -> Choices:
    """Make all other choices of a start; refuse what cannot be done here.

    Without a ``source`` to look at, photos are not kept.
    """
    plan, device = sizes.plan, process.device
    precision = choose_precision(config.precision, device)
    rendering = _choose_rendering(config, device)
    # Before compilation, which is not worth its time where steps are captured.
    capture = _choose_capture(config, plan, precision, why_not_captured(method))
    fused = process.world_size == 1 and can_fuse_norms(method)
    return Choices(
        plan=plan,
        precision=precision,
        rendering=rendering,
        compilation=_choose_compilation(config, plan, device, captured=capture.value, fused=fused),
        capture=capture,
        workers=sizes.workers,
        cache=_choose_cache(config, plan, process, rendering, source, method.views()),
    )


def plan_run(
    config: PretrainConfig, *, images: int, processes: int, device_type: str
) -> PretrainPlan:
    """The numbers that follow from a config, the data and the machine."""
    share = config.share_per_process(processes)
    # A fraction: batches run on across the ends of epochs.
    steps_per_epoch = images / config.batch_size
    peak = config.optimizer.peak_lr(config.batch_size)
    milestone = config.checkpoints.milestone_epochs
    return PretrainPlan(
        images=images,
        batch_size=config.batch_size,
        processes=processes,
        micro_batch=fit_micro_batch(config.micro_batch, share, LARGEST_MICRO_BATCH[device_type]),
        total_steps=config.total_steps(images),
        warmup_steps=round(config.optimizer.warmup_epochs * steps_per_epoch),
        peak_lr=peak,
        start_lr=peak * config.optimizer.warmup_start,
        final_lr=peak * config.optimizer.final_lr,
        checkpoint_every=max(
            config.checkpoints.min_steps, round(config.checkpoints.every_epochs * steps_per_epoch)
        ),
        milestone_every=milestone and max(1, round(milestone * steps_per_epoch)),
    )


def _choose_rendering(config: PretrainConfig, device: torch.device) -> Choice[Place]:
    asked = config.data.render
    if asked == "gpu" and device.type != "cuda":
        raise UserError(
            "--data.render gpu needs a GPU; this run is on a CPU. Leave it out to let the workers "
            "render."
        )
    if asked == "auto":
        if device.type == "cpu":
            return Choice("in the workers", "this run is on a CPU")
        if has_kernels(device):
            return Choice("on the GPU", "there are kernels for it")
        return Choice("in the workers", "there are no kernels for this GPU")
    return Choice("on the GPU" if asked == "gpu" else "in the workers", "as asked")


def _choose_compilation(
    config: PretrainConfig,
    plan: PretrainPlan,
    device: torch.device,
    *,
    captured: bool,
    fused: bool,
) -> Choice[bool]:
    """Networks are compiled, by default, where the run is long enough to repay it.

    ``fused`` says whether they run with kernels of ours, if they are not.
    """
    if config.compile != "auto":
        return Choice(config.compile == "always", "as asked")
    if device.type != "cuda":
        return Choice(False, "on a CPU")
    if captured and fused:
        return Choice(False, "captured steps with our own kernels are faster")
    enough = STEPS_THAT_REPAY_IT_BESIDE_OUR_KERNELS if fused else STEPS_THAT_REPAY_COMPILATION
    repays = plan.total_steps >= enough
    limit = f"{enough:,} steps or more"
    return Choice(repays, f"worth it in {limit}" if repays else f"only worth it in {limit}")


def _choose_capture(
    config: PretrainConfig, plan: PretrainPlan, precision: Precision, obstacle: str
) -> Choice[bool]:
    """Steps are captured as CUDA graphs, by default, wherever they can be."""
    obstacles = {
        "on a CPU": precision.device_type != "cuda",
        # A graph keeps the scale of its recording, and skips no step.
        "fp16 rescales the loss in every step": precision.name == "fp16",
        f"{plan.processes} processes share a step": plan.processes > 1,
        obstacle: bool(obstacle),
    }
    reason = "every step runs the same kernels"
    return decide_capture(config.capture, obstacles, reason=reason)


def _choose_cache(
    config: PretrainConfig,
    plan: PretrainPlan,
    process: Process,
    rendering: Choice[Place],
    source: ImageSource | None,
    specs: tuple[ViewSpec, ...],
) -> CacheChoice:
    """Photos stay, by default, where they fit and are needed again."""
    if source is None:
        return CacheChoice("off", "no photos to look at")
    return choose_cache(
        config.data,
        source,
        process,
        specs=specs,
        renders_on_gpu=rendering.value == "on the GPU",
        repeats=plan.total_steps * plan.batch_size > plan.images,
    )
