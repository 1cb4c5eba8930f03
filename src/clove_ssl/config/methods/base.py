"""What every method's config has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.views import ViewSpec

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """A pre-training method; subclasses add the fields and say how to build it."""

    name: ClassVar[str]

    def view_specs(self) -> tuple[ViewSpec, ...]:
        """The views of one image, in the order the method gets them."""
        raise NotImplementedError

    def build(self, backbone: Backbone) -> Method:
        """The method as a module around ``backbone``; imports torch."""
        raise NotImplementedError

    def summary(self) -> dict[str, str]:
        """What the user should see at the start of a run, besides the common facts."""
        return {}
