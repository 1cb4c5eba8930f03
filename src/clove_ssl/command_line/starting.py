"""What is shown while a verb is loaded: torch takes seconds, and on a busy machine many."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from clove_ssl.console import Console, Work


def starting() -> AbstractContextManager[Work]:
    """Show that the program is being loaded; only the first of several processes speaks."""
    return Console(speaks=os.environ.get("RANK", "0") == "0").working("Starting")
