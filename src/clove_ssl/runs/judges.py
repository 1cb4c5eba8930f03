"""One judge per figure: is it healthy, and what does it say in plain words?

A judge gets the figure's own values, the whole history for comparisons, and
the limits of the run. References for the matching are simulated values of the
default views; docs/health.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Literal

from clove_ssl.runs.figures import PARTS, readable
from clove_ssl.runs.history import RECENT, History, Series
from clove_ssl.runs.limits import Limits

Level = Literal["good", "look", "bad"]
Verdict = tuple[Level, str]
Judge = Callable[[Series, History, Limits], Verdict | None]


def judge_broken(name: str, since: int) -> Verdict:
    """A figure that has been infinite or not a number since a step."""
    if name == "gradient_norm":
        return "look", (
            f"Not finite since step {since}. With fp16 single steps like this are normal and are "
            "skipped; if it lasts, use --precision bf16 or fp32, or a smaller --optimizer.lr."
        )
    return "bad", (
        f"Not a number since step {since}. Start again with a smaller --optimizer.lr or with "
        "--precision fp32."
    )


def _judge_loss(loss: Series, history: History, limits: Limits) -> Verdict:
    if limits.margin is None:
        return _judge_fall(loss, history, limits)
    if abs(loss.recent - limits.margin) > limits.reach:
        return "look", (
            f"{readable(loss.recent)} is further from the margin of {readable(limits.margin)} than "
            "cosines can move it. In the paper's form images without a match count as 0: see how "
            "many there are."
        )
    return "good", (
        f"{readable(loss.recent)} lies near the margin of {readable(limits.margin)}, as it must: "
        "the margin is a constant. Progress shows in the loss minus the margin."
    )


def _judge_fall(series: Series, history: History, limits: Limits) -> Verdict:
    if not series.shows_a_trend:
        return "good", f"{readable(series.recent)} so far; too few logged steps to see a trend."
    span = f"from {readable(series.early)} to {readable(series.recent)}"
    if series.recent < series.early:
        return "good", f"Fell {span}."
    peak = max(series.values[:-RECENT])
    if limits.queue_steps and series.recent < 0.99 * peak:
        return (
            "good",
            f"Fell from {readable(peak)} to {readable(series.recent)}, once the queue was full.",
        )
    # As long again as the queue takes to fill, the loss may stay where that has brought it.
    if limits.queue_steps and history.last_step <= 2 * limits.queue_steps:
        return "good", (
            f"Went {span}. It rises while real negatives replace the random ones of the queue, and "
            "falls later."
        )
    if history.is_before_epoch(limits.warmup_epochs):
        return "good", f"Went {span}; the learning rate is still warming up, so give it time."
    return "look", (
        f"Went {span} and has not fallen. Look at the similarities and at the effective rank; if "
        "they stand still too, try another --optimizer.lr."
    )


def _judge_matches(part: str = "") -> Judge:
    """A judge of the similarity of matches, of the whole loss or of a part of it."""

    def judge(positive: Series, history: History, limits: Limits) -> Verdict:
        negative = history.of(f"cos_negative{part}")
        if negative is None:
            now = readable(positive.recent)
            return "good", f"{now}; this loss has no negatives to compare with."
        compared = PARTS[part.removeprefix("_")] if part else limits.compared
        return _compare_matches(positive, negative, history, limits, compared=compared)

    return judge


def _compare_matches(
    positive: Series, negative: Series, history: History, limits: Limits, *, compared: str
) -> Verdict:
    pair = f"{readable(positive.recent)} for matches, {readable(negative.recent)} for negatives"
    if min(positive.recent, negative.recent) > 0.98:
        return "bad", f"All {compared} look alike ({pair}): the embeddings have collapsed."
    if positive.recent > negative.recent:
        return "good", f"Matches are more alike than what they are compared with: {pair}."
    if history.is_before_epoch(limits.warmup_epochs):
        if not positive.shows_a_trend:
            return "good", f"Too early to tell: {pair}."
        return "look", f"Not learning yet: {pair}. During the warm-up this can be so."
    if _catches_up(positive, negative):
        early = f"{readable(positive.early)} and {readable(negative.early)}"
        return "look", (
            f"Not there yet: {pair}, after {early} early on. The matches should come to lead as "
            "the run goes on; if they do not, try another --optimizer.lr."
        )
    return "bad", (
        f"Not learning: {pair}. Matches should be more alike. Check the images and the matching "
        "figures, then try another --optimizer.lr."
    )


def _catches_up(positive: Series, negative: Series) -> bool:
    """Whether matches became more alike, or negatives less, by more than noise."""
    rise = positive.recent - positive.early
    gain = rise - (negative.recent - negative.early)
    return positive.shows_a_trend and max(rise, gain) > 0.01


def _judge_negatives(part: str = "") -> Judge:
    def judge(negative: Series, history: History, limits: Limits) -> Verdict | None:
        positive = history.of(f"cos_positive{part}")
        if positive is None or negative.recent >= positive.recent:
            return None  # said with the matches
        return "good", f"Below the matches by {readable(positive.recent - negative.recent)}."

    return judge


def _judge_accuracy(share: Series, history: History, limits: Limits) -> Verdict:
    if share.recent_mean > 0 or not share.shows_a_trend:
        return "good", f"{_percent(share.recent_mean)} come out first, of late."
    return "look", (
        "Nothing comes out first. Early in a run this can be so; if it stays, look at the "
        "similarities and try another --optimizer.lr."
    )


def _judge_balance(ratio: Series, history: History, limits: Limits) -> Verdict:
    now = readable(ratio.recent)
    usual = median(ratio.values)
    if ratio.recent > 10 * usual or ratio.recent < usual / 10:
        return "look", (
            f"{now}, far from the usual {readable(usual)}: one of the two losses hardly pulls any "
            "more. See which of them stands still."
        )
    return "good", f"{now} now, {readable(usual)} usually."


def _judge_place(share: Series, history: History, limits: Limits) -> Verdict:
    now = _percent(share.recent_mean)
    if share.recent_mean > 0.9:
        return "look", (
            f"{now} of a cell's place can be read from its feature: it may be matched by where it "
            "is, not by what it shows. More freely placed crops make that harder."
        )
    return "good", f"{now} of a cell's place can be read from its feature."


def _judge_prototypes(share: Series, history: History, limits: Limits) -> Verdict:
    now = _percent(share.recent)
    if share.recent < 0.02 and share.shows_a_trend:
        return "look", f"{now} of the prototypes win any cell: nearly all cells are in one group."
    return "good", f"{now} of the prototypes win a cell in a batch."


def _judge_positives(name: str) -> Judge:
    def judge(pairs: Series, history: History, limits: Limits) -> Verdict:
        if pairs.recent == 0:
            return "bad", (
                "No cell matches any other, so nothing attracts. Use larger crops or the default "
                "--method.matching.threshold 0.7."
            )
        return _compare_positives(pairs.recent, limits.expected_positives.get(name))

    return judge


def _compare_positives(count: float, expected: float | None) -> Verdict:
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


def _judge_images_without_match(share: Series, history: History, limits: Limits) -> Verdict:
    text = f"{_percent(share.recent)} of the compared views share no place."
    if share.recent > 0.2:
        return ("bad" if share.recent > 0.5 else "look"), (
            f"{text}{_reference(limits, '2 %', '16 %')} Use larger crops "
            "(--method.views.global-scale) or less elongated images."
        )
    return "good", text + _reference(limits, "2 %", "16 %")


def _judge_cells_without_match(share: Series, history: History, limits: Limits) -> Verdict:
    text = f"{_percent(share.recent)} of the cells have no counterpart"
    reference = _reference(limits, "15 %", "31 %")
    if share.recent > 0.5:
        idle = "only repel" if history.of("cos_negative") else "take no part"
        return "look", f"{text}, so most cells {idle}.{reference}"
    return "good", f"{text}.{reference}"


def _reference(limits: Limits, usual: str, elongated: str) -> str:
    """What the simulation gives, where it simulated views like those of the run."""
    if not limits.expected_positives:
        return ""
    return f" 4:3 photos give {usual} with these views, photos of 800 x 300 give {elongated}."


def _judge_short_cells(share: Series, history: History, limits: Limits) -> Verdict:
    if share.recent == 0:
        return "good", "Every cell has as many negatives as the loss asks for."
    return "look", (
        f"{_percent(share.recent)} of the cells have fewer; the loss averages those there are. "
        "Larger views, a smaller --method.matching.threshold or --method.loss.top-k avoid it."
    )


def _judge_spread(spread: Series, history: History, limits: Limits) -> Verdict:
    return _judge_floor(spread, limits.min_std, "1 is ideal")


def _judge_rank(rank: Series, history: History, limits: Limits) -> Verdict:
    return _judge_floor(rank, limits.min_rank, "more is better")


def _judge_floor(series: Series, floor: float, ideal: str) -> Verdict:
    """Judge a figure that falls when the features collapse."""
    now, best = readable(series.recent), readable(max(series.values))
    if series.recent < floor:
        return "bad", (
            f"{now} is under {readable(floor)}: different things get the same embedding, the "
            "features collapse. Stop the run and start one with a smaller --optimizer.lr or a "
            "longer --optimizer.warmup-epochs."
        )
    if series.recent < max(series.values) / 2:
        return "look", f"{now}, down from {best}. It is above {readable(floor)}, but watch it."
    return "good", f"{now}, above the limit of {readable(floor)}; {ideal}."


def _judge_attention(entropy: Series, history: History, limits: Limits) -> Verdict:
    now = readable(entropy.recent)
    if entropy.recent > 0.995:
        return "look", (
            f"{now} is uniform: every cell gets the same average of its view. Early in a run this "
            "is no worry; later a smaller --method.attention.temperature sharpens it."
        )
    if entropy.recent < 0.05:
        return "look", f"{now} is almost 0: each cell looks at one cell, so context adds nothing."
    return "good", f"{now}: cells look at some cells more than at others."


def _judge_teacher(distance: Series, history: History, limits: Limits) -> Verdict:
    if distance.recent == 0 and len(distance.values) > 1:
        return "look", "0: student and teacher are the same, so the student may not be training."
    return "good", f"The teacher is {_percent(distance.recent)} of the weights' length away."


def _judge_gradient(norm: Series, history: History, limits: Limits) -> Verdict:
    if norm.recent == 0:
        return "bad", "The gradient is zero: nothing is learned."
    usual = median(norm.values)
    if norm.recent > 10 * usual:
        return "look", (
            f"{readable(norm.recent)} is more than ten times the usual {readable(usual)}. If it "
            "keeps growing, use a smaller --optimizer.lr."
        )
    return "good", f"{readable(norm.recent)} now, {readable(usual)} usually."


def _judge_learning_rate(rate: Series, history: History, limits: Limits) -> Verdict:
    now = readable(rate.values[-1])
    if history.is_before_epoch(limits.warmup_epochs):
        return "good", f"{now}, still warming up."
    return "good", f"{now}, after a peak of {readable(max(rate.values))}."


def _judge_speed(speed: Series, history: History, limits: Limits) -> Verdict:
    speed = speed.settled()
    now = readable(speed.recent)
    if speed.shows_a_trend and speed.recent < 0.7 * speed.early:
        return "look", (
            f"{now} images/s, down from {readable(speed.early)}: something else uses this machine, "
            "or it throttles."
        )
    return "good", f"{now} images/s."


def _judge_data_wait(wait: Series, history: History, limits: Limits) -> Verdict:
    share = wait.settled().recent
    if share > limits.max_data_wait:
        return "look", (
            f"{_percent(share)} of the time goes into waiting: the data loader is the bottleneck. "
            "Try more --data.workers, images scaled down beforehand, or .tar shards."
        )
    return "good", f"{_percent(share)}: the data loader keeps up."


def _judge_memory(memory: Series, history: History, limits: Limits) -> Verdict:
    halfway, now = memory.values[len(memory.values) // 2], memory.values[-1]
    if memory.shows_a_trend and now > 1.05 * halfway:
        return "look", f"{readable(now)} GiB, and still grew in the second half; it should not."
    return "good", f"{readable(now)} GiB at most."


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


JUDGES: dict[str, Judge] = {
    "loss": _judge_loss,
    "loss_excess": _judge_fall,
    "cos_positive": _judge_matches(),
    "cos_negative": _judge_negatives(),
    "accuracy": _judge_accuracy,
    **{f"loss_{part}": _judge_fall for part in PARTS},
    **{f"cos_positive_{part}": _judge_matches(f"_{part}") for part in PARTS},
    **{f"cos_negative_{part}": _judge_negatives(f"_{part}") for part in PARTS},
    **{f"accuracy_{part}": _judge_accuracy for part in PARTS},
    "balance": _judge_balance,
    "prototypes_in_use": _judge_prototypes,
    "positives_per_image_global": _judge_positives("positives_per_image_global"),
    "positives_per_image_local": _judge_positives("positives_per_image_local"),
    "images_without_match": _judge_images_without_match,
    "cells_without_match": _judge_cells_without_match,
    "cells_short_of_negatives": _judge_short_cells,
    "feature_std": _judge_spread,
    "effective_rank": _judge_rank,
    "place_share_height": _judge_place,
    "place_share_width": _judge_place,
    "attention_entropy": _judge_attention,
    "teacher_distance": _judge_teacher,
    "gradient_norm": _judge_gradient,
    "lr": _judge_learning_rate,
    "images_per_second": _judge_speed,
    "data_wait": _judge_data_wait,
    "memory_gib": _judge_memory,
}
