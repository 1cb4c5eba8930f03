"""What is measured and said while a run is going.

Metrics stay on the device until a step is logged; only then does the host wait
for them. A metric of several processes is their mean.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clove_ssl.config.pretraining import HealthConfig, LoggingConfig
from clove_ssl.console import Console, LiveLine, duration, meanwhile, rate
from clove_ssl.methods.base import Learner, StepOutput
from clove_ssl.runs.metrics import Metrics
from clove_ssl.training.plan import RunPlan
from clove_ssl.training.processes import Process

_REDRAW = 0.2  # seconds
_SILENCE = 2.0  # seconds without a pass after which the line tells how long this one takes
_SETTLED = 3.0  # seconds after which the speed of an interval says more than that of the last one
_FIRST_WORD = 20.0  # seconds after which a CPU has to say how long it takes
_LONG = 3600.0
_MONTHS = 60 * 86_400.0


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
        on_cpu = process.device.type == "cpu"
        advice = slow_advice if on_cpu else ""
        self._pace = Pace(plan, console, advice, starts_slowly=not on_cpu)
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


class Pace:
    """Shows how far a run is, how fast it goes and how long it still takes.

    A terminal shows a line that follows every pass through the network, and tells the seconds of
    a pass that is long; a log has one line per interval. Nothing here asks the device for
    anything: numbers are those of the last logged step.
    ``advice`` is said once where the run would take longer than an hour. A run that
    ``starts_slowly``, as on a GPU, whose kernels are made in the first step, says nothing
    about its speed until an interval without that step has passed.
    """

    def __init__(
        self, plan: RunPlan, console: Console, advice: str = "", *, starts_slowly: bool = False
    ) -> None:
        self._plan = plan
        self._console = console
        self._advice = advice
        self._starts_slowly = starts_slowly
        self._terms: list[str] = []
        self._speed: float | None = None  # images/s of the last interval
        self._drawn = 0.0
        self._drew_pass = False
        self._step = 0
        self._passes = 0
        self._has_begun = False  # whether a pass was made since the line is shown
        self._warned = False
        self._start = self._interval = self._moved = time.perf_counter()

    @contextmanager
    def kept_shown(self, step: int) -> Iterator[None]:
        """Meanwhile the line is alive even inside a pass that takes minutes, as on a CPU."""
        if self._console.is_silent:
            yield
            return
        self._step, self._moved, self._has_begun = step, time.perf_counter(), False
        with meanwhile(self._tick if self._console.is_live else self._tell_of_first_step):
            yield

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(_REDRAW):
            seconds = time.perf_counter() - self._moved
            if seconds > _SILENCE:
                self._console.live(self._line(self._step, waiting=seconds))

    def _tell_of_first_step(self, ended: threading.Event) -> None:
        """Huge images or a slow machine take long before there is a figure to show."""
        if not ended.wait(_SILENCE) and not self._has_begun:
            self._console.progress("Reading images and making the first step ...")

    def pass_done(self, step: int) -> None:
        """A pass of the step that follows ``step`` others has been made."""
        self._passes, self._has_begun = self._passes + 1, True
        now = time.perf_counter()
        self._step, self._moved = step, now
        if self._advice and now - self._start > _FIRST_WORD:
            self._advise(step)
        self._drew_pass = self._console.is_live and now - self._drawn > _REDRAW
        if self._drew_pass:
            self._drawn = now
            self._console.live(self._line(step))

    def step_done(self, done: int) -> None:
        """The last pass belonged to step number ``done``, which has ended."""
        self._step = done
        if self._drew_pass:  # else the line would count a step less until the next pass has ended
            self._drew_pass = False
            self._console.live(self._line(done))

    def logged(self, done: int, metrics: Mapping[str, float], headline: tuple[str, ...]) -> None:
        """A step was logged: the line of the interval, and numbers for those that follow."""
        self._speed = None if self._starts_slowly else metrics["images_per_second"]
        self._starts_slowly = False
        terms = [f"{name} {metrics[name]:.3f}" for name in ("loss", *headline)]
        wait, epoch = f"wait {100 * metrics['data_wait']:.0f} %", f"epoch {metrics['epoch']:.2f}"
        facts = [f"step {done}/{self._plan.total_steps}", epoch, *terms, wait]
        if self._speed is not None:
            facts.insert(-1, rate(self._speed))
            facts.append(f"left {duration(self._left(done) / max(self._speed, 1e-9))}")
            self._warn_of_months(done, self._speed)
        self._terms = [terms[0], epoch, wait, *terms[1:]]
        self.pause()
        self._step, self._moved = done, self._interval
        self._console.progress("  ".join(facts), self._line(done))

    def _warn_of_months(self, done: int, speed: float) -> None:
        """Say once, as soon as the speed is known, that nobody will see the end."""
        seconds = self._left(done) / max(speed, 1e-9)
        if seconds > _MONTHS and not self._warned:
            self._warned = True
            self._console.warn(
                f"at this speed the run takes {duration(seconds)} more. Fewer --epochs or "
                "--steps, or a smaller network, would shorten it."
            )

    def pause(self) -> None:
        """Something else took its time, which counts for no pass."""
        self._interval, self._passes = time.perf_counter(), 0

    def _line(self, step: int, *, waiting: float = 0.0) -> LiveLine:
        """The state after ``step`` steps; ``waiting`` is how long the pass takes that goes on."""
        total = self._plan.total_steps
        facts = [f"step {step}/{total}"]
        speed = self._current_speed()
        if speed is not None:
            facts += [rate(speed), f"left {duration(self._left(step) / speed)}"]
        if self._plan.micro_batches > 1 and not self._terms:
            facts.append(f"pass {self._passes}/{self._plan.micro_batches}")
        facts[2:2] = self._terms[:1]  # the loss, before the time that is left
        if waiting:
            facts.insert(1, f"working {duration(waiting)}")
        return LiveLine(step / max(1, total), [*facts, *self._terms[1:]])

    def _current_speed(self) -> float | None:
        """Images per second: of this interval, once it is long enough, or of the last one."""
        if self._starts_slowly:
            return None
        seconds = self._moved - self._interval  # what is begun and not done says nothing yet
        if self._passes and (seconds > _SETTLED or not self._terms):  # nothing logged yet
            images = self._passes * self._plan.micro_batch * self._plan.processes
            return images / max(seconds, 1e-9)
        return self._speed or None

    def _left(self, step: int) -> int:
        """Images that are still to be seen."""
        return (self._plan.total_steps - step) * self._plan.batch_size

    def _advise(self, step: int) -> None:
        """Say how long it takes, and what would take less, if it is long."""
        advice, self._advice = self._advice, ""
        speed = self._current_speed()
        if speed is None or self._left(step) / speed < _LONG:
            return
        self._console.warn(f"this takes about {duration(self._left(step) / speed)}. {advice}")


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
                    f"step {step}: {name} is {metrics[name]:.3g}, below {limit}: the features may "
                    "be collapsing. See docs/health.md; often a smaller --lr helps."
                )
            # Forgotten once the metric recovers: a second collapse is news again.
            self._warned = self._warned | {name} if low else self._warned - {name}


class WaitingTime:
    """Adds up how long a device had nothing to do because its next batch was not there.

    The host runs ahead of a GPU: it queues a step, asks for the next batch and waits for
    it, while the GPU still works. That wait costs nothing, so the time is taken on the
    clock of the GPU, from the end of the queued work to the arrival of the batch.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[Moment, Moment]] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The batch is fetched inside, up to where the current stream may use it."""
        begin = Moment(self._device)
        yield
        self._spans.append((begin, Moment(self._device)))

    def take_seconds(self) -> float:
        """The sum since the last call."""
        if self._spans:
            # The last moment alone: those before it have passed by then.
            self._spans[-1][1].wait()
        spans, self._spans = self._spans, []
        return sum(begin.milliseconds_to(end) for begin, end in spans) / 1e3


class Moment:
    """Now: for the host, or on a GPU when all that is queued so far is done."""

    def __init__(self, device: torch.device) -> None:
        self._host = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> None:
        """Until a GPU has got there."""
        if self._event is not None:
            self._event.synchronize()

    def milliseconds_to(self, later: Moment) -> float:
        """How long it was to a later moment, which a GPU must have got to."""
        if self._event is None or later._event is None:
            return 1e3 * (later._host - self._host)
        return float(self._event.elapsed_time(later._event))


class Batches(Protocol):
    """Where the training loop gets its micro-batches from."""

    waiting: WaitingTime

    def next(self) -> Any:
        """The next micro-batch, on the device."""

    def report_bad_files(self, console: Console) -> None:
        """Name what could not be read since the last call; all processes call this."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must remember."""

    def close(self) -> None:
        """Stop reading ahead."""


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
