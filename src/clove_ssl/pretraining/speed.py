"""How long an image takes on this machine, measured with a few steps before a run begins.

The steps are those of the run, on made-up pixels; what workers do for an image is timed with
real ones. Nothing of it stays: the network that is measured is thrown away.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.cores import available_cores
from clove_ssl.data.order import ImageOrder
from clove_ssl.data.reading import RenderedViews
from clove_ssl.data.sources import ImageSource
from clove_ssl.methods.base import Method, Progress
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.training.numerics import choose_precision, start_repeatably
from clove_ssl.training.plan import LARGEST_MICRO_BATCH, fit_micro_batch
from clove_ssl.training.processes import placed
from clove_ssl.views.batch import ViewBatch

_PROGRESS = Progress(0, 1000)
_RENDERED = 8  # images
_FEW = 8
_GPU_RENDERING = 1e-4  # seconds for an image to be decoded and rendered beside the step
_SLACK = 1.1  # checkpoints, logging, and workers that take turns with the training on a CPU


@dataclass(frozen=True)
class Speed:
    """What one image costs."""

    seconds_per_image: float

    @property
    def images_per_second(self) -> float:
        return 1 / self.seconds_per_image


def measure_speed(config: PretrainConfig, source: ImageSource, device: torch.device) -> Speed:
    """Time steps of a run and the reading of its images."""
    start_repeatably(config.seed, device, deterministic=config.deterministic)  # as the run will
    computing = _time_computing(config, device) * config.late_views.cost(config.method.view_specs())
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the run starts with all of the memory
        return Speed(_SLACK * (computing + _GPU_RENDERING))
    return Speed(_SLACK * (computing + _time_rendering(config, source) / available_cores()))


def _time_computing(config: PretrainConfig, device: torch.device) -> float:
    """Seconds per image of forward pass, backward pass and optimizer."""
    size = fit_micro_batch(config.micro_batch, config.batch_size, LARGEST_MICRO_BATCH[device.type])
    if device.type == "cpu":  # which is as fast with few images, and should answer soon
        size = min(size, _FEW)
    method = placed(config.method.build(build_backbone(config.backbone)), device)
    method.train()
    batch = synthetic_batch(method.views(), size, device=device, dtype=torch.float32)
    step = _Step(config, method, batch, device)
    if device.type == "cpu":
        step.repeat(1)
        # The quickest one: whatever else a laptop does for a second shall not decide on a run.
        return min(step.repeat(1) for _ in range(3)) / size
    step.repeat(5)
    return step.repeat(10) / (10 * size)


class _Step:
    """Steps on one batch, again and again."""

    def __init__(
        self, config: PretrainConfig, method: Method, batch: ViewBatch, device: torch.device
    ) -> None:
        self._method, self._batch, self._device = method, batch, device
        self._precision = choose_precision(config.precision, device)
        self._precision.prepare()
        self._optimizer = build_optimizer(config.optimizer, method, 1e-6)

    def repeat(self, times: int) -> float:
        """Do some steps; the seconds they took."""
        start = time.perf_counter()
        for _ in range(times):
            with self._precision.autocast():
                output = self._method(self._batch, _PROGRESS)
            output.loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._method.after_step(_PROGRESS)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - start


def _time_rendering(config: PretrainConfig, source: ImageSource) -> float:
    """Seconds that one worker needs for the views of an image."""
    reader = RenderedViews(source, config.method.view_specs(), config.data, seed=config.seed)
    draws = ImageOrder(len(source), config.seed).draws(0, _RENDERED)
    start = time.perf_counter()
    reader[draws]
    return (time.perf_counter() - start) / _RENDERED
