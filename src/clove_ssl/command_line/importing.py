"""Import torch, and all that needs it, without pauses: now, and later in a training step.

Importing makes hundreds of thousands of objects that stay until the end. Looking through them for
garbage, again and again while they are made, takes a seventh of the time of all imports. Later one
such look would stop some step for a fifth of a second, and data workers, which share these objects
with the main process, would each get a copy of all that is looked at.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_pauses() -> Iterator[None]:
    """Import inside; what is there at the end is not looked through again before the program ends.

    Where torch is there already nothing changes: it is the process of somebody else.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()
    # At the end all must be released in good order, or libraries complain of what leaked.
    atexit.register(gc.unfreeze)
