"""What the figures of ``metrics.jsonl`` are called, where they belong, and what they mean.

Reports show every figure a run has logged; one that is not in this table, from
a plug-in for example, is shown under "other" with its own name. A method whose
loss has several parts logs some figures for each of them: ``loss_dense`` is the
part of the loss on cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Group = Literal["loss", "matching", "features", "probes", "optimisation", "throughput", "other"]

GROUPS: dict[Group, str] = {
    "loss": "Loss",
    "matching": "Matching",
    "features": "Features",
    "probes": "Probes over time",
    "optimisation": "Optimisation",
    "throughput": "Throughput",
    "other": "Other figures",
}
POSITION = frozenset({"step", "epoch"})
"""Keys of a logged step that say where it is, not how it went."""


@dataclass(frozen=True)
class Figure:
    """One figure of a logged step."""

    name: str
    title: str
    group: Group
    meaning: str
    is_share: bool = False  # a number from 0 to 1 that reads better in percent

    @property
    def unit(self) -> str:
        """What stands behind a shown value."""
        return " %" if self.is_share else ""

    def shown(self, value: float) -> float:
        """The value in the unit it is shown in."""
        return 100 * value if self.is_share else value


PARTS = {
    "global": "whole images",
    "instance": "whole images",
    "dense": "cells",
    "local": "cells or patches",
    "patches": "patches",
    "local_to_global": "patches with whole images",
    "c4": "windows of stage c4",
    "c3": "windows of stage c3",
    "group": "groups of cells",
    "slot": "slots",
    "whole": "whole images",
    "cells": "cells",
    **{f"cells_{stage}": f"cells of stage {stage}" for stage in ("c2", "c3", "c4", "c5")},
}
"""What the parts of a loss compare, by the end of their figures' names."""

_OF_A_PART = {
    "loss": ("Loss on {}", "The part of the loss on {}."),
    "cos": ("Similarity of {}", "Mean cosine of {} that belong together; should rise."),
    "cos_positive": ("Matches of {}", "Mean cosine of {} that belong together; should rise."),
    "cos_negative": ("Negatives of {}", "Mean cosine of {} that do not belong together."),
    "accuracy": ("Found {}", "Share of {} whose counterpart is nearer than all negatives."),
    "invariance": ("Distance of {}", "Weighted squared distance of {} that belong together."),
    "variance": ("Missing spread of {}", "Weighted lack of spread; near its weight is collapse."),
    "covariance": ("Redundancy of {}", "Weighted covariance between channels of {}."),
}


def _of_parts() -> Iterator[Figure]:
    for base, (title, meaning) in _OF_A_PART.items():
        for part, what in PARTS.items():
            yield Figure(
                f"{base}_{part}",
                title.format(what),
                "loss",
                meaning.format(what),
                is_share=base == "accuracy",
            )


_KNOWN = {
    figure.name: figure
    for figure in (
        Figure("loss", "Loss", "loss", "What is minimised; a constant margin is included."),
        Figure(
            "loss_excess",
            "Loss minus margin",
            "loss",
            "The loss without its constant: this is the curve that shows progress.",
        ),
        Figure(
            "cos_positive",
            "Similarity of matches",
            "loss",
            "Mean cosine of what belongs together: cells of two views that show the same place, or "
            "two views of one image; should rise.",
        ),
        Figure(
            "cos_negative",
            "Similarity of negatives",
            "loss",
            "Mean cosine with what does not belong together: the most similar cells of other "
            "places, or the images of a queue; should stay below the matches.",
        ),
        Figure(
            "accuracy",
            "Accuracy",
            "loss",
            "Share of images whose counterpart, or with labels whose class, comes out first.",
            is_share=True,
        ),
        *_of_parts(),
        Figure(
            "balance",
            "Balance of two losses",
            "loss",
            "The gradient of the loss on cells divided by that of the loss on whole images, where "
            "both meet; it settles within some hundred steps.",
        ),
        Figure(
            "positives_per_image_global",
            "Matches, large with large view",
            "matching",
            "Matching pairs of cells per image between two large views.",
        ),
        Figure(
            "positives_per_image_local",
            "Matches, small with large view",
            "matching",
            "Matching pairs of cells per image between a small and a large view.",
        ),
        Figure(
            "images_without_match",
            "Images without a match",
            "matching",
            "Share of compared pairs of views that do not overlap enough for a single match.",
            is_share=True,
        ),
        Figure(
            "cells_without_match",
            "Cells without a match",
            "matching",
            "Share of student cells that match no cell of the other view.",
            is_share=True,
        ),
        Figure(
            "cells_short_of_negatives",
            "Cells short of negatives",
            "matching",
            "Share of student cells with fewer negatives to choose from than the loss asks for.",
            is_share=True,
        ),
        Figure(
            "images_without_overlap",
            "Images without overlap",
            "matching",
            "Share of images whose two views share no part worth comparing.",
            is_share=True,
        ),
        *(
            Figure(
                f"windows_kept_{stage}",
                f"Windows kept, {stage}",
                "matching",
                "Share of windows of one view that lie wholly inside the other.",
                is_share=True,
            )
            for stage in ("c4", "c3")
        ),
        Figure(
            "foreground_cells",
            "Foreground",
            "matching",
            "Share of cells that show the pasted foreground.",
            is_share=True,
        ),
        Figure(
            "slots_per_image",
            "Slots per image",
            "matching",
            "Groups into which the cells of an image fall; 1 means that all are alike.",
        ),
        Figure(
            "prototypes_in_use",
            "Prototypes in use",
            "matching",
            "Share of prototypes that win a cell anywhere in a batch.",
            is_share=True,
        ),
        Figure(
            "feature_std",
            "Spread of embeddings",
            "features",
            "Spread of the unit embeddings relative to an even spread: 1 is ideal, 0 is collapse.",
        ),
        Figure(
            "effective_rank",
            "Effective rank",
            "features",
            "How many dimensions the embeddings use; 1 means that they all lie on one line.",
        ),
        *(
            Figure(
                f"place_share_{axis}",
                f"Place in the features, {axis}",
                "features",
                f"How much of a cell's {axis} in the view a linear map reads from its feature; "
                "less leaves more room for what the cell shows.",
                is_share=True,
            )
            for axis in ("height", "width")
        ),
        Figure(
            "attention_entropy",
            "Entropy of attention",
            "features",
            "1 when a cell looks at all cells alike, 0 when it looks at a single one.",
        ),
        Figure(
            "teacher_distance",
            "Distance of the teacher",
            "features",
            "How far the teacher's weights are from the student's, relative to their length.",
        ),
        Figure(
            "probe_correspondence",
            "Correspondence",
            "probes",
            "Share of cells whose most similar cell in another view shows the same place; should "
            "rise.",
            is_share=True,
        ),
        Figure(
            "probe_effective_rank",
            "Effective rank of the backbone",
            "probes",
            "How many dimensions the backbone's features of images use.",
        ),
        Figure(
            "probe_alignment",
            "Alignment",
            "probes",
            "Mean squared distance of two views of an image on the unit sphere; lower is closer.",
        ),
        Figure(
            "probe_uniformity",
            "Uniformity",
            "probes",
            "How unevenly images cover the unit sphere; lower is more even.",
        ),
        *(
            Figure(f"probe_{name}", title, "probes", meaning, is_share=True)
            for name, title, meaning in (
                ("knn", "k-NN accuracy", "Share of images whose nearest neighbours are right."),
                (
                    "linear",
                    "Linear accuracy",
                    "Share of images that a linear classifier gets right.",
                ),
                ("segmentation", "Linear mIoU", "Mean IoU of a linear classifier of cells."),
                ("retrieval", "k-NN mIoU", "Mean IoU of what the nearest cells say."),
                ("keypoints", "Keypoint PCK", "Share of keypoints found on another person."),
            )
        ),
        Figure("probe_seconds", "Time of a probe", "probes", "Seconds that a probe took."),
        Figure("gradient_norm", "Gradient norm", "optimisation", "Length of the whole gradient."),
        Figure(
            "lr", "Learning rate", "optimisation", "Rises linearly, then follows a cosine down."
        ),
        Figure(
            "images_per_second",
            "Images per second",
            "throughput",
            "Images of all processes together, since the step logged before.",
        ),
        Figure(
            "data_wait",
            "Waiting for data",
            "throughput",
            "Share of the time in which the device had nothing to do but wait for images.",
            is_share=True,
        ),
        Figure(
            "memory_gib",
            "GPU memory",
            "throughput",
            "Largest allocation so far on one GPU, in GiB.",
        ),
    )
}


def figure(name: str) -> Figure:
    """The entry of a figure; an unknown one gets a plain entry under "other"."""
    plain = Figure(name, name.replace("_", " "), "other", "A figure this method logs.")
    return _KNOWN.get(name, plain)


def in_reading_order(names: set[str]) -> list[str]:
    """Known figures in the order of the table, then all others by name."""
    known = [name for name in _KNOWN if name in names]
    return known + sorted(names.difference(_KNOWN))


def readable(value: float) -> str:
    """A number as a person reads it: 12,345 or 98.32 or 0.045 or 2e-05."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("-" * (value < 0) + "infinite")
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"
