"""``python -m clove_ssl``, the form that ``torchrun`` starts, and the ``clove`` command.

Loading the command line takes half a second, in which a Ctrl-C is answered like any other.
"""

import sys


def entry() -> None:
    """The console script."""
    try:
        from clove_ssl import cli

        cli.entry()
    except KeyboardInterrupt:
        print("clove: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    entry()
