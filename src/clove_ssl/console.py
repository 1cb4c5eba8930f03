"""Everything a person reads while a run is going.

Only the first process of a run speaks; all of them may hold a console. What is
said also goes to ``log.txt``. On a terminal progress is one line that rewrites
itself; elsewhere it is one plain line per interval.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console as RichConsole
from rich.markup import escape

from clove_ssl.errors import escaped


class Console:
    """Speaks to the terminal and to a log file."""

    def __init__(self, *, speaks: bool = True, log: Path | None = None) -> None:
        self._rich = RichConsole(quiet=not speaks, highlight=False, soft_wrap=True)
        self._log = log.open("a", encoding="utf-8") if log and speaks else None
        self._line_open = False

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
        with self._while_there():
            self._end_line()
            self._rich.print(escape(self._shown(text)))

    def choice(self, name: str, value: str, reason: str = "") -> None:
        """A decision of the run, with its reason, so that nothing is chosen silently."""
        self.say(f"  {name:<14} {value}" + (f"  ({reason})" if reason else ""))

    def warn(self, text: str) -> None:
        """Something the user should look at; the run goes on."""
        self._record(f"warning {text}")
        with self._while_there():
            self._end_line()
            self._rich.print(f"[yellow]warning[/yellow] {escape(self._shown(text))}")

    def progress(self, text: str) -> None:
        """The state of the run: a live line on a terminal, a plain line elsewhere."""
        self._record(text)
        if self._rich.quiet:  # which covers print, but not what is written to its file
            return
        with self._while_there():
            self._show_progress(self._shown(text))

    def _show_progress(self, text: str) -> None:
        if not self._rich.is_terminal:
            self._rich.print(escape(text))
            return
        width = self._rich.width - 1
        self._rich.file.write("\r\x1b[2K" + text[:width])
        self._rich.file.flush()
        self._line_open = True

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
        if self._line_open:
            self._rich.file.write("\n")
            self._line_open = False

    def _record(self, text: str) -> None:
        if self._log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            self._log.write(f"{stamp} {escaped(text)}\n")
            self._log.flush()


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


def counted(number: int, thing: str, things: str = "") -> str:
    """A number of things in words: 1 worker, 2 workers, 1,000 images."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
