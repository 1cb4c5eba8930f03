"""Pre-training from start to end, the same on a laptop and on many nodes.

A run is a pure function of its config: image order, augmentation and schedules
depend on the step alone, and a checkpoint holds the rest. So resuming repeats
the uninterrupted run bit for bit on the same device.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils.data import DataLoader

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import Console
from clove_ssl.data.bad_files import BadFiles
from clove_ssl.data.decode import find_batch_decoder
from clove_ssl.data.labels.classified import only_labelled
from clove_ssl.data.loading import choose_workers, load_batches
from clove_ssl.data.order import ImageOrder, StepPlan
from clove_ssl.data.reading import BatchReader, EncodedImages, RenderedViews
from clove_ssl.data.sources import ImageSource, open_source, source_warnings
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.methods.base import Method
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining.compile.ahead import compile_ahead
from clove_ssl.pretraining.compile.method import compile_method
from clove_ssl.pretraining.feed import DeviceFeed, ViewFeed
from clove_ssl.pretraining.outcome import write_outcome
from clove_ssl.pretraining.plan import PretrainPlan, plan_run
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.probes.in_run import ProbedRun, RunProbes
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import Metrics, last_values, read_metrics
from clove_ssl.runs.provenance import record_start
from clove_ssl.training.batches import Batches
from clove_ssl.training.checkpoints import CheckpointStore, State
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.observer import Observer
from clove_ssl.training.plan import RunPlan
from clove_ssl.training.precision import Precision, choose_precision
from clove_ssl.training.processes import Process, joined, owned
from clove_ssl.training.repeatability import start_repeatably
from clove_ssl.views.render.gpu import has_kernels
from clove_ssl.weights.load import load_weights

T = TypeVar("T")

# A first start compiles for two minutes and more; a ResNet-50 then saves about 50 ms per step.
STEPS_THAT_REPAY_COMPILATION = 3000


@dataclass(frozen=True)
class PretrainResult:
    """What a run leaves behind."""

    run: Path
    backbone: Path
    finished: bool
    step: int
    figures: dict[str, float]


@dataclass(frozen=True)
class Parts:
    """What can be built, and found wrong, before anything is written."""

    config: PretrainConfig  # with what follows from the data filled in
    source: ImageSource
    plan: PretrainPlan
    precision: Precision
    method: Method
    probes: RunProbes


def pretrain(config: PretrainConfig) -> PretrainResult:
    """Pre-train a backbone; the run directory ``config.out`` must be new."""
    with joined(config.device) as process:
        if process.is_first:
            directory.check_is_new(config.out)  # before minutes of looking through the data
        parts = _prepare(config, process)
        if process.is_first:
            files.save(parts.config, directory.create(config.out).config)
        return _train(RunDirectory(config.out), process, parts)


def resume(path: str | Path, *, micro_batch: int | None = None) -> PretrainResult:
    """Continue a run from its last good checkpoint.

    Args:
        path: The run directory.
        micro_batch: Images per forward pass and process, where another number of processes
            needs another one than the run was started with.
    """
    run = directory.find(Path(path))
    config = files.load(PretrainConfig, run.config)
    if micro_batch is not None:
        config = replace(config, micro_batch=micro_batch)
    with joined(config.device) as process:
        return _train(run, process, _prepare(config, process))


def _prepare(config: PretrainConfig, process: Process) -> Parts:
    start_repeatably(config.seed, process.device, deterministic=config.deterministic)
    source = open_source(config.data)
    if config.method.needs_labels:
        source = only_labelled(source)
        config = replace(config, method=config.method.for_classes(len(source.class_names)))
    plan = plan_run(
        config,
        images=len(source),
        processes=process.world_size,
        device_type=process.device.type,
    )
    precision = choose_precision(config.precision, process.device)
    precision.prepare()
    method = _build_method(config, process)
    if _compiles(config, plan, process):
        compile_method(method, activation_memory=config.activation_memory)
    return Parts(
        config, source, plan, precision, method, _open_probes(config, plan, source, method)
    )


def _train(run: RunDirectory, process: Process, parts: Parts) -> PretrainResult:
    config = parts.config
    with owned(run, process) as console:
        loop = _build_loop(config, run, process, console, parts)
        bad_files = _known_bad_files(config, len(parts.source), loop.restore())
        _announce(config, loop, parts)
        if process.is_first:
            record_start(run, process.device, step=loop.step, processes=process.world_size)
        observer = _build_observer(config, run, loop)
        with closing(observer):
            finished = _run(loop, run, parts, bad_files, observer)
        if process.is_first:
            _say_how_it_ended(config, run, loop, parts.method, finished=finished)
        process.wait()
        return PretrainResult(run.path, run.backbone, finished, loop.step, observer.latest)


def _open_probes(
    config: PretrainConfig, plan: PretrainPlan, source: ImageSource, method: Method
) -> RunProbes:
    largest = max((spec.size for spec in method.views()), default=224)
    return RunProbes(config, plan, source, size=largest)


def _run(
    loop: TrainingLoop, run: RunDirectory, parts: Parts, bad_files: BadFiles, observer: Observer
) -> bool:
    """Train and probe what is left; where nothing is, no worker starts."""
    probe = ProbedRun(run, parts.probes, parts.method, loop, observer)
    if loop.step >= loop.plan.total_steps:
        probe.catch_up()
        return True
    _compile_ahead(loop, parts)
    with closing(_open_feed(parts.config, loop, parts, bad_files)) as feed:
        return probe.train(feed)


def _build_method(config: PretrainConfig, process: Process) -> Method:
    backbone = build_backbone(config.backbone)
    if config.backbone.weights is not None:
        load_weights(backbone, config.backbone.weights)
    method = config.method.build(backbone)
    if process.world_size > 1 and config.sync_norm:
        synchronize_norms(method, process.device.type)
    if process.device.type == "cuda":
        method = method.to(memory_format=torch.channels_last)
    return method.to(process.device)


def _build_loop(
    config: PretrainConfig, run: RunDirectory, process: Process, console: Console, parts: Parts
) -> TrainingLoop:
    return TrainingLoop(
        learner=parts.method,
        optimizer=build_optimizer(config.optimizer, parts.method, parts.plan.peak_lr),
        lr=parts.plan.lr(),
        plan=parts.plan,
        precision=parts.precision,
        process=process,
        store=CheckpointStore(run.checkpoints, keep=config.checkpoints.keep, warn=console.warn),
        console=console,
    )


def _known_bad_files(config: PretrainConfig, images: int, state: State) -> BadFiles:
    """Bad files of an earlier start; refuses a source that has changed since."""
    if state and state["images"] != images:
        raise UserError(
            f"{config.data.source} has {images} images, but this run was started with "
            f"{state['images']}, so their order would change. Restore the files, or start a new "
            "run with another --out."
        )
    bad_files = BadFiles(config.data, images)
    bad_files.reasons.update(state.get("bad_files", {}))
    return bad_files


def _open_feed(
    config: PretrainConfig, loop: TrainingLoop, parts: Parts, bad_files: BadFiles
) -> Batches:
    process, source, specs = loop.process, parts.source, parts.method.views()
    if not _renders_on_gpu(config, process):
        views = RenderedViews(source, specs, config.data, seed=config.seed)
        return ViewFeed(_load(config, loop, views), specs, process, bad_files=bad_files)
    decoder = find_batch_decoder()
    images = EncodedImages(
        source, specs, config.data, seed=config.seed, keeps_jpegs=decoder is not None
    )
    return DeviceFeed(
        _load(config, loop, images),
        images,
        process,
        bad_files=bad_files,
        dtype=loop.precision.dtype,
        decoder=decoder,
    )


def _load(config: PretrainConfig, loop: TrainingLoop, reader: BatchReader[T]) -> DataLoader[T]:
    plan, process = loop.plan, loop.process
    order = StepPlan(
        ImageOrder(len(reader.source), config.seed),
        batch_size=plan.batch_size,
        processes=process.world_size,
        rank=process.rank,
        micro_batch=plan.micro_batch,
    )
    return load_batches(
        reader,
        order,
        workers=_workers(config, process)[0],
        prefetch=config.data.prefetch,
        start_step=loop.step,
        total_steps=plan.total_steps,
        pin_memory=process.device.type == "cuda",
    )


def _compiles(config: PretrainConfig, plan: RunPlan, process: Process) -> bool:
    """Whether networks are compiled: by default where the run is long enough to repay it."""
    repays = process.device.type == "cuda" and plan.total_steps >= STEPS_THAT_REPAY_COMPILATION
    return config.compile == "always" or (config.compile == "auto" and repays)


def _compile_ahead(loop: TrainingLoop, parts: Parts) -> None:
    """Compile with all cores, unless other processes of the run do that as well."""
    config, process = parts.config, loop.process
    if process.world_size > 1 or not _compiles(config, loop.plan, process):
        return
    on_gpu = _renders_on_gpu(config, process)
    batch = synthetic_batch(
        parts.method.views(),
        loop.plan.micro_batch,
        device=process.device,
        dtype=loop.precision.dtype if on_gpu else torch.float32,
    )
    start = time.perf_counter()
    done = compile_ahead(
        parts.method,
        batch,
        loop.precision,
        deterministic=config.deterministic,
        activation_memory=config.activation_memory,
    )
    if done is None:
        return
    facts = f"{done.graphs} graphs by {done.helpers} processes"
    loop.console.say(f"Compiled {facts} in {time.perf_counter() - start:.0f} s")
    if done.failed:
        loop.console.warn(
            f"{done.failed} of the processes failed; the first step compiles their graphs"
        )


def _renders_on_gpu(config: PretrainConfig, process: Process) -> bool:
    on_gpu = process.device.type == "cuda"
    if config.data.render == "auto":
        return has_kernels(process.device)
    if config.data.render == "gpu" and not on_gpu:
        raise UserError(
            "--data.render gpu needs a GPU; this run is on a CPU. Leave it out to let the workers "
            "render."
        )
    return config.data.render == "gpu"


def _workers(config: PretrainConfig, process: Process) -> tuple[int, str]:
    return choose_workers(
        config.data,
        processes_here=process.local_world_size,
        trains_on_cpu=process.device.type == "cpu",
    )


def _build_observer(config: PretrainConfig, run: RunDirectory, loop: TrainingLoop) -> Observer:
    is_first = loop.process.is_first
    metrics = Metrics(run, config.logging, start_step=loop.step) if is_first else None
    return Observer(
        config.logging,
        loop.plan,
        loop.process,
        console=loop.console,
        metrics=metrics,
        health=config.health,
    )


def _announce(config: PretrainConfig, loop: TrainingLoop, parts: Parts) -> None:
    """Every choice of the run, once, with its reason."""
    plan, process, say, source = loop.plan, loop.process, loop.console.choice, parts.source
    if not config.method.trains:
        loop.console.say(f"Nothing is trained with {config.method.name}")
        say("backbone", config.backbone.name, f"the weights that seed {config.seed} gives")
        return
    workers, why = _workers(config, process)
    loop.console.say(f"Pre-training with {config.method.name}")
    say("data", f"{config.data.source}: {len(source):,} images", f"{workers} workers: {why}")
    for warning in source_warnings(source):
        loop.console.warn(warning)
    say("backbone", config.backbone.name, f"stage {parts.method.backbone.stage}")
    for name, value in config.method.summary().items():
        say(name, value)
    say("device", f"{process.world_size} x {process.device.type}", f"torch {torch.__version__}")
    say("precision", loop.precision.name, loop.precision.reason)
    say("rendering", "on the GPU" if _renders_on_gpu(config, process) else "in the workers")
    _announce_compilation(config, loop)
    say(
        "batch",
        f"{plan.batch_size} images",
        f"{plan.processes} process(es) x {plan.micro_batches} x {plan.micro_batch}",
    )
    say("steps", f"{plan.total_steps:,}", f"{plan.epoch(plan.total_steps):.1f} epochs")
    say("learning rate", f"peak {plan.peak_lr:g}", f"{plan.warmup_steps} warm-up steps")
    say("checkpoints", f"every {plan.checkpoint_every:,} steps", f"{config.checkpoints.keep} kept")
    if steps := parts.probes.steps:
        say(
            "probes", ", ".join(config.probe.names), f"{len(steps)}, the first at step {steps[0]:,}"
        )
    if plan.warmup_steps >= plan.total_steps:
        loop.console.warn(
            f"the warm-up ({plan.warmup_steps} steps) is longer than the run ({plan.total_steps}), "
            "so the peak learning rate is never reached. Shorten it: --optimizer.warmup-epochs"
        )
    if loop.step:
        loop.console.say(f"Resuming after step {loop.step}")


def _announce_compilation(config: PretrainConfig, loop: TrainingLoop) -> None:
    kept = config.activation_memory
    if _compiles(config, loop.plan, loop.process):
        loop.console.choice("compilation", "yes", "the first step takes a minute or two")
        if kept < 1:
            loop.console.choice(
                "activations", f"{kept:.0%} kept", "the rest is computed again, to save memory"
            )
    elif kept < 1:
        loop.console.warn(
            f"activation_memory={kept:g} has no effect on networks that are not compiled. Compile "
            "them: --compile always"
        )


def _say_how_it_ended(
    config: PretrainConfig,
    run: RunDirectory,
    loop: TrainingLoop,
    method: Method,
    *,
    finished: bool,
) -> None:
    if not finished:
        loop.console.say(f"Stopped after step {loop.step}. Go on with: clove resume {run.path}")
        return
    write_outcome(run, config, loop.plan, method, figures=last_values(read_metrics(run)))
    loop.console.say(f"Done: {loop.step} steps.")
    loop.console.choice("backbone", str(run.backbone))
    loop.console.choice("report", str(run.report))
