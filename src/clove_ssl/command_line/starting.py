"""What is shown while a verb is loaded: torch takes seconds, and on a busy machine many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clove_ssl.command_line.importing import without_compiler, without_pauses
from clove_ssl.console import Console


@contextmanager
def starting() -> Iterator[None]:
    """Import inside; on a real terminal a line shows that the program is being loaded.

    Only the first of several processes speaks, and none whose output another program reads.
    """
    speaks = sys.stdout.isatty() and os.environ.get("RANK", "0") == "0"
    with Console(speaks=speaks).working("Starting"), without_pauses(), without_compiler():
        yield
