"""A part of the training images: at random, but such that few labels still show every class.

All images stand in one row that follows from the seed, and a part is its beginning. So a larger
part holds every smaller one, and whoever draws with the same seed draws the same images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass

from clove_ssl.data.order import ImageOrder
from clove_ssl.tasks.own.checks import listed


@dataclass(frozen=True)
class Part:
    """Which images were drawn, and which classes none of them shows."""

    indices: tuple[int, ...]
    missing: tuple[int, ...]

    def problems(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """What somebody should know who learns from these images alone."""
        if not self.missing:
            return ()
        names = [class_names[number] for number in self.missing]
        return (
            f"None of the {len(self.indices):,} images that were drawn shows "
            f"{listed(names)}, so these will not be found.",
        )


def draw_part(present: Sequence[Set[int]], share: float, *, seed: int) -> Part:
    """A share of the images, one at least; ``present`` are the classes that each of them shows."""
    count = max(1, round(share * len(present)))
    chosen = covering_order(present, seed=seed)[:count]
    known: set[int] = set().union(*present)
    shown: set[int] = set().union(*(present[index] for index in chosen))
    return Part(tuple(sorted(chosen)), tuple(sorted(known - shown)))


def covering_order(present: Sequence[Set[int]], *, seed: int) -> list[int]:
    """Every image once, at random, but those that bring the classes first.

    They come class by class, the rarest first, since its images often show common ones, too. There
    are at most as many of them as classes.
    """
    drawn = ImageOrder(len(present), seed).draws(0, len(present)).indices.tolist()
    images: dict[int, list[int]] = defaultdict(list)
    for index in drawn:
        for each in present[index]:
            images[each].append(index)
    first: list[int] = []
    shown: set[int] = set()
    for each in sorted(images, key=lambda number: (len(images[number]), number)):
        if each not in shown:
            first.append(images[each][0])
            shown |= present[images[each][0]]
    others = set(first)
    return [*first, *(index for index in drawn if index not in others)]
