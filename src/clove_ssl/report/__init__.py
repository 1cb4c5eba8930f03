"""The page about runs; called, the room writes one: ``clove_ssl.report("runs/a")``.

Python gives a package the name of every room that was imported, so ``clove_ssl.report`` is the
function until this room is needed, and the room from then on. Both have to do the same.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    """A module that can be called like the function of its name."""

    def __call__(self, *runs: Any, **options: Any) -> Any:
        from clove_ssl import api

        return api.report(*runs, **options)


sys.modules[__name__].__class__ = _CallableRoom
