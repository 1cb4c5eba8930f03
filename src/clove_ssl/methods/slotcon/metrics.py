"""What SlotCon logs: its two losses, and the groups into which cells fall."""

from __future__ import annotations

from collections.abc import Iterator

from clove_ssl.methods.metrics import of_parts
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import Limits, Metric, Verdict, percent


def slotcon_metrics() -> Iterator[Metric]:
    """All but the lag of the teacher."""
    yield from of_parts("loss", {"group": "groups of cells", "slot": "slots"})
    yield from of_parts("cos", {"slot": "slots"})
    yield Metric(
        "images_without_overlap",
        "Images without overlap",
        "matching",
        "Share of images whose two views share no part worth comparing.",
        is_share=True,
    )
    yield Metric(
        "slots_per_image",
        "Slots per image",
        "matching",
        "Groups into which the cells of an image fall; 1 means that all are alike.",
    )
    yield Metric(
        "prototypes_in_use",
        "Prototypes in use",
        "matching",
        "Share of prototypes that win a cell anywhere in a batch.",
        is_share=True,
        judge=_judge_prototypes,
    )


def _judge_prototypes(share: Series, history: History, limits: Limits) -> Verdict:
    now = percent(share.recent)
    if share.recent < 0.02 and share.shows_a_trend:
        return "look", f"{now} of the prototypes win any cell: nearly all cells are in one group."
    return "good", f"{now} of the prototypes win a cell in a batch."
