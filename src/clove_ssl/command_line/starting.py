"""What is shown while a verb is loaded: torch takes seconds, and on a busy machine many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from clove_ssl.command_line.importing import without_compiler, without_pauses
from clove_ssl.console import Console


@contextmanager
def starting() -> Iterator[None]:
    """Import inside; on a real terminal a line shows that the program is being loaded.

    Only the first of several processes speaks, and none whose output another program reads.
    """
    if "torch" not in sys.modules:  # later its threads have been made, and it asks no more
        let_threads_rest(os.environ)
    speaks = sys.stdout.isatty() and os.environ.get("RANK", "0") == "0"
    with Console(speaks=speaks).working("Starting"), without_pauses(), without_compiler():
        yield


def let_threads_rest(environment: MutableMapping[str, str]) -> None:
    """Let torch's threads sleep soon when they wait for each other, unless the user says how.

    GNU's OpenMP has them look again and again for some milliseconds. Where other programs use the
    cores, that takes the time of the very thread they wait for: steps took two to three times as
    long. A tenth of a millisecond bridges the gaps between the parts of a step as well.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(environment):
        environment["GOMP_SPINCOUNT"] = "10000"
