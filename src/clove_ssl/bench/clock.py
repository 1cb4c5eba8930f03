"""What every measurement of ``clove bench`` goes by: time, memory, lines that are said and written.

The floor is what nobody can avoid who trains these networks on these images. Every measurement is
made in the same process on the same device, so their ratios mean something.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console as RichConsole
from rich.table import Table

from clove_ssl import __version__
from clove_ssl.console import Console, Work
from clove_ssl.errors import UserError

FLOOR, END_TO_END = "floor", "end to end"
WARM_UP = 3
_HEAD_START = 200_000_000  # clock cycles, about a tenth of a second


@dataclass(frozen=True)
class Measurement:
    """One line of the result."""

    name: str
    images_per_second: float
    milliseconds: float
    """Per batch."""
    memory_gib: float = 0.0
    first_call_seconds: float = 0.0
    """With compilation, if there was any."""
    share: float | None = None
    """Of the step's time, for a part of it."""


class Clock:
    """Measures what a device does, says it, and writes it down.

    Args:
        device: Where the work is done.
        batch: Images of a step.
        steps: Calls per measurement, after some that warm up.
        about: What the lines of the file say of all measurements.
        out: That file, if there is one.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        batch: int,
        steps: int,
        about: Mapping[str, object],
        out: Path | None,
    ) -> None:
        self.device = device
        self.images, self.steps = batch, steps
        self.measurements: list[Measurement] = []
        self._about, self._out = about, out
        self._console = Console()

    def measure(
        self,
        name: str,
        work: Callable[[], object],
        *,
        prepared: float = 0.0,
        warm_up: int = WARM_UP,
        resets_memory: bool = True,
    ) -> Measurement:
        """Time ``work`` after a warm-up; also its memory and its first call.

        The first call includes the seconds that it was ``prepared``. Replays need memory that torch
        does not count again, so ``work`` that only replays should not reset it.
        """
        if resets_memory:
            self._reset_memory()
        with self.working(name, calls=1 + warm_up + self.steps) as shown:
            first = prepared + self._seconds(work, 1, shown)
            self._seconds(work, warm_up, shown)
            gc.collect()  # or Python may do so while time is taken, half a second after compilation
            seconds = self._seconds(work, self.steps, shown) / self.steps
        result = Measurement(name, self.images / seconds, 1e3 * seconds, self._memory(), first)
        self._keep(result)
        return result

    def seconds_per_call(self, name: str, work: Callable[[], object], *, warm_up: int) -> float:
        """The time of a call, of as many as the config says, behind some that do not count."""
        with self.working(name, calls=warm_up + self.steps) as shown:
            self._seconds(work, warm_up, shown)
            return self._seconds(work, self.steps, shown) / self.steps

    def _seconds(self, work: Callable[[], object], calls: int, shown: Work) -> float:
        """The time of some calls, until the device is done with them."""
        start = time.perf_counter()
        for _ in range(calls):
            work()
            shown.done()
        self.synchronize()
        return time.perf_counter() - start

    def working(self, name: str, *, calls: int | None = None) -> AbstractContextManager[Work]:
        """Show what is being measured, and how many of its calls are made."""
        return self._console.working(name.strip(), total=calls)

    def device_milliseconds(
        self,
        name: str,
        work: Callable[[], object],
        *,
        repeats: int = 10,
        stream: torch.cuda.Stream | None = None,
    ) -> float:
        """Time ``work`` keeps the device busy, on its stream, without waits for the host."""
        work()
        if self.device.type != "cuda":
            with self.working(name, calls=repeats) as shown:
                return 1e3 * self._seconds(work, repeats, shown) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]  # the host queues meanwhile
            begin.record()
            for _ in range(repeats):
                work()
            end.record()
        self.synchronize()
        return float(begin.elapsed_time(end)) / repeats

    def record(
        self, name: str, images_per_second: float, *, memory: float = 0.0, first: float = 0.0
    ) -> None:
        """Add what was measured elsewhere."""
        milliseconds = 1e3 * self.images / images_per_second
        self._keep(Measurement(name, images_per_second, milliseconds, memory, first))

    def record_share(self, name: str, milliseconds: float, *, step: Measurement) -> None:
        """Add a part of the step by the time it takes."""
        speed = 1e3 * self.images / milliseconds if milliseconds else 0.0
        share = milliseconds / step.milliseconds
        self._keep(Measurement(name, speed, milliseconds, share=share))

    def record_growth(self, name: str, exponent: float, points: Mapping[int, float]) -> None:
        """Add how a time grows with something, from milliseconds at some values of it."""
        times = ", ".join(f"{value}: {time:.1f} ms" for value, time in points.items())
        self._console.say(f"time grows with {name} to the power {exponent:.2f}: {times}")
        self._write({"growth": name, "exponent": exponent, "milliseconds": points})

    def say(self, text: str) -> None:
        """Tell why something is not measured."""
        self._console.say(text)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _keep(self, measurement: Measurement) -> None:
        """Remember, say and write down at once, since what follows may take long or fail."""
        self.measurements.append(measurement)
        speed, share = measurement.images_per_second, measurement.share
        worth = f"{speed:,.0f} images/s" if share is None else f"{100 * share:.1f} % of the step"
        self._console.say(f"{measurement.name}: {measurement.milliseconds:.1f} ms, {worth}")
        self._write(asdict(measurement))

    def _write(self, measured: Mapping[str, object]) -> None:
        """Append a line to the file of results, if there is one."""
        if self._out is None:
            return
        on_gpu = self.device.type == "cuda"
        where = {
            **self._about,
            "batch": self.images,
            "device": torch.cuda.get_device_name(self.device) if on_gpu else "cpu",
            "torch": torch.__version__,
            "clove_ssl": __version__,
        }
        with self._out.open("a") as file:
            file.write(json.dumps({**measured, **where}) + "\n")

    def _reset_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _memory(self) -> float:
        if self.device.type != "cuda":
            return 0.0
        return torch.cuda.max_memory_allocated(self.device) / 2**30

    def show(self) -> None:
        """All measurements as a table, compared with the floor where it was measured."""
        RichConsole().print(self._table())

    def _table(self) -> Table:
        floor = next((one for one in self.measurements if one.name == FLOOR), None)
        columns = "part", "images/s", "of the floor", "ms per batch", "of the step", "GiB", "first"
        table = Table(*columns)
        about = (*self._about.values(), f"batch {self.images}", self.device.type)
        table.title = ", ".join(map(str, about))
        for one in self.measurements:
            is_whole = one.share is None
            table.add_row(
                one.name,
                f"{one.images_per_second:,.0f}" if is_whole else "",
                f"{one.images_per_second / floor.images_per_second:.2f}"
                if is_whole and floor
                else "",
                f"{one.milliseconds:.1f}",
                "" if one.share is None else f"{100 * one.share:.1f} %",
                f"{one.memory_gib:.1f}" if one.memory_gib else "",
                f"{one.first_call_seconds:.1f} s" if one.first_call_seconds else "",
            )
        return table


def check_writable(*paths: Path | None) -> None:
    """Find out before minutes of measuring whether results can be written down."""
    for path in filter(None, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise UserError(
                f"{path} cannot be written: {error.strerror}. Name a file in a folder that you may "
                "write to."
            ) from None
