"""Metrics that several methods log, with their judges: what they compare, and what matches.

A method whose loss has several parts logs some metrics for each of them:
``loss_dense`` is the part of the loss on cells. No torch here: reports read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clove_ssl.runs.common_metrics import judge_fall
from clove_ssl.runs.history import RECENT, History, Series
from clove_ssl.runs.metric_table import Judge, Limits, Metric, Verdict, percent, readable

OF_A_PART = {
    "loss": ("Loss on {}", "The part of the loss on {}."),
    "cos": ("Similarity of {}", "Mean cosine of {} that belong together; should rise."),
    "cos_positive": ("Matches of {}", "Mean cosine of {} that belong together; should rise."),
    "cos_negative": ("Negatives of {}", "Mean cosine of {} that do not belong together."),
    "accuracy": ("Found {}", "Share of {} whose counterpart is nearer than all negatives."),
    "invariance": ("Distance of {}", "Weighted squared distance of {} that belong together."),
    "variance": ("Missing spread of {}", "Weighted lack of spread; near its weight is collapse."),
    "covariance": ("Redundancy of {}", "Weighted covariance between channels of {}."),
}


def of_parts(base: str, parts: Mapping[str, str], judge: Judge | None = None) -> Iterator[Metric]:
    """One metric for each part of a loss; ``parts`` are endings and what is compared there.

    The usual judge of ``base`` can be replaced.
    """
    title, meaning = OF_A_PART[base]
    for part, what in parts.items():
        usual: dict[str, Judge] = {
            "loss": judge_fall,
            "cos_positive": judge_matches(what, f"_{part}"),
            "cos_negative": judge_negatives(f"_{part}"),
            "accuracy": judge_accuracy,
        }
        yield Metric(
            f"{base}_{part}",
            title.format(what),
            "loss",
            meaning.format(what),
            is_share=base == "accuracy",
            judge=judge or usual.get(base),
        )


def judge_missing_spread(most: float) -> Judge:
    """A judge of a weighted lack of spread that comes to ``most`` where all is alike."""

    def judge(missing: Series, history: History, limits: Limits) -> Verdict | None:
        if not most or missing.recent < 0.9 * most:
            return None
        text = f"{readable(missing.recent)} of at most {readable(most)}: hardly any spread is left"
        if limits.is_early(missing, history):
            return "look", f"{text}. So early that may pass; watch it."
        return "bad", (
            f"{text}, so different things get the same embedding. Start a run with a smaller --lr "
            "or a longer --optimizer.warmup-epochs."
        )

    return judge


def positive_cosine(compared: str) -> Metric:
    """``cos_positive`` of a method that compares ``compared``: cells or images."""
    return Metric(
        "cos_positive",
        "Similarity of matches",
        "loss",
        "Mean cosine of what belongs together: cells of two views that show the same place, or "
        "two views of one image; should rise.",
        judge=judge_matches(compared),
    )


def judge_matches(compared: str, ending: str = "") -> Judge:
    """A judge of the similarity of matches, of the whole loss or of the part with an ending."""

    def judge(positive: Series, history: History, limits: Limits) -> Verdict:
        negative = history.of(f"cos_negative{ending}")
        if negative is None:
            now = readable(positive.recent)
            return "good", f"{now}; this loss has no negatives to compare with."
        return _compare_matches(positive, negative, history, limits, compared=compared)

    return judge


def _compare_matches(
    positive: Series, negative: Series, history: History, limits: Limits, *, compared: str
) -> Verdict:
    pair = f"{readable(positive.recent)} for matches, {readable(negative.recent)} for negatives"
    if min(positive.recent, negative.recent) > 0.98:
        return "bad", f"All {compared} look alike ({pair}): the embeddings have collapsed."
    if positive.recent > negative.recent:
        return "good", f"Matches are more alike than negatives: {pair}."
    if not positive.shows_a_trend:
        return "good", f"Too early to tell: {pair}."
    if limits.is_early(positive, history):
        return "look", f"Not learning yet: {pair}. This is normal early in a run."
    if _catches_up(positive, negative):
        early = f"{readable(positive.early)} and {readable(negative.early)}"
        return "look", (
            f"Not there yet: {pair}, after {early} early on. The matches should come to lead as "
            "the run goes on; if they do not, try another --lr."
        )
    return "bad", (
        f"Not learning: {pair}. Matches should be more alike. Check the images and the matching "
        "metrics, then try another --lr."
    )


def _catches_up(positive: Series, negative: Series) -> bool:
    """Whether matches became more alike, or negatives less, by more than noise."""
    rise = positive.recent - positive.early
    gain = rise - (negative.recent - negative.early)
    return positive.shows_a_trend and max(rise, gain) > 0.01


def judge_negatives(ending: str = "") -> Judge:
    """A judge of the similarity of negatives, of the whole loss or of the part with an ending."""

    def judge(negative: Series, history: History, limits: Limits) -> Verdict | None:
        positive = history.of(f"cos_positive{ending}")
        if positive is None or negative.recent >= positive.recent:
            return None  # said with the matches
        return "good", f"Below the matches by {readable(positive.recent - negative.recent)}."

    return judge


NEGATIVE_COSINE = Metric(
    "cos_negative",
    "Similarity of negatives",
    "loss",
    "Mean cosine with what does not belong together: the most similar cells of other places, or "
    "the images of a queue; should stay below the matches.",
    judge=judge_negatives(),
)


def judge_accuracy(share: Series, history: History, limits: Limits) -> Verdict:
    """A share of things whose counterpart or class comes out first."""
    if share.recent_mean > 0 or not share.shows_a_trend:
        return "good", f"{percent(share.recent_mean)} rank first, recently."
    return "look", (
        "No counterpart ranks first. This is normal early in a run; if it lasts, look at the "
        "similarities and try another --lr."
    )


ACCURACY = Metric(
    "accuracy",
    "Accuracy",
    "loss",
    "Share of images whose counterpart, or with labels whose class, ranks first.",
    is_share=True,
    judge=judge_accuracy,
)


def judge_queued_fall(queue_steps: float) -> Judge:
    """A loss that may rise for the steps in which a queue of negatives fills, and then falls."""

    def judge(series: Series, history: History, limits: Limits) -> Verdict:
        if not series.shows_a_trend or series.recent < series.early:
            return judge_fall(series, history, limits)
        now, peak = readable(series.recent), max(series.values[:-RECENT])
        if series.recent < 0.99 * peak:
            return "good", f"Fell from {readable(peak)} to {now}, once the queue was full."
        # As long again as the queue takes to fill, the loss may stay where that has brought it.
        if history.last_step <= 2 * queue_steps:
            return "good", (
                f"Went from {readable(series.early)} to {now}. It rises while real negatives "
                "replace the random ones of the queue, and falls later."
            )
        return judge_fall(series, history, limits)

    return judge


def _judge_teacher(distance: Series, history: History, limits: Limits) -> Verdict:
    if distance.recent == 0 and len(distance.values) > 1:
        return "look", "0: student and teacher are the same, so the student may not be training."
    return "good", f"The teacher is {percent(distance.recent)} of the weights' length away."


TEACHER_DISTANCE = Metric(
    "teacher_distance",
    "Distance of the teacher",
    "features",
    "How far the teacher's weights are from the student's, relative to their length.",
    judge=_judge_teacher,
)


def matched_pairs(view: str, expected: float | None = None) -> Metric:
    """Matches between two large views (``global``) or a small and a large one (``local``)."""
    views, between = {
        "global": ("large with large view", "two large views"),
        "local": ("small with large view", "a small and a large view"),
    }[view]

    def judge(pairs: Series, history: History, limits: Limits) -> Verdict:
        if pairs.recent == 0:
            return "bad", (
                "No cell matches any other, so nothing attracts. Use larger crops or the default "
                "--method.matching.threshold 0.7."
            )
        return _compare_pairs(pairs.recent, expected)

    return Metric(
        f"positives_per_image_{view}",
        f"Matches, {views}",
        "matching",
        f"Matching pairs of cells per image between {between}.",
        judge=judge,
    )


def _compare_pairs(count: float, expected: float | None) -> Verdict:
    if expected is None:
        return "good", (
            f"{readable(count)} per image. There is no reference for these views; judge by the "
            "share of cells without a match."
        )
    reference = f"4:3 photos give {readable(expected)} with these views and this threshold"
    # From 800 x 300 to square photos the simulated values span 0.81 to 1.27 of the 4:3 ones.
    if 0.75 < count / expected < 1.35:
        return "good", f"{readable(count)} per image, as expected: {reference}."
    return "look", (
        f"{readable(count)} per image, but {reference}. Very wide, tall or tiny photos shift it; "
        "otherwise check what the images are."
    )


def unmatched_images(reference: str = "") -> Metric:
    """Views without any match; ``reference`` is a sentence on what is usual, if that is known."""

    def judge(share: Series, history: History, limits: Limits) -> Verdict:
        text = f"{percent(share.recent)} of the compared views share no place.{reference}"
        if share.recent <= 0.2:
            return "good", text
        return ("bad" if share.recent > 0.5 else "look"), (
            f"{text} Use larger crops (--method.views.global-scale) or less elongated images."
        )

    return Metric(
        "images_without_match",
        "Images without a match",
        "matching",
        "Share of compared pairs of views that do not overlap enough for a single match.",
        is_share=True,
        judge=judge,
    )


def unmatched_cells(reference: str = "") -> Metric:
    """Cells without any match; ``reference`` is a sentence on what is usual, if that is known."""

    def judge(share: Series, history: History, limits: Limits) -> Verdict:
        text = f"{percent(share.recent)} of the cells have no counterpart"
        if share.recent > 0.5:
            idle = "only repel" if history.of("cos_negative") else "take no part"
            return "look", f"{text}, so most cells {idle}.{reference}"
        return "good", f"{text}.{reference}"

    return Metric(
        "cells_without_match",
        "Cells without a match",
        "matching",
        "Share of student cells that match no cell of the other view.",
        is_share=True,
        judge=judge,
    )


def matches_of_two_views() -> tuple[Metric, ...]:
    """What a loss on matched cells of two large views gets to work with."""
    return matched_pairs("global"), unmatched_images(), unmatched_cells()
