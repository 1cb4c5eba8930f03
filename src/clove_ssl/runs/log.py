"""``log.txt``, read back: everything that was said during a run."""

from __future__ import annotations

import re

from clove_ssl.runs.directory import RunDirectory

_UNREADABLE = re.compile(r"\S+ \S+ warning cannot read (.*)")


def unreadable_files(run: RunDirectory) -> set[str]:
    """What the log says about files that could not be read; a resumed run may say it twice."""
    if not run.log.is_file():
        return set()
    with run.log.open(encoding="utf-8", errors="replace") as log:
        return {found[1] for line in log if (found := _UNREADABLE.match(line))}
