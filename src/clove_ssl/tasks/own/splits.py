"""Which images a model learns from and which it is judged by; where nobody has said, we say.

A split of ours depends on names and a seed alone, so it is the same tomorrow and elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from clove_ssl.errors import UserError
from clove_ssl.tasks.own.dataset import ALL, TEST, TRAIN, VAL, Found, Item

LEAST_IMAGES = 2


def complete_splits(
    found: Found, *, share: float, seed: int
) -> tuple[dict[str, tuple[Item, ...]], list[str]]:
    """Train and val with at least one image each, and what was done to get there."""
    items = {split: list(each) for split, each in found.items.items() if each}
    notes: list[str] = []
    loose = items.pop(ALL, [])
    if loose:
        items[TRAIN] = items.get(TRAIN, []) + loose
        if len(items) > 1 and len(loose) < len(items[TRAIN]):
            notes.append(f"{len(loose):,} images belong to no split; they are used for training.")
    if TRAIN not in items:
        told = ", ".join(items) or "none"
        raise UserError(
            f"There are no images to train on; the splits are: {told}. Expected a split called "
            "train, or images that are not split at all."
        )
    if VAL not in items and TEST in items:
        items[VAL] = items.pop(TEST)
        notes.append(
            "There is no validation split, so the best model is chosen on the test images, and "
            "its score is somewhat too high for unseen images. Add a split called val "
            "to avoid that."
        )
    if VAL not in items:
        items[TRAIN], items[VAL] = _divide(items[TRAIN], share=share, seed=seed)
        notes.append(
            f"There is no validation split: {len(items[VAL]):,} of "
            f"{len(items[TRAIN]) + len(items[VAL]):,} images were drawn for it (seed {seed}; "
            "--data.validation-share and --data.split-seed change that)."
        )
    order = [split for split in (TRAIN, VAL, TEST) if split in items]
    return {split: told_apart(items[split]) for split in order}, notes


def told_apart(items: Sequence[Item]) -> tuple[Item, ...]:
    """The same images; where two have one name, as in two folders, their paths are their names."""
    names = {item.sample.identifier for item in items}
    if len(names) == len(items):
        return tuple(items)
    return tuple(
        replace(item, sample=replace(item.sample, identifier=str(item.sample.image)))
        for item in items
    )


def _divide(items: list[Item], *, share: float, seed: int) -> tuple[list[Item], list[Item]]:
    """Images to learn from and to be judged by, in the order they had."""
    if len(items) < LEAST_IMAGES:
        raise UserError(
            f"There are {len(items)} labelled images; expected {LEAST_IMAGES} or more, one to "
            "learn from and one to be judged by. Label more."
        )
    count = min(max(1, round(share * len(items))), len(items) - 1)
    ranked = sorted(range(len(items)), key=lambda number: _rank(items[number], seed))
    chosen = set(ranked[:count])
    train = [item for number, item in enumerate(items) if number not in chosen]
    return train, [items[number] for number in sorted(chosen)]


def _rank(item: Item, seed: int) -> bytes:
    """A number that follows from the name of an image and the seed."""
    name = item.sample.image.stem
    return hashlib.sha256(f"{seed} {name}".encode("utf-8", "surrogatepass")).digest()
