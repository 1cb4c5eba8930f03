"""Short names to config classes, for methods and tasks, with third-party plug-ins.

A built-in is a folder below ``clove_ssl.methods`` or ``clove_ssl.tasks`` whose
``__init__.py`` names its config classes as ``CONFIGS``; nothing else knows of it,
and ``clove --help`` imports none of them. Another package adds its own with an
entry point in the group of that name; the entry point names the *config* class,
which builds the method or task.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clove_ssl.errors import UserError, unknown_name

if TYPE_CHECKING:
    from clove_ssl.config.bases import MethodConfig, TaskConfig

T = TypeVar("T")


class Registry(Generic[T]):
    """A lazy mapping from a short name to a class."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted(self._paths())

    def load(self, name: str) -> type[T]:
        """Import and return the class called ``name``."""
        paths = self._paths()
        if name not in paths:
            raise unknown_name(self.kind, name, paths)
        return self._imported(paths[name])

    def load_all(self) -> dict[str, type[T]]:
        """Every class by its name, sorted; plug-ins are looked for once."""
        return {name: self._imported(path) for name, path in sorted(self._paths().items())}

    def _imported(self, path: str) -> type[T]:
        module, _, attribute = path.partition(":")
        loaded: Any = getattr(import_module(module), attribute)
        return loaded  # type: ignore[no-any-return]

    def _paths(self) -> dict[str, str]:
        paths = dict(_builtin(self.group))
        for point in self._plugins():
            first = paths.setdefault(point.name, point.value)
            if first != point.value:
                raise UserError(
                    f"The {self.kind} {point.name!r} is defined twice, as {first} and as "
                    f"{point.value}. Rename that of the plug-in, or uninstall the plug-in with "
                    "pip uninstall."
                )
        return paths

    def _plugins(self) -> tuple[EntryPoint, ...]:
        return _installed(self.group, _package_places())


def _package_places() -> tuple[tuple[str, float], ...]:
    """Folders and archives of packages, and when one was last added or removed there."""
    places = [os.path.abspath(place) for place in sys.path]
    return tuple((each, os.stat(each).st_mtime) for each in places if os.path.exists(each))


@cache
def _installed(group: str, places: tuple[tuple[str, float], ...]) -> tuple[EntryPoint, ...]:
    """What other packages add; opening the papers of all of them takes a while."""
    return tuple(entry_points(group=group))


@cache
def _builtin(group: str) -> dict[str, str]:
    """What the folders of a package say about themselves."""
    paths: dict[str, str] = {}
    for entry in pkgutil.iter_modules(import_module(group).__path__, prefix=f"{group}."):
        if entry.ispkg:
            configs: dict[str, str] = getattr(import_module(entry.name), "CONFIGS", {})
            paths |= {name: f"{entry.name}.{path}" for name, path in configs.items()}
    return paths


METHODS: Registry[MethodConfig] = Registry("method", group="clove_ssl.methods")
TASKS: Registry[TaskConfig] = Registry("task", group="clove_ssl.tasks")
