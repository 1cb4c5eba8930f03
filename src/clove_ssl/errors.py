"""Errors a user can act on.

Every message has three parts: what is wrong (with the offending value), what
was expected, and what to type next. Internal mistakes stay plain exceptions
with a traceback; only ``UserError`` is printed without one by the CLI.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the configuration, the data or the command line."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Build the error for a name that is in no table, with a suggestion."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UserError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(choices)}.")
