"""Everything that is attacked."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import commands, images, labels, weights

TARGETS: dict[str, Target] = {
    target.name: target for room in (images, weights, labels, commands) for target in room.TARGETS
}
