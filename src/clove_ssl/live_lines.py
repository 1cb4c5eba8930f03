"""One line of a terminal that says how far something is: a bar, and facts that fit beside it.

Facts stand in the order of their importance. On a narrow terminal the last ones are left out, on
a wide one all are there and the bar grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SHORTEST_BAR, _LONGEST_BAR = 8, 30
_GAP = "  "


@dataclass(frozen=True)
class LiveLine:
    """How far something is, and what else is known of it."""

    share: float  # done, 0 to 1
    facts: Sequence[str]

    def fitted(self, width: int, *, plain: bool = False) -> str:
        """The line for a terminal of ``width`` columns; ``plain`` has no signs beyond ASCII."""
        shown: list[str] = []
        room = width - _SHORTEST_BAR
        for fact in self.facts:
            if len(_GAP) + len(fact) > room:
                break
            room -= len(_GAP) + len(fact)
            shown.append(fact)
        bar = _bar(self.share, min(_LONGEST_BAR, _SHORTEST_BAR + max(0, room)), plain=plain)
        return _GAP.join([bar, *shown])[:width]


def _bar(share: float, length: int, *, plain: bool) -> str:
    full = int(length * min(max(share, 0.0), 1.0))
    done, left = ("#", "-") if plain else ("━", "─")
    return done * full + left * (length - full)


def rate(images_per_second: float) -> str:
    """A speed in a few digits, however small: 2,941 img/s, 7.3 img/s, 0.042 img/s."""
    if images_per_second >= 10:
        return f"{images_per_second:,.0f} img/s"
    return f"{images_per_second:.2g} img/s"
