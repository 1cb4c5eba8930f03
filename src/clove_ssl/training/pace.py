"""How fast a run is going and how long it still takes, as a person sees it.

A terminal shows a line that follows every pass through the network, and tells the seconds of a pass
that is long; a log has one line per interval. Nothing here asks the device for anything: numbers
are those of the last logged step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from clove_ssl.console import Console, duration
from clove_ssl.live_lines import LiveLine, rate
from clove_ssl.training.plan import RunPlan

_REDRAW = 0.2  # seconds
_SILENCE = 2.0  # seconds without a pass after which the line tells how long this one takes
_SETTLED = 3.0  # seconds after which the speed of an interval says more than that of the last one
_FIRST_WORD = 20.0  # seconds after which a CPU has to say how long it takes
_LONG = 3600.0
_MONTHS = 60 * 86_400.0


class Pace:
    """Shows how far a run is.

    ``advice`` is said once where the run would take longer than an hour.
    """

    def __init__(self, plan: RunPlan, console: Console, advice: str = "") -> None:
        self._plan = plan
        self._console = console
        self._advice = advice
        self._terms: list[str] = []
        self._speed: float | None = None  # images/s of the last interval
        self._drawn = 0.0
        self._drew_pass = False
        self._step = 0
        self._passes = 0
        self._warned = False
        self._start = self._interval = self._moved = time.perf_counter()

    @contextmanager
    def kept_shown(self, step: int) -> Iterator[None]:
        """Meanwhile the line is alive even inside a pass that takes minutes, as on a CPU."""
        if not self._console.is_live:
            yield
            return
        self._step, self._moved = step, time.perf_counter()
        ended = threading.Event()
        clock = threading.Thread(target=self._tick, args=(ended,), daemon=True)
        clock.start()
        try:
            yield
        finally:
            ended.set()
            clock.join()

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(_REDRAW):
            seconds = time.perf_counter() - self._moved
            if seconds > _SILENCE:
                self._console.live(self._line(self._step, waiting=seconds))

    def pass_done(self, step: int) -> None:
        """A pass of the step that follows ``step`` others has been made."""
        self._passes += 1
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
        self._speed = metrics["images_per_second"]
        terms = [f"{name} {metrics[name]:.3f}" for name in ("loss", *headline)]
        wait, epoch = f"wait {100 * metrics['data_wait']:.0f} %", f"epoch {metrics['epoch']:.2f}"
        left = f"left {duration(self._left(done) / max(self._speed, 1e-9))}"
        step, speed = f"step {done}/{self._plan.total_steps}", rate(self._speed)
        self._terms = [terms[0], epoch, wait, *terms[1:]]
        self._warn_of_months(done)
        self.pause()
        self._step, self._moved = done, self._interval
        text = "  ".join([step, epoch, *terms, speed, wait, left])
        self._console.progress(text, self._line(done))

    def _warn_of_months(self, done: int) -> None:
        """Say once, as soon as the speed is known, that nobody will see the end."""
        seconds = self._left(done) / max(self._speed or 0.0, 1e-9)
        if seconds > _MONTHS and not self._warned:
            self._warned = True
            self._console.warn(
                f"at this speed the run takes {duration(seconds)} more. Fewer --epochs or "
                "--steps, or a smaller network, take less."
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
        seconds = self._moved - self._interval  # what is begun and not done says nothing yet
        if self._passes and (seconds > _SETTLED or self._speed is None):
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
