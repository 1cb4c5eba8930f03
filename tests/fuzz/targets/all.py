"""Everything that is attacked."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import commands, images, labels, models, own, weights

TARGETS: dict[str, Target] = {
    target.name: target
    for room in (images, weights, labels, own, models, commands)
    for target in room.TARGETS
}
