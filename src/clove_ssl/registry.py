"""Short names to classes, with third-party plug-ins.

Built-ins are listed as import paths, so that asking for a name imports one
module and ``clove --help`` imports none. Another package adds its own with an
entry point in the group of the table, ``clove_ssl.methods`` or ``clove_ssl.tasks``;
the entry point names the *config* class, which builds the method or task.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clove_ssl.errors import unknown_name

if TYPE_CHECKING:
    from clove_ssl.config.methods.base import MethodConfig
    from clove_ssl.config.tasks.base import TaskConfig

T = TypeVar("T")


class Registry(Generic[T]):
    """A lazy mapping from a short name to a class."""

    def __init__(self, kind: str, group: str, builtin: dict[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._builtin = builtin

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted(self._paths())

    def load(self, name: str) -> type[T]:
        """Import and return the class called ``name``."""
        paths = self._paths()
        if name not in paths:
            raise unknown_name(self.kind, name, paths)
        module, _, attribute = paths[name].partition(":")
        loaded: Any = getattr(import_module(module), attribute)
        return loaded  # type: ignore[no-any-return]

    def _paths(self) -> dict[str, str]:
        paths = dict(self._builtin)
        for point in self._plugins():
            if point.name in self._builtin:
                raise RuntimeError(f"{self.kind} {point.name!r} is defined twice: {point.value}")
            paths[point.name] = point.value
        return paths

    def _plugins(self) -> tuple[EntryPoint, ...]:
        return tuple(entry_points(group=self.group))


METHODS: Registry[MethodConfig] = Registry(
    "method",
    group="clove_ssl.methods",
    builtin={
        "byol": "clove_ssl.config.methods.byol:BYOLConfig",
        "clove": "clove_ssl.config.methods.clove:CLoVEConfig",
        "cp2": "clove_ssl.config.methods.cp2:CP2Config",
        "densecl": "clove_ssl.config.methods.densecl:DenseCLConfig",
        "detco": "clove_ssl.config.methods.detco:DetCoConfig",
        "moco": "clove_ssl.config.methods.moco:MoCoConfig",
        "pixpro": "clove_ssl.config.methods.pixpro:PixProConfig",
        "random": "clove_ssl.config.methods.random:RandomConfig",
        "resim": "clove_ssl.config.methods.resim:ReSimConfig",
        "setsim": "clove_ssl.config.methods.setsim:SetSimConfig",
        "slotcon": "clove_ssl.config.methods.slotcon:SlotConConfig",
        "supervised": "clove_ssl.config.methods.supervised:SupervisedConfig",
        "vicregl": "clove_ssl.config.methods.vicregl:VICRegLConfig",
    },
)

TASKS: Registry[TaskConfig] = Registry(
    "task",
    group="clove_ssl.tasks",
    builtin={
        "cityscapes-fpn": "clove_ssl.config.tasks.cityscapes:CityscapesConfig",
        "coco-c4": "clove_ssl.config.tasks.detection:COCOC4Config",
        "coco-densepose": "clove_ssl.config.tasks.densepose:COCODensePoseConfig",
        "coco-fpn": "clove_ssl.config.tasks.detection:COCOPyramidConfig",
        "coco-keypoints": "clove_ssl.config.tasks.detection:COCOKeypointsConfig",
        "lvis-fpn": "clove_ssl.config.tasks.lvis:LVISConfig",
        "lvis-v0.5-fpn": "clove_ssl.config.tasks.lvis:LVISHalfConfig",
        "voc-c4": "clove_ssl.config.tasks.detection:VOCDetectionConfig",
        "voc-semantic": "clove_ssl.config.tasks.semantic:VOCSemanticConfig",
    },
)
