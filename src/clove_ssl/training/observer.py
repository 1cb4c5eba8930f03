"""What is measured and said while a run is going.

Metrics stay on the device until a step is logged; only then does the host wait
for them. A metric of several processes is their mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from clove_ssl.config.pretraining import HealthConfig, LoggingConfig
from clove_ssl.console import Console
from clove_ssl.methods.base import Learner, StepOutput
from clove_ssl.runs.metrics import Metrics
from clove_ssl.training.batches import Batches
from clove_ssl.training.pace import Pace
from clove_ssl.training.plan import RunPlan
from clove_ssl.training.processes import Process


class Observer:
    """Logs steps: to the metrics file, to the console, with warnings where they are due."""

    def __init__(
        self,
        config: LoggingConfig,
        plan: RunPlan,
        process: Process,
        *,
        console: Console,
        metrics: Metrics | None,
        health: HealthConfig | None = None,
        slow_advice: str = "",
    ) -> None:
        """``slow_advice`` is what to type instead where a CPU would take very long."""
        self._every = config.every
        self._plan = plan
        self._process = process
        self._console = console
        self._metrics = metrics
        self._health = CollapseWatch(health, console) if health else None
        self._clock = time.perf_counter()
        self._steps_since = 0
        self._pace = Pace(plan, console, slow_advice if process.device.type == "cpu" else "")
        self.latest: dict[str, float] = {}
        if process.device.type == "cuda":  # this process may have had other runs before
            torch.cuda.reset_peak_memory_stats(process.device)

    def wants(self, step: int) -> bool:
        """Whether the step that begins after ``step`` steps is logged."""
        return (step + 1) % self._every == 0 or step == 0 or step + 1 == self._plan.total_steps

    def kept_shown(self, step: int) -> AbstractContextManager[None]:
        """Meanwhile a terminal shows how far the run is, however long a pass takes."""
        return self._pace.kept_shown(step)

    def pass_done(self, step: int) -> None:
        """Count a forward and backward pass, of which a step may have many."""
        self._pace.pass_done(step)

    def step_done(self, done: int) -> None:
        """Count step number ``done`` towards the throughput."""
        self._steps_since += 1
        self._pace.step_done(done)

    def log(
        self,
        done: int,
        learner: Learner,
        output: StepOutput,
        *,
        lr: float,
        norm: Tensor,
        feed: Batches,
    ) -> None:
        """Read the metrics of step number ``done`` and pass them on; all processes call this."""
        metrics = self._step_metrics(learner, output, norm)
        metrics |= {"lr": lr, "epoch": self._plan.epoch(done)} | self._rates(feed)
        self.latest = metrics
        if self._metrics:
            self._metrics.write(done, metrics)
        self._pace.logged(done, metrics, learner.headline)
        if self._health:
            self._health.check(done, metrics)
        feed.report_bad_files(self._console)

    def evaluated(self, done: int, scores: Mapping[str, float]) -> None:
        """Record what an evaluation after ``done`` steps gave; its time counts for no step."""
        if self._metrics:
            self._metrics.write(done, scores)
        self._clock, self._steps_since = time.perf_counter(), 0
        self._pace.pause()

    def settle(self) -> None:
        """Bring all that was logged to the disk; a thread may do this while others are logged."""
        if self._metrics:
            self._metrics.settle()

    def close(self) -> None:
        """Close the metrics file and its copies."""
        if self._metrics:
            self._metrics.close()

    def _step_metrics(self, learner: Learner, output: StepOutput, norm: Tensor) -> dict[str, float]:
        tensors = {"loss": output.loss.detach(), **output.metrics, "gradient_norm": norm}
        tensors |= learner.health(output)
        # All metrics in one tensor: one message between processes and one wait for the device.
        values = torch.stack([value.float() for value in tensors.values()])
        means = self._process.sum(values) / self._process.world_size
        return dict(zip(tensors, means.tolist(), strict=True))

    def _rates(self, feed: Batches) -> dict[str, float]:
        now = time.perf_counter()
        seconds = now - self._clock
        images = self._steps_since * self._plan.batch_size
        # The wait for the metrics above came first, so this clock has no work of the device left
        # out.
        waited = feed.waiting.take_seconds()
        rates = {"images_per_second": images / seconds, "data_wait": waited / seconds}
        self._clock, self._steps_since = now, 0
        if self._process.device.type == "cuda":
            rates["memory_gib"] = torch.cuda.max_memory_allocated(self._process.device) / 2**30
        return rates


class CollapseWatch:
    """Warns when features stop telling images apart; once, until they recover."""

    def __init__(self, limits: HealthConfig, console: Console) -> None:
        self._limits = {"feature_std": limits.min_std, "effective_rank": limits.min_rank}
        self._console = console
        self._warned: set[str] = set()

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare the metrics of a logged step with the limits."""
        for name, limit in self._limits.items():
            low = name in metrics and metrics[name] < limit
            if low and name not in self._warned:
                self._console.warn(
                    f"step {step}: {name} is {metrics[name]:.3g}, under {limit}: the features may "
                    "be collapsing. See docs/health.md; often a smaller --lr helps."
                )
            # Forgotten once the metric recovers: a second collapse is news again.
            self._warned = self._warned | {name} if low else self._warned - {name}


def gradient_norm(module: nn.Module) -> Tensor:
    """Length of the gradient of all parameters."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def mean_output(outputs: list[StepOutput]) -> StepOutput:
    """One output for several micro-batches: mean loss and metrics, artifacts of the last."""
    if len(outputs) == 1:
        return outputs[0]
    names = outputs[0].metrics
    metrics = {name: torch.stack([o.metrics[name] for o in outputs]).mean() for name in names}
    loss = torch.stack([output.loss.detach() for output in outputs]).mean()
    return StepOutput(loss, metrics, outputs[-1].artifacts)


def describe_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics for an error message."""
    shown = {name: value for name, value in metrics.items() if not math.isclose(value, 0)}
    return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
