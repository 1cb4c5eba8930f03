"""The metrics of all runs, whatever their method; docs/health.md explains the numbers."""

from __future__ import annotations

from statistics import median

from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import Limits, Metric, Verdict, percent, readable


def judge_fall(series: Series, history: History, limits: Limits) -> Verdict:
    """A loss, or a part of one, that should fall."""
    if not series.shows_a_trend:
        return "good", f"{readable(series.recent)} so far; too few logged steps to see a trend."
    span = f"from {readable(series.early)} to {readable(series.recent)}"
    if series.recent < series.early:
        return "good", f"Fell {span}."
    if history.is_before_epoch(limits.warmup_epochs):
        return "good", f"Went {span}; the learning rate is still warming up, so give it time."
    return "look", (
        f"Went {span} and has not fallen. Look at the similarities and at the effective rank; if "
        "they stand still too, try another --lr."
    )


def _judge_spread(spread: Series, history: History, limits: Limits) -> Verdict:
    return _judge_floor(spread, limits.min_std, "1 is ideal")


def _judge_rank(rank: Series, history: History, limits: Limits) -> Verdict:
    return _judge_floor(rank, limits.min_rank, "more is better")


def _judge_floor(series: Series, floor: float, ideal: str) -> Verdict:
    """Judge a metric that falls when the features collapse."""
    now, best = readable(series.recent), readable(max(series.values))
    if series.recent < floor and not series.shows_a_trend:
        return "look", f"{now} is below {readable(floor)}. This early it may recover; watch it."
    if series.recent < floor:
        return "bad", (
            f"{now} is below {readable(floor)}: different things get the same embedding, so the "
            "features collapse. Stop the run and start one with a smaller --lr or a "
            "longer --optimizer.warmup-epochs."
        )
    if series.recent < max(series.values) / 2:
        return "look", f"{now}, down from {best}. It is above {readable(floor)}, but watch it."
    return "good", f"{now}, above the limit of {readable(floor)}; {ideal}."


def _judge_gradient(norm: Series, history: History, limits: Limits) -> Verdict | None:
    if norm.recent == 0:
        return "bad", "The gradient is zero: nothing is learned."
    usual = median(norm.values)
    if norm.recent > 10 * usual:
        return "look", (
            f"{readable(norm.recent)} is more than ten times the usual {readable(usual)}. If it "
            "keeps growing, use a smaller --lr."
        )
    return None


def _judge_speed(speed: Series, history: History, limits: Limits) -> Verdict | None:
    speed = speed.settled()
    now = readable(speed.recent)
    if speed.shows_a_trend and speed.recent < 0.7 * speed.early:
        return "look", (
            f"{now} images/s, down from {readable(speed.early)}: something else uses this machine, "
            "or it throttles."
        )
    return None


def _judge_data_wait(wait: Series, history: History, limits: Limits) -> Verdict:
    share = wait.settled().recent
    if share > limits.max_data_wait:
        return "look", (
            f"{percent(share)} of the time goes into waiting: the data loader is the bottleneck. "
            "Try more --data.workers, images scaled down beforehand, or .tar shards."
        )
    return "good", f"{percent(share)}: the data loader keeps up."


def _judge_memory(memory: Series, history: History, limits: Limits) -> Verdict | None:
    halfway, now = memory.values[len(memory.values) // 2], memory.values[-1]
    if memory.shows_a_trend and now > 1.05 * halfway:
        return "look", f"{readable(now)} GiB, and still grew in the second half; it should not."
    return None


LOSS = Metric("loss", "Loss", "loss", "What training minimises.", judge=judge_fall)

COMMON = (
    LOSS,
    Metric(
        "feature_std",
        "Spread of embeddings",
        "features",
        "Spread of the unit embeddings relative to an even spread: 1 is ideal, 0 is collapse.",
        judge=_judge_spread,
    ),
    Metric(
        "effective_rank",
        "Effective rank",
        "features",
        "How many dimensions the embeddings use; 1 means that they all lie on one line.",
        judge=_judge_rank,
    ),
    Metric(
        "probe_correspondence",
        "Correspondence",
        "probes",
        "Share of cells whose most similar cell in another view shows the same place; should rise.",
        is_share=True,
    ),
    Metric(
        "probe_effective_rank",
        "Effective rank of the backbone",
        "probes",
        "How many dimensions the backbone's features of images use.",
    ),
    Metric(
        "probe_alignment",
        "Alignment",
        "probes",
        "Mean squared distance of two views of an image on the unit sphere; lower is closer.",
    ),
    Metric(
        "probe_uniformity",
        "Uniformity",
        "probes",
        "How unevenly images cover the unit sphere; lower is more even.",
    ),
    *(
        Metric(f"probe_{name}", title, "probes", meaning, is_share=True)
        for name, title, meaning in (
            ("knn", "k-NN accuracy", "Share of images whose nearest neighbours are right."),
            ("linear", "Linear accuracy", "Share of images that a linear classifier gets right."),
            ("segmentation", "Linear mIoU", "Mean IoU of a linear classifier of cells."),
            ("retrieval", "k-NN mIoU", "Mean IoU of what the nearest cells say."),
            ("keypoints", "Keypoint PCK", "Share of keypoints found on another person."),
        )
    ),
    Metric("probe_seconds", "Time of a probe", "probes", "Seconds that a probe took."),
    Metric(
        "gradient_norm",
        "Gradient norm",
        "optimisation",
        "Norm of the gradient of all parameters.",
        judge=_judge_gradient,
    ),
    Metric(
        "lr", "Learning rate", "optimisation", "Rises during the warm-up, then falls as scheduled."
    ),
    Metric(
        "images_per_second",
        "Images per second",
        "throughput",
        "Images of all processes, since the previous logged step.",
        judge=_judge_speed,
    ),
    Metric(
        "data_wait",
        "Waiting for data",
        "throughput",
        "Share of the time in which the device had nothing to do but wait for images.",
        is_share=True,
        judge=_judge_data_wait,
    ),
    Metric(
        "memory_gib",
        "GPU memory",
        "throughput",
        "Largest allocation so far on one GPU, in GiB.",
        judge=_judge_memory,
    ),
)

FINETUNING = (
    *COMMON,
    *(
        Metric(f"loss_{name}", title, "loss", meaning)
        for name, title, meaning in (
            ("cls", "Loss on classes", "Which class is in a region."),
            ("box_reg", "Loss on boxes", "Where the box of an object lies in its region."),
            ("rpn_cls", "Loss on proposals", "Whether there is any object at an anchor."),
            ("rpn_loc", "Loss on the boxes of proposals", "Where such an object is."),
            ("mask", "Loss on masks", "Which pixels of a region belong to its object."),
            ("keypoint", "Loss on keypoints", "Where in a region its keypoints are."),
            ("pixel", "Loss on pixels", "Which class each pixel belongs to."),
        )
    ),
)
"""Metrics of fine-tuning runs: parts of the losses of detectors and segmenters as well."""
