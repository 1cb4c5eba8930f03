"""What is shown while a verb is loaded: torch takes seconds, and on a busy machine many."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager

from clove_ssl.console import Console, Work


def starting() -> AbstractContextManager[Work]:
    """Show that the program is being loaded, on a real terminal.

    Only the first of several processes speaks, and none whose output another program reads.
    """
    speaks = sys.stdout.isatty() and os.environ.get("RANK", "0") == "0"
    return Console(speaks=speaks).working("Starting")
