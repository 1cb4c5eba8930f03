"""A run for whoever names only images: chosen for them and for the machine, with reasons.

The choice is a recipe with some values changed, made before the run begins. What it comes to is
written to the run's config like anything that was typed, so the run itself stays a function of
its config, and ``clove resume`` measures nothing again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.console import Console, duration
from clove_ssl.cores import describe_cores
from clove_ssl.data.sources import ImageSource, open_source, typical_shorter_side
from clove_ssl.errors import UserError, counted
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.speed import Speed, measure_speed
from clove_ssl.training.processes import choose_device

Device = Literal["auto", "cpu", "cuda"]

MINUTES = {"cpu": 8.0, "cuda": 60.0}
"""How long a run takes that nobody gave a time, unless too few steps fit into it."""

_RECIPES = {"cpu": "clove-plus-r18-cpu", "cuda": "clove-plus-r18-small"}
_BATCHES = {"cpu": 32, "cuda": 256}
_LARGE_NETWORK = "resnet50"
_PHOTOS_FOR_A_LARGE_NETWORK = 5_000
_MEMORY_FOR_A_LARGE_NETWORK = 12.0  # GiB
_MOST_EPOCHS = 800
_FEWEST_STEPS = 100

# Side, number and side of the small views, for photos whose shorter side is at least the first.
_VIEWS = {"cpu": ((96, 2, 48), (64, 2, 32)), "cuda": ((224, 6, 96), (160, 2, 96), (96, 2, 48))}
# Measured for a ResNet-50 with two views of 224 and six of 96 pixels in bf16; a ResNet-18 is taken
# to have a quarter.
_GIB_PER_PIXEL = {"resnet50": 1e-6, "resnet18": 2.5e-7}


@dataclass(frozen=True)
class Machine:
    """What a run can compute with."""

    device: torch.device
    name: str
    memory: float  # GiB of the GPU; 0 on a CPU, whose memory is rarely the limit

    @classmethod
    def here(cls, device: torch.device) -> Machine:
        """The machine this process is on."""
        if device.type == "cpu":
            return cls(device, f"a CPU with {describe_cores()}", 0.0)
        properties = torch.cuda.get_device_properties(device)
        return cls(device, f"one {properties.name}", properties.total_memory / 2**30)

    @property
    def kind(self) -> str:
        return self.device.type


@dataclass(frozen=True)
class Line:
    """One thing that was chosen, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Photos:
    """What is known of the images before a run."""

    count: int
    side: int  # typical, the shorter one

    @classmethod
    def of(cls, source: ImageSource, data: DataConfig) -> Photos:
        """Look at some images; refuse a source of which none can be read."""
        side = typical_shorter_side(source)
        if len(source) >= 2 and side is not None:
            return cls(len(source), side)
        problem = "and none of those tried can be read" if side is None else "too few"
        raise UserError(
            f"{data.source} has {counted(len(source), 'image')}, {problem}. Expected at least two "
            "readable images, better a few hundred; give --data another folder."
        )


def choose_run(out: Path, photos: Photos, machine: Machine) -> tuple[PretrainConfig, list[Line]]:
    """Network, views and batch for some photos and a machine; how long is decided later."""
    base = recipe(_RECIPES[machine.kind], out)
    network = _choose_network(base, photos, machine)
    views = _choose_views(photos, machine)
    batch = _choose_batch(photos, machine)
    config = files.changed(
        base,
        {
            "backbone": {"name": network.value},
            "method": {"views": views},
            "batch_size": batch,
        },
        where="the automatic choice",
    )
    micro = _fit_memory(config, machine)
    return replace(config, micro_batch=micro), [
        network,
        Line("views", _sizes(config), _why_views(views, photos)),
        Line("batch", f"{batch} images", _why_batch(batch, micro, photos, machine)),
    ]


def _choose_network(base: PretrainConfig, photos: Photos, machine: Machine) -> Line:
    method = base.method.name
    if machine.kind == "cpu":
        return Line(
            "network", base.backbone.name, f"the largest that a CPU trains in minutes; {method}"
        )
    if photos.count < _PHOTOS_FOR_A_LARGE_NETWORK:
        why = f"a larger one needs {_PHOTOS_FOR_A_LARGE_NETWORK:,} photos to gain much; {method}"
        return Line("network", base.backbone.name, why)
    if machine.memory < _MEMORY_FOR_A_LARGE_NETWORK:
        why = f"the GPU has {machine.memory:.0f} GiB; {method}"
        return Line("network", base.backbone.name, why)
    return Line("network", _LARGE_NETWORK, f"enough photos and memory for it; {method}")


def _choose_views(photos: Photos, machine: Machine) -> dict[str, Any]:
    """The largest views that photos of this size fill; the smallest where none do."""
    sizes = _VIEWS[machine.kind]
    large, count, small = next((row for row in sizes if row[0] <= photos.side), sizes[-1])
    return {"global_size": large, "local_count": count, "local_size": small}


def _why_views(views: dict[str, Any], photos: Photos) -> str:
    if photos.side < views["global_size"]:
        return f"photos have about {photos.side} pixels, so views are enlarged and blurred"
    return f"photos have about {photos.side} pixels on their shorter side"


def _choose_batch(photos: Photos, machine: Machine) -> int:
    """A power of two, not above the number of photos."""
    return min(_BATCHES[machine.kind], 1 << (photos.count.bit_length() - 1))


def _why_batch(batch: int, micro: int | None, photos: Photos, machine: Machine) -> str:
    if batch < _BATCHES[machine.kind]:
        return f"there are {photos.count} photos"
    if micro is not None:
        return f"{micro} at a time, for {machine.memory:.0f} GiB of memory"
    return "many short steps" if machine.kind == "cpu" else "fills the GPU and fits its memory"


def _fit_memory(config: PretrainConfig, machine: Machine) -> int | None:
    """Images at a time, where a batch does not fit into the memory of the GPU at once."""
    if machine.kind == "cpu":
        return None
    pixels = config.late_views.most_pixels(config.method.view_specs())
    # The rest is for weights, the optimizer, rendered batches ahead, and what others use.
    fits = 0.6 * machine.memory / (pixels * _GIB_PER_PIXEL[config.backbone.name])
    # Rounded down to a power of two, which divides the batch.
    micro = 1 << (max(1, int(fits)).bit_length() - 1)
    return micro if micro < config.batch_size else None


def fit_minutes(
    config: PretrainConfig, images: int, speed: Speed, minutes: float
) -> tuple[PretrainConfig, Line]:
    """As many epochs as fit into some minutes, or as many steps where not even one does."""
    affordable = 60 * minutes * speed.images_per_second
    rate = f"{_rate(speed.images_per_second)} measured"
    if affordable < images:
        steps = max(1, int(affordable / config.batch_size))
        config = _with_length(config, epochs=1, steps=steps, share=affordable / images)
        whole = duration(images * speed.seconds_per_image)
        why = f"{rate}; one pass over all {images:,} images would take {whole}"
        lasts = duration(steps * config.batch_size * speed.seconds_per_image)
        return config, Line("length", f"{counted(steps, 'step')}, about {lasts}", why)
    epochs = min(_MOST_EPOCHS, int(affordable / images))
    config = _with_length(config, epochs=epochs, steps=None, share=epochs)
    seconds = epochs * images * speed.seconds_per_image
    value = f"{counted(epochs, 'epoch')}, about {duration(seconds)}"
    why = rate if epochs < _MOST_EPOCHS else f"{rate}; more epochs would add little"
    return config, Line("length", value, why)


def _with_length(
    config: PretrainConfig, *, epochs: int, steps: int | None, share: float
) -> PretrainConfig:
    """A run of another length, which warms up for a twentieth of it."""
    # A recipe's warm-up is made for its own length; five epochs would be all of a short run.
    optimizer = replace(config.optimizer, warmup_epochs=round(0.05 * share, 4))
    return replace(config, epochs=epochs, steps=steps, optimizer=optimizer)


@dataclass(frozen=True)
class Suggestion:
    """A run for some images on this machine, but for its length."""

    config: PretrainConfig
    lines: list[Line]
    photos: Photos
    machine: Machine


def suggest_run(out: Path, data: DataConfig, device: Device = "auto") -> Suggestion:
    """Look at the images and the machine, and choose."""
    # Processes that measure for themselves could choose runs of different lengths, and would then
    # wait for each other without end.
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "A run of several processes is not chosen by itself, since each would measure another "
            "speed. Name a recipe, such as clove-plus-r50-200ep, and --epochs."
        )
    photos = Photos.of(open_source(data), data)
    machine = Machine.here(choose_device(device))
    config, lines = choose_run(out, photos, machine)
    return Suggestion(replace(config, data=data), lines, photos, machine)


def settle_run(
    suggested: Suggestion,
    config: PretrainConfig,
    console: Console,
    *,
    minutes: float | None = None,
    keep_length: bool = False,
) -> PretrainConfig:
    """Give the run its length, unless it was asked for, and say what it has become and why.

    ``config`` is what was suggested, with the changes that somebody asked for.
    """
    photos, machine = suggested.photos, suggested.machine
    asked = config
    with console.working("Measuring the speed of this machine"):
        config, length = fit_budget(config, minutes, machine.device, keep_length=keep_length)
    console.say(f"Chosen for {photos.count:,} photos and {machine.name}:")
    for line in [*_as_asked(suggested, asked), length]:
        console.choice(line.name, line.value, line.reason)
    warn_of_few_steps(config, photos.count, console)
    return config


def _as_asked(suggested: Suggestion, config: PretrainConfig) -> Iterator[Line]:
    """The lines of a suggestion, but for what somebody wanted otherwise."""
    usual = suggested.config
    other = {
        "network": (usual.backbone.name, config.backbone.name),
        "views": (_sizes(usual), _sizes(config)),
        "batch": (f"{usual.batch_size} images", f"{config.batch_size} images"),
    }
    for line in suggested.lines:
        was, now = other[line.name]
        yield line if was == now else Line(line.name, now, "as asked")


def _sizes(config: PretrainConfig) -> str:
    counts = Counter(spec.size for spec in config.method.view_specs())
    return " and ".join(f"{count} of {size}" for size, count in counts.items()) + " pixels"


def fit_budget(
    config: PretrainConfig,
    minutes: float | None,
    device: torch.device,
    *,
    keep_length: bool = False,
) -> tuple[PretrainConfig, Line]:
    """Measure this machine, and make a run last ``minutes``, or say how long it lasts."""
    source = open_source(config.data)
    speed = measure_speed(config, source, device)
    if not keep_length:
        minutes = minutes or usual_minutes(config, speed, device)
        return fit_minutes(config, len(source), speed, minutes)
    steps = config.total_steps(len(source))
    lasts = duration(steps * config.batch_size * speed.seconds_per_image)
    return config, Line("length", f"{counted(steps, 'step')}, about {lasts}", "as asked")


def usual_minutes(config: PretrainConfig, speed: Speed, device: torch.device) -> float:
    """How long a run takes that nobody gave a time: long enough to learn at all."""
    least = 1.05 * _FEWEST_STEPS * config.batch_size * speed.seconds_per_image / 60
    return max(MINUTES[device.type], least)


def warn_of_few_steps(config: PretrainConfig, images: int, console: Console) -> None:
    """Say when a run that was fitted to a time is too short to learn."""
    steps = config.total_steps(images)
    if steps < _FEWEST_STEPS:
        console.warn(
            f"a network learns next to nothing in {counted(steps, 'step')}; the effect shows from "
            f"{_FEWEST_STEPS} on. Give it more time: --minutes"
        )


def _rate(images_per_second: float) -> str:
    digits = 0 if images_per_second >= 10 else 1
    return f"{images_per_second:,.{digits}f} images/s"
