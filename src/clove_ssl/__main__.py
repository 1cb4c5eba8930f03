"""``python -m clove_ssl``, the form that ``torchrun`` starts, and the ``clove`` command.

Loading the command line takes half a second, in which a Ctrl-C is answered like any other.
"""

import os
import sys


def entry() -> None:
    """The console script."""
    _open_closed_streams()
    try:
        from clove_ssl import cli

        cli.entry()
    except KeyboardInterrupt:
        print("clove: interrupted", file=sys.stderr)
        sys.exit(130)


def _open_closed_streams() -> None:
    """Let what is said go nowhere where the caller has closed a stream (``clove ... >&-``).

    Else the next file that is opened would get its number, and be written into by libraries.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the lowest number, which is free
            setattr(sys, name, os.fdopen(handle, mode))


if __name__ == "__main__":
    entry()
