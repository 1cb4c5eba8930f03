"""Everything a person reads while a run is going.

Only the first process of a run speaks; all of them may hold a console. What is
said also goes to ``log.txt``. On a terminal progress is one line that rewrites
itself; elsewhere it is one plain line per interval.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console as RichConsole
from rich.markup import escape

from clove_ssl.atomic import append_to_regular
from clove_ssl.errors import escaped

_INTERVAL = 60.0  # seconds between lines about long work, where no line can rewrite itself
_REDRAW = 0.5  # seconds
_FIRST_WORD = 2.0  # seconds of work after which somebody who sees nothing would think that it hangs
_CLEAR = "\r\x1b[2K"
_SHORTEST_BAR, _LONGEST_BAR = 8, 30
_GAP = "  "


@dataclass(frozen=True)
class LiveLine:
    """One line that says how far something is: a bar, and facts that fit beside it.

    Facts stand in the order of their importance. On a narrow terminal the last ones are left out,
    on a wide one all are there and the bar grows.
    """

    share: float  # done, 0 to 1
    facts: Sequence[str]

    def fitted(self, width: int, *, plain: bool = False) -> str:
        """The line for a terminal of ``width`` columns; ``plain`` has no signs beyond ASCII."""
        shown: list[str] = []
        room = width - _SHORTEST_BAR
        for fact in self.facts:
            if len(_GAP) + len(fact) > room:
                break
            room -= len(_GAP) + len(fact)
            shown.append(fact)
        bar = _bar(self.share, min(_LONGEST_BAR, _SHORTEST_BAR + max(0, room)), plain=plain)
        return _GAP.join([bar, *shown])[:width]


def _bar(share: float, length: int, *, plain: bool) -> str:
    full = int(length * min(max(share, 0.0), 1.0))
    done, left = ("#", "-") if plain else ("━", "─")
    return done * full + left * (length - full)


class _Rich(RichConsole):
    def on_broken_pipe(self) -> None:
        """Tell whoever prints; rich would end the thread, and leave the others without a word."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Console:
    """Speaks to the terminal and to a log file."""

    def __init__(self, *, speaks: bool = True, log: Path | None = None) -> None:
        self._rich = _Rich(quiet=not speaks, highlight=False, soft_wrap=True)
        self._log = append_to_regular(log) if log and speaks else None
        self._line_open = False
        self._works = False  # the open line belongs to some work, and goes with it
        self._painting = threading.RLock()  # the clock of some work paints, too

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._while_there():
            self._end_line()
        if error is not None:
            self._record(f"stopped: {kind.__name__ if kind else ''}: {error}")
        if self._log:
            self._log.close()

    def say(self, text: str) -> None:
        """One line of information."""
        self._record(text)
        self._print(escape(self._shown(text)))

    def choice(self, name: str, value: str, reason: str = "") -> None:
        """A decision of the run, with its reason, so that nothing is chosen silently."""
        self.say(f"  {name:<14} {value}" + (f"  ({reason})" if reason else ""))

    def warn(self, text: str) -> None:
        """Something the user should look at; the run goes on."""
        self._record(f"warning {text}")
        self._print(f"[yellow]warning[/yellow] {escape(self._shown(text))}")

    @property
    def is_live(self) -> bool:
        """Whether somebody looks at a terminal on which a line can rewrite itself."""
        return self._rich.is_terminal and not self._rich.quiet

    @property
    def is_silent(self) -> bool:
        """Whether nothing that is said here will be seen."""
        return self._rich.quiet

    def progress(self, text: str, line: LiveLine | None = None) -> None:
        """The state of the run: a live line on a terminal, the plain text elsewhere."""
        self._record(text)
        if self.is_live:
            self.live(text if line is None else line)
        else:
            self._print(escape(self._shown(text)))

    def live(self, line: LiveLine | str) -> None:
        """Rewrite the line of a terminal; nothing elsewhere, and nothing in the log."""
        if not self.is_live:
            return
        width = self._rich.width - 1
        plain = not self._rich.encoding.lower().startswith("utf")
        text = line if isinstance(line, str) else line.fitted(width, plain=plain)
        with self._while_there(), self._painting:
            self._rich.file.write(_CLEAR + self._shown(text)[:width])
            self._rich.file.flush()
            self._line_open = True

    @contextmanager
    def working(self, what: str, *, total: int | None = None) -> Iterator[Work]:
        """Show that something is being done, how far it is and since when; the line then goes.

        Where no line can rewrite itself, long work says once what it is, and how far it is now and
        then. ``total`` is how often :meth:`Work.done` will be called, where that is known.
        """
        work = Work(self, what, total)
        if self.is_silent:
            yield work
            return
        self._works = self.is_live
        try:
            with meanwhile(work.keep_shown if self.is_live else work.tell_if_long):
                yield work
        finally:
            self._clear_line()
            self._works = False

    def _print(self, text: str) -> None:
        with self._while_there(), self._painting:
            self._end_line()
            self._rich.print(text)

    def _clear_line(self) -> None:
        with self._while_there(), self._painting:
            if self._line_open:
                self._rich.file.write(_CLEAR)
                self._rich.file.flush()
            self._line_open = False

    @contextmanager
    def _while_there(self) -> Iterator[None]:
        """A terminal that was closed must not cost the checkpoint that follows."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._rich.quiet, self._line_open = True, False
            # What is buffered still has to go somewhere when the program ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._rich.file.fileno())

    def _shown(self, text: str) -> str:
        """The text as the terminal can show it, which need not know every character."""
        encoding = self._rich.encoding
        return escaped(text).encode(encoding, "backslashreplace").decode(encoding)

    def _end_line(self) -> None:
        with self._painting:
            if self._line_open:
                self._rich.file.write(_CLEAR if self._works else "\n")
                self._line_open = False

    def _record(self, text: str) -> None:
        if self._log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            self._log.write(f"{stamp} {escaped(text)}\n")
            self._log.flush()


class Work:
    """Something that takes a while, in parts that are counted or without."""

    def __init__(self, console: Console, what: str, total: int | None) -> None:
        self._console, self._what, self._total = console, what, total
        self._start = self._told = time.perf_counter()
        self._count = 0
        self._now = ""

    def done(self, parts: int = 1) -> None:
        """Count what has been done."""
        self.reached(self._count + parts)

    def reached(self, count: int) -> None:
        """So much has been done by now."""
        self._count = count
        now = time.perf_counter()
        if not self._console.is_live and now - self._told > _INTERVAL:
            self._told = now
            self._console.progress(self._text())

    def doing(self, now: str) -> None:
        """Say which part is being done."""
        self._now = now

    def tell_if_long(self, ended: threading.Event) -> None:
        """Say in a plain line what is being done, unless it has ended soon."""
        if not ended.wait(_FIRST_WORD):
            self._console.progress(self._text())

    def keep_shown(self, ended: threading.Event) -> None:
        """Draw the line again and again until the work has ended; quick work shows nothing."""
        while not ended.wait(_REDRAW):
            self._console.live(self.line())

    def line(self) -> LiveLine | str:
        """The state of the work now."""
        seconds = time.perf_counter() - self._start
        if self._total is None:
            return "  ".join(filter(None, (self._what, self._now, duration(seconds))))
        share = min(1.0, self._count / max(1, self._total))
        facts = [f"{self._what} {self._count:,}/{self._total:,}"]
        left = seconds * (1 - share) / share if self._count else 0.0
        facts.append(f"left {duration(left)}" if self._count else duration(seconds))
        return LiveLine(share, [*facts, *filter(None, [self._now])])

    def _text(self) -> str:
        """The same as plain text."""
        line = self.line()
        return line if isinstance(line, str) else "  ".join(line.facts)


@contextmanager
def meanwhile(tell: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let another thread ``tell`` until the event says that the work inside has ended."""
    ended = threading.Event()

    def told() -> None:
        with suppress(OSError):  # a reader that left or a full disk: the main thread meets it, too
            tell(ended)

    clock = threading.Thread(target=told, daemon=True)
    clock.start()
    try:
        yield
    finally:
        ended.set()
        clock.join()


def duration(seconds: float) -> str:
    """A time span as a person says it: 42 s, 12 min, 3 h 05 min, 2 d 4 h."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 120:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes:.0f} min"
    if hours < 48:
        return f"{int(hours)} h {int(minutes) % 60:02d} min"
    return f"{int(hours) // 24} d {int(hours) % 24} h"


def rate(images_per_second: float) -> str:
    """A speed in a few digits, however small: 2,941 img/s, 7.3 img/s, 0.042 img/s."""
    if images_per_second >= 10:
        return f"{images_per_second:,.0f} img/s"
    return f"{images_per_second:.2g} img/s"
