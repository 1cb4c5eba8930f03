"""Pre-training from start to end, the same on a laptop and on many nodes.

A run is a pure function of its config: image order, augmentation and schedules
depend on the step alone, and a checkpoint holds the rest. So resuming repeats
the uninterrupted run bit for bit on the same device.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from clove_ssl.backbones.build import build_backbone, fuse_norms
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.data.loading import explained_deaths
from clove_ssl.data.sources import BadFiles
from clove_ssl.errors import counted
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.methods.base import Method
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining.choices import (
    Choices,
    PretrainNeeds,
    check_needs,
    decide,
    decide_sizes,
)
from clove_ssl.pretraining.compile.ahead import compile_ahead
from clove_ssl.pretraining.compile.kernels import Helper, waiting_helper
from clove_ssl.pretraining.compile.method import compile_method
from clove_ssl.pretraining.feed import open_feed
from clove_ssl.pretraining.going_on import read_continued, take_over
from clove_ssl.pretraining.images import RunImages, open_images, open_store
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.probes.in_run import ProbedRun, RunProbes
from clove_ssl.report.page import get_ready, write_report
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import Metrics
from clove_ssl.runs.provenance import SHORTER_SIDE, record_bad_files, record_start
from clove_ssl.training.captured import CapturedPasses
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.numerics import start_repeatably
from clove_ssl.training.observer import Observer
from clove_ssl.training.processes import Process, joined, owned, placed
from clove_ssl.weights.export.model_card import export_run
from clove_ssl.weights.load import load_weights
from clove_ssl.weights.origins import imagenet_file, is_imagenet


@dataclass(frozen=True)
class PretrainResult:
    """What a run leaves behind."""

    run: Path
    backbone: Path
    finished: bool
    step: int
    metrics: dict[str, float]  # of the last logged step

    @property
    def figures(self) -> dict[str, float]:
        """The old name of ``metrics``."""
        return self.metrics


@dataclass(frozen=True)
class Parts:
    """What can be built, and found wrong, before anything is written."""

    config: PretrainConfig  # with what follows from the data filled in
    images: RunImages
    choices: Choices
    method: Method
    probes: RunProbes
    needs: PretrainNeeds | None  # of memory and disk, where that is known
    kernels: Helper | None  # compiles those of a GPU meanwhile


def pretrain(config: PretrainConfig, *, overwrite: bool = False) -> PretrainResult:
    """Pre-train a backbone; ``config.out`` must be new, or a run if it may be overwritten."""
    kernels = _compiling_helper(config)
    with joined(config.device, share_gpus=config.share_gpus) as process:
        # Checked twice: here for a quick answer, and by ``begin`` when everything else is known to
        # work.
        if process.is_first:  # before minutes of looking through the data
            directory.check_is_free(config.out, overwrite=overwrite)
        parts = _prepare(config.located(), process, kernels)
        if process.is_first:
            directory.begin(parts.config, overwrite=overwrite)
        return _train(RunDirectory(config.out), process, parts)


def resume(path: str | Path, changes: ResumeChanges | None = None) -> PretrainResult:
    """Continue a run from its last good checkpoint, with some changes if there are any."""
    run = directory.find(Path(path))
    changes = changes or ResumeChanges()
    config = read_continued(run, changes)
    kernels = _compiling_helper(config)
    with joined(config.device, share_gpus=config.share_gpus) as process:
        return _train(run, process, _prepare(config, process, kernels), changes)


def _compiling_helper(config: PretrainConfig) -> Helper | None:
    """Before anything else: whatever uses a GPU can have no such helper any more."""
    return None if config.device == "cpu" else waiting_helper(config)


def _prepare(config: PretrainConfig, process: Process, kernels: Helper | None) -> Parts:
    """Open the data, make all choices, and build the method."""
    # Before anything draws a number: weights, queues and prototypes all come from this generator.
    start_repeatably(config.seed, process.device, deterministic=config.deterministic)
    with Console(speaks=process.is_first).working("Looking through the images"):
        images = open_images(config.data, with_classes=config.method.needs_labels)
    if config.method.needs_labels:
        config = replace(config, method=config.method.for_classes(len(images.class_names)))
    # Before the method takes memory: what cannot fit should be a sentence, not a killed process.
    sizes = decide_sizes(config, process, images=len(images))
    # As soon as it is known what to compile: networks, workers and a first batch take time.
    if kernels is not None:
        kernels.start(config, process, images=sizes.plan.micro_batch)
    needs = check_needs(config, process, sizes)
    method = _build_method(config, process)
    choices = decide(config, process, sizes, method=method, source=images.source)
    # Before compilation, which puts the precision of products into its graphs.
    choices.precision.prepare()
    if choices.compilation.value:
        compile_method(method, activation_memory=config.activation_memory)
    # Compiled code joins norms with their neighbours by itself; otherwise kernels of ours do.
    elif process.device.type == "cuda":
        fuse_norms(method)
    largest = max((spec.size for spec in method.views()), default=224)
    probes = RunProbes(config, choices.plan, images.source, size=largest)
    return Parts(config, images, choices, method, probes, needs, kernels)


def _build_method(config: PretrainConfig, process: Process) -> Method:
    """The method as a run begins with it, on the device of this process."""
    backbone = build_backbone(config.backbone)
    weights = config.backbone.weights
    if weights is not None:
        if is_imagenet(weights):
            with Console(speaks=process.is_first).working("Fetching ImageNet weights"):
                weights = imagenet_file(config.backbone.name)
        load_weights(backbone, weights)
    method = config.method.build(backbone)
    # The teacher is part of the method by now, so its norms are synchronized, too.
    if process.world_size > 1 and config.sync_norm:
        synchronize_norms(method, process.device.type)
    return placed(method, process.device)


def _train(
    run: RunDirectory, process: Process, parts: Parts, changes: ResumeChanges | None = None
) -> PretrainResult:
    """From the checkpoint, if there is one, to the end of the run and what it leaves."""
    with owned(run, process) as console:
        loop = _build_loop(run, process, console, parts)
        bad_files = _restore(run, loop, parts)
        if changes is not None:
            take_over(run, loop, parts.config, changes)
        _announce(parts, console, step=loop.step)
        if process.is_first:
            _record_start(run, loop, parts, bad_files)
        observer = _build_observer(run, loop, parts)
        deaths = explained_deaths(
            workers=parts.choices.workers.value,
            config=str(run.config),
            resume=f"clove resume {run.path}",
        )
        with closing(observer), deaths:
            finished = _train_and_probe(run, loop, parts, bad_files, observer)
        if process.is_first:
            _finish(run, loop, parts, finished=finished)
        process.wait()
        return PretrainResult(run.path, run.backbone, finished, loop.step, observer.latest)


def _build_loop(
    run: RunDirectory, process: Process, console: Console, parts: Parts
) -> TrainingLoop:
    config, choices = parts.config, parts.choices
    plan = choices.plan
    captured = None
    if choices.capture.value:
        captured = CapturedPasses(
            parts.method, choices.precision, process.device, micro_batches=plan.micro_batches
        )
    return TrainingLoop(
        learner=parts.method,
        optimizer=build_optimizer(config.optimizer, parts.method, plan.peak_lr),
        lr=plan.lr(),
        plan=plan,
        precision=choices.precision,
        captured=captured,
        process=process,
        store=CheckpointStore(run.checkpoints, keep=config.checkpoints.keep, warn=console.warn),
        console=console,
    )


def _restore(run: RunDirectory, loop: TrainingLoop, parts: Parts) -> BadFiles:
    """Go on from the checkpoint, if there is one; the bad files that are known from there."""
    # The checkpoint first: it says which images the run had, and a folder that has changed since
    # would give other images to the same positions.
    state = loop.restore()
    parts.images.check_same(state)
    record = partial(record_bad_files, run) if loop.process.is_first else None
    return parts.images.bad_files(state, record)


def _record_start(run: RunDirectory, loop: TrainingLoop, parts: Parts, bad_files: BadFiles) -> None:
    """Keep with the run what it starts with, and have ready what it needs at its end."""
    get_ready()
    record_start(
        run,
        loop.process.device,
        step=loop.step,
        processes=loop.process.world_size,
        choices={**parts.choices.values(), SHORTER_SIDE: {"value": parts.images.shorter_side}},
        bad_files=bad_files.reasons,
    )


def _announce(parts: Parts, console: Console, *, step: int) -> None:
    """Every choice of the run, once, with its reason."""
    config, choices, say = parts.config, parts.choices, console.choice
    if not config.method.trains:
        console.say(f"Nothing is trained with {config.method.name}")
        say("backbone", config.backbone.name, f"the weights that seed {config.seed} gives")
        return
    console.say(f"Pre-training with {config.method.name}")
    workers = f"{counted(choices.workers.value, 'worker')}: {choices.workers.reason}"
    parts.images.announce(workers, console)
    for warning in parts.images.warnings(config):
        console.warn(warning)
    say("backbone", config.backbone.name, _start_of(config, parts.method.backbone.stage))
    for name, value in config.method.summary().items():
        say(name, value)
    _announce_late_views(parts, console)
    choices.announce(config, console)
    if parts.needs is not None:
        parts.needs.announce(console)
    if probed := parts.probes.steps:
        when = f"{len(probed)}, the first at step {probed[0]:,}"
        say("probes", ", ".join(config.probe.names), when)
    choices.warn_of_warmup(console)
    if step:
        console.say(f"Resuming after step {step}")


def _announce_late_views(parts: Parts, console: Console) -> None:
    (usual, first), (larger, total) = _phases(parts)
    if first < total:
        sizes = {before.size: now.size for before, now in zip(usual, larger, strict=True)}
        shown = ", ".join(f"{now} instead of {before}" for before, now in sizes.items())
        console.choice("late views", f"from step {first + 1:,} on: {shown} pixels")


def _start_of(config: PretrainConfig, stage: str) -> str:
    """The stage that is trained, and the weights that training starts from, if they are given."""
    weights = config.backbone.weights
    if weights is None:
        return f"stage {stage}"
    origin = "torchvision's ImageNet weights" if is_imagenet(weights) else str(weights)
    return f"stage {stage}, starts from {origin}"


def _build_observer(run: RunDirectory, loop: TrainingLoop, parts: Parts) -> Observer:
    config, is_first = parts.config, loop.process.is_first
    metrics = Metrics(run, config.logging, start_step=loop.step) if is_first else None
    return Observer(
        config.logging,
        loop.plan,
        loop.process,
        console=loop.console,
        metrics=metrics,
        health=config.health,
        slow_advice=(
            "For a run that ends in minutes, leave out the recipe: clove pretrain --data "
            f"{config.data.source} --out RUN; or give any recipe --minutes 30."
        ),
    )


def _train_and_probe(
    run: RunDirectory, loop: TrainingLoop, parts: Parts, bad_files: BadFiles, observer: Observer
) -> bool:
    """Train and probe what is left; where nothing is, no worker starts."""
    probe = ProbedRun(run, parts.probes, parts.method, loop, observer)
    if loop.step >= loop.plan.total_steps:
        probe.catch_up()
        return True
    store = open_store(parts.choices.cache, len(parts.images), loop.process)
    for specs, end in _phases(parts):
        if loop.step >= end:
            continue
        loop.expect_other_sizes()
        # Before workers start: helpers take all cores for a while, and memory of the GPU.
        _compile_ahead(loop, parts, specs)
        feed = open_feed(
            parts.config,
            parts.images.source,
            specs,
            parts.choices,
            loop.process,
            bad_files=bad_files,
            store=store,
            steps=range(loop.step, end),
        )
        with closing(feed):
            if parts.kernels is not None:
                parts.kernels.wait()
            if not probe.train(feed, until=end):
                return False
    return True


def _phases(parts: Parts) -> list[tuple[tuple[ViewSpec, ...], int]]:
    """Views, and the step after the last that has such views; the last part's may be larger."""
    usual, late = parts.method.views(), parts.config.late_views
    total = parts.choices.plan.total_steps
    return [(usual, late.first_step(total)), (late.specs(usual), total)]


def _compile_ahead(loop: TrainingLoop, parts: Parts, specs: tuple[ViewSpec, ...]) -> None:
    """Compile with all cores, unless other processes of the run do that as well."""
    config, process, choices = parts.config, loop.process, parts.choices
    if process.world_size > 1 or not choices.compilation.value:
        return
    batch = synthetic_batch(
        specs,
        loop.plan.micro_batch,
        device=process.device,
        dtype=choices.precision.dtype if choices.renders_on_gpu else torch.float32,
    )
    start = time.perf_counter()
    done = compile_ahead(
        parts.method,
        batch,
        loop.precision,
        deterministic=config.deterministic,
        activation_memory=config.activation_memory,
    )
    if done is not None:
        done.announce(time.perf_counter() - start, loop.console)


def _finish(run: RunDirectory, loop: TrainingLoop, parts: Parts, *, finished: bool) -> None:
    """Say how it ended; a run that has finished leaves its backbone, a card and the report."""
    if not finished:
        loop.console.say(f"Stopped after step {loop.step}. Go on with: clove resume {run.path}")
        return
    plan, backbone = loop.plan, parts.method.export_backbone()
    export_run(run, parts.config, backbone, images=plan.images, steps=plan.total_steps)
    write_report(run)
    loop.console.say(f"Done: {counted(loop.step, 'step')}.")
    loop.console.choice("backbone", str(run.backbone))
    loop.console.choice("report", str(run.report))
