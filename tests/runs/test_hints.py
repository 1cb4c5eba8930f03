"""The sentences about a run's metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.clove.config import CLoVEConfig, LossConfig
from clove_ssl.methods.config import MatchingConfig
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.slotcon.config import SlotConConfig
from clove_ssl.registry import METHODS
from clove_ssl.runs.hints import Hint, hints, metric_table, worrying
from clove_ssl.runs.metric_table import GROUPS, Metric, MetricTable

DEFAULT = PretrainConfig(out=Path("run"))
ELSEWHERE = {
    "accuracy": "supervised",
    "accuracy_dense": "densecl",
    "loss_dense": "densecl",
    "prototypes_in_use": "slotcon",
}
"""Metrics that CLoVE does not log, and a method that does."""


def logged(epoch: float = 10.0, steps: int = 40, **values: float) -> list[dict[str, float]]:
    """A run that logged the same values all the time, up to an epoch."""
    rows = range(1, steps + 1)
    return [{"step": 20 * row, "epoch": epoch * row / steps, **values} for row in rows]


def hint_about(
    metric: str, metrics: list[dict[str, float]], method: str | MethodConfig = "clove", **run: Any
) -> Hint:
    """The only hint about a metric of a run, by default with the published recipe."""
    config = config_of(METHODS.load(method)() if isinstance(method, str) else method, **run)
    (found,) = [hint for hint in hints(metrics, config) if hint.metric.name == metric]
    return found


def config_of(method: MethodConfig, **changes: Any) -> PretrainConfig:
    return replace(DEFAULT, method=method, **changes)


@pytest.mark.parametrize(
    ("metric", "value", "level", "words"),
    [
        ("loss", 98.2, "good", "the margin is a constant"),
        ("loss", 82.0, "look", "further from the margin"),
        ("positives_per_image_global", 122.4, "good", "4:3 photos give 122"),
        ("positives_per_image_global", 99.0, "good", "as expected"),  # photos of 800 x 300
        ("positives_per_image_local", 56.0, "good", "as expected"),  # photos of 800 x 300
        ("positives_per_image_global", 40.0, "look", "4:3 photos give 122"),
        ("positives_per_image_global", 0.0, "bad", "nothing attracts"),
        ("images_without_match", 0.024, "good", "2.4 %"),
        ("images_without_match", 0.3, "look", "Use larger crops"),
        ("images_without_match", 0.8, "bad", "Use larger crops"),
        ("cells_without_match", 0.15, "good", "15 %"),
        ("cells_without_match", 0.7, "look", "most cells take no part"),
        ("cells_short_of_negatives", 0.0, "good", "has the 10 negatives"),
        ("cells_short_of_negatives", 0.004, "good", "too few to matter"),
        ("cells_short_of_negatives", 0.5, "look", "fewer than the 10 negatives"),
        ("cells_short_of_negatives", 1.0, "good", "averages those there are"),
        ("accuracy", 0.4, "good", "40 % rank first"),
        ("accuracy", 0.0, "look", "No counterpart ranks first"),
        ("accuracy_dense", 0.0, "look", "No counterpart ranks first"),
        ("loss_dense", 3.0, "look", "has not fallen"),
        ("prototypes_in_use", 0.5, "good", "50 %"),
        ("prototypes_in_use", 0.01, "look", "in one group"),
        ("feature_std", 0.95, "good", "1 is ideal"),
        ("feature_std", 0.1, "bad", "collapse"),
        ("effective_rank", 80.0, "good", "above the limit of 4"),
        ("effective_rank", 1.3, "bad", "collapse"),
        ("attention_entropy", 0.8, "good", "some cells more"),
        ("attention_entropy", 0.999, "look", "uniform"),
        ("attention_entropy", 0.01, "look", "context adds nothing"),
        ("teacher_distance", 0.03, "good", "3 %"),
        ("teacher_distance", 0.0, "look", "may not be training"),
        ("gradient_norm", 0.0, "bad", "nothing is learned"),
        ("data_wait", 0.02, "good", "keeps up"),
        ("data_wait", 0.4, "look", "more --data.workers"),
    ],
)
def test_a_steady_metric_is_judged(metric: str, value: float, level: str, words: str) -> None:
    hint = hint_about(metric, logged(**{metric: value}), ELSEWHERE.get(metric, "clove"))
    assert hint.level == level
    assert words in hint.text


@pytest.mark.parametrize(
    ("metric", "method", "most"),
    [
        ("variance_whole", "clove-plus", 25.0),
        ("variance_global", "vicregl", 25.0),
        ("variance_local", "vicregl", 50.0),
    ],
)
def test_spread_that_is_missing_is_collapse_and_some_of_it_is_as_usual(
    metric: str, method: str, most: float
) -> None:
    hint = hint_about(metric, logged(**{metric: 0.99 * most}), method)
    assert hint.level == "bad"
    assert "the same embedding" in hint.text
    early = hint_about(metric, logged(steps=8, **{metric: 0.99 * most}), method)
    assert early.level == "look"
    assert not hints(logged(**{metric: 0.6 * most}), config_of(METHODS.load(method)()))


@pytest.mark.parametrize(
    ("value", "level", "words"),
    [
        (0.0, "good", "has the negatives"),
        (0.004, "good", "no negatives, too few to matter"),
        (0.5, "look", "Larger views, or a smaller --method.matching.threshold avoid it"),
        (1.0, "look", "learn nothing"),
    ],
)
def test_a_contrast_asks_for_any_negatives(value: float, level: str, words: str) -> None:
    method = CLoVEConfig(loss=LossConfig(kind="infonce"))
    hint = hint_about("cells_short_of_negatives", logged(cells_short_of_negatives=value), method)
    assert (hint.level, words in hint.text) == (level, True)
    assert "10 negatives" not in hint.text + hint.metric.meaning


def test_what_is_as_usual_is_no_news() -> None:
    usual = {"gradient_norm": 0.7, "lr": 3.0, "images_per_second": 1500.0, "memory_gib": 40.0}
    assert hints(logged(**usual), DEFAULT) == []


@pytest.mark.parametrize(("steps", "total"), [(8, 60), (40, 100_000)])
def test_nothing_is_called_a_problem_early_in_a_run(steps: int, total: int) -> None:
    metrics = logged(steps=steps, cos_positive=0.1, cos_negative=0.2, attention_entropy=0.999)
    found = hints(metrics, replace(DEFAULT), total_steps=total)
    assert "bad" not in {hint.level for hint in found}
    assert not any("Not learning:" in hint.text for hint in found)


def test_matches_above_negatives_are_learning() -> None:
    hint = hint_about("cos_positive", logged(cos_positive=0.6, cos_negative=0.3))
    assert hint.level == "good"


def test_matches_not_above_negatives_are_not_learning() -> None:
    hint = hint_about("cos_positive", logged(cos_positive=0.3, cos_negative=0.3))
    assert hint.level == "bad"
    assert "Not learning" in hint.text


@pytest.mark.parametrize(("matches", "negatives"), [(0.02, 0.03), (0.0, -0.01), (0.01, 0.0)])
def test_matches_that_still_catch_up_with_hard_negatives_are_no_problem(
    matches: float, negatives: float
) -> None:
    metrics = [
        {
            **row,
            "cos_positive": 0.1 + matches * row["epoch"],
            "cos_negative": 0.3 + negatives * row["epoch"],
        }
        for row in logged()
    ]
    hint = hint_about("cos_positive", metrics)
    assert hint.level == "look"
    assert "Not there yet" in hint.text


def test_cells_without_a_match_repel_only_where_there_are_negatives() -> None:
    metrics = logged(cells_without_match=0.7, cos_positive=0.3, cos_negative=0.1)
    assert "most cells only repel" in hint_about("cells_without_match", metrics).text


def test_simulated_shares_are_named_for_the_views_they_were_simulated_with() -> None:
    metrics = logged(images_without_match=0.02, cells_without_match=0.15)
    for metric, share in (("images_without_match", "2 %"), ("cells_without_match", "15 %")):
        assert f"4:3 photos give {share}" in hint_about(metric, metrics).text
        assert "4:3" not in hint_about(metric, metrics, "pixpro").text


def test_a_small_batch_finds_nothing_most_of_the_time() -> None:
    metrics = logged(accuracy=0.0)
    metrics[-3]["accuracy"] = 0.125
    hint = hint_about("accuracy", metrics, "moco")
    assert hint.level == "good"
    assert "1.25 % rank first" in hint.text


@pytest.mark.parametrize(
    "name", sorted(set(METHODS.names()) - {"random", "slotcon", "supervised", "vicregl"})
)
def test_only_methods_without_a_queue_of_images_compare_cells(name: str) -> None:
    hint = hint_about("cos_positive", logged(cos_positive=0.999, cos_negative=0.99), name)
    compared = "cells" if name in ("clove", "clove-plus", "pixpro") else "images"
    assert f"All {compared} look alike" in hint.text


def test_matches_may_lag_during_the_warm_up() -> None:
    metrics = logged(epoch=2.0, cos_positive=0.3, cos_negative=0.35)
    assert hint_about("cos_positive", metrics).level == "look"


def test_a_single_step_is_no_reason_to_worry_about_learning() -> None:
    metrics = logged(epoch=0.1, steps=1, cos_positive=0.3, cos_negative=0.35)
    assert hint_about("cos_positive", metrics).level == "good"


def test_everything_alike_is_a_collapse_even_when_matches_lead() -> None:
    hint = hint_about("cos_positive", logged(cos_positive=0.999, cos_negative=0.99))
    assert hint.level == "bad"
    assert "collapsed" in hint.text


@pytest.mark.parametrize(
    ("method", "part", "compared"),
    [
        ("densecl", "", "images"),
        ("densecl", "_dense", "cells"),
        ("resim", "_c4", "windows of stage c4"),
    ],
)
def test_a_collapse_is_told_in_terms_of_what_is_compared(
    method: str, part: str, compared: str
) -> None:
    alike = {f"cos_positive{part}": 0.999, f"cos_negative{part}": 0.99}
    hint = hint_about(f"cos_positive{part}", logged(**alike), method)
    assert hint.level == "bad"
    assert f"All {compared} look alike" in hint.text


def test_each_part_of_a_loss_is_compared_with_its_own_negatives() -> None:
    metrics = logged(
        cos_positive=0.6, cos_negative=0.3, cos_positive_dense=0.2, cos_negative_dense=0.3
    )
    assert hint_about("cos_positive", metrics, "densecl").level == "good"
    assert hint_about("cos_positive_dense", metrics, "densecl").level == "bad"


@pytest.mark.parametrize(
    ("queue_steps", "level", "words"),
    [(500, "good", "real negatives"), (100, "look", "not fallen")],
)
def test_a_loss_with_a_queue_may_rise_while_the_queue_fills(
    queue_steps: int, level: str, words: str
) -> None:
    rising = [{**row, "loss": row["epoch"]} for row in logged()]  # 800 steps
    method = DenseCLConfig(queue_size=64 * queue_steps)
    hint = hint_about("loss", rising, method, batch_size=64)
    assert hint.level == level
    assert words in hint.text


def test_a_loss_with_a_queue_falls_from_where_the_full_queue_brought_it() -> None:
    values = [*range(20), *range(20, 10, -1), *[10] * 10]
    metrics = [{**row, "loss": float(value)} for row, value in zip(logged(), values, strict=True)]
    hint = hint_about("loss", metrics, "moco")
    assert (hint.level, hint.text) == ("good", "Fell from 20 to 10, once the queue was full.")


def test_a_loss_without_negatives_is_not_compared_with_them() -> None:
    hint = hint_about("cos_positive", logged(cos_positive=0.3))
    assert hint.level == "good"
    assert "no negatives" in hint.text


def test_a_falling_excess_is_progress_and_a_rising_one_is_not() -> None:
    rows = logged()
    falling = [{**row, "loss_excess": -row["epoch"]} for row in rows]
    rising = [{**row, "loss_excess": row["epoch"]} for row in rows]
    assert hint_about("loss_excess", falling).level == "good"
    assert hint_about("loss_excess", rising).level == "look"


def test_a_rising_excess_is_forgiven_during_the_warm_up() -> None:
    rising = [{**row, "loss_excess": row["epoch"]} for row in logged(epoch=4.0)]
    assert hint_about("loss_excess", rising).level == "good"


def test_one_odd_step_raises_no_alarm() -> None:
    metrics = logged(feature_std=0.9)
    metrics[-1]["feature_std"] = 0.01
    assert hint_about("feature_std", metrics).level == "good"


def test_half_of_the_best_rank_is_worth_a_look() -> None:
    metrics = logged(effective_rank=200.0)
    for row in metrics[20:]:
        row["effective_rank"] = 50.0
    assert hint_about("effective_rank", metrics).level == "look"


def test_the_start_of_the_loader_does_not_count_as_waiting() -> None:
    metrics = logged(steps=2, data_wait=0.01)
    metrics[0]["data_wait"] = 0.9
    assert hint_about("data_wait", metrics).level == "good"


def test_a_slowing_machine_is_noticed() -> None:
    metrics = logged(images_per_second=1000.0)
    for row in metrics[25:]:
        row["images_per_second"] = 300.0
    assert "down from 1,000" in hint_about("images_per_second", metrics).text


def test_memory_that_still_grows_is_noticed() -> None:
    metrics = [{**row, "memory_gib": 10 + row["epoch"]} for row in logged()]
    assert hint_about("memory_gib", metrics).level == "look"


def test_a_loss_that_stays_broken_names_the_first_broken_step() -> None:
    metrics = logged(loss=99.0)
    metrics[5]["loss"] = math.nan  # recovered
    metrics[-2]["loss"], metrics[-1]["loss"] = math.inf, math.nan
    hint = hint_about("loss", metrics)
    assert hint.level == "bad"
    assert f"since step {20 * 39}" in hint.text


def test_a_loss_that_recovered_is_judged_by_its_values() -> None:
    metrics = logged(loss=99.0)
    metrics[5]["loss"] = math.nan
    assert hint_about("loss", metrics).level == "good"


def test_an_infinite_gradient_is_only_worth_a_look() -> None:
    metrics = logged(gradient_norm=1.0)
    metrics[-1]["gradient_norm"] = math.inf
    hint = hint_about("gradient_norm", metrics)
    assert hint.level == "look"
    assert "fp16" in hint.text


def test_an_exploding_gradient_is_noticed() -> None:
    metrics = logged(gradient_norm=1.0)
    for row in metrics[-10:]:
        row["gradient_norm"] = 50.0
    assert hint_about("gradient_norm", metrics).level == "look"


def test_unknown_metrics_are_left_alone_unless_they_break() -> None:
    assert hints(logged(my_own=3.0), DEFAULT) == []
    assert hint_about("my_own", logged(my_own=math.nan)).level == "bad"


def test_metrics_of_another_method_are_unknown() -> None:
    assert metric_table(DEFAULT).of("slots_per_image").group == "other"
    assert metric_table(config_of(SlotConConfig())).of("slots_per_image").group == "matching"


def test_no_logged_step_gives_no_hint() -> None:
    assert hints([], DEFAULT) == []


def test_without_a_reference_positives_are_not_called_unusual() -> None:
    metrics = logged(positives_per_image_global=9.0)
    hint = hint_about("positives_per_image_global", metrics, "pixpro")
    assert hint.level == "good"
    assert "no reference" in hint.text


def test_the_worst_hints_come_first() -> None:
    metrics = logged(loss=82.0, effective_rank=1.0, data_wait=0.4, feature_std=0.9)
    found = worrying(hints(metrics, DEFAULT))
    assert [(hint.metric.name, hint.level) for hint in found] == [
        ("effective_rank", "bad"),
        ("loss", "look"),
        ("data_wait", "look"),
    ]


PAIRS = {"global": 122.0, "local": 44.0}
"""Simulated matches per image of the default views and threshold."""


def hint_about_pairs(view: str, **run: Any) -> Hint:
    name = f"positives_per_image_{view}"
    return hint_about(name, logged(**{name: PAIRS[view]}), **run)


@pytest.mark.parametrize("view", PAIRS)
def test_the_published_recipe_has_simulated_references(view: str) -> None:
    assert f"as expected: 4:3 photos give {PAIRS[view]:.0f}" in hint_about_pairs(view).text


@pytest.mark.parametrize(("view", "expected"), [("global", 64), ("local", 23)])
def test_another_threshold_has_another_reference(view: str, expected: int) -> None:
    method = CLoVEConfig(matching=MatchingConfig(threshold=0.5))
    assert f"4:3 photos give {expected}" in hint_about_pairs(view, method=method).text


@pytest.mark.parametrize(
    "run",
    [
        {"method": CLoVEConfig(views=ViewsConfig(global_size=160))},
        {"method": CLoVEConfig(views=ViewsConfig(global_scale=(0.5, 1.0)))},
        {"method": CLoVEConfig(matching=MatchingConfig(threshold=0.6))},
        {"method": CLoVEConfig(matching=MatchingConfig(unit="query"))},
        {"backbone": BackboneConfig(stage="c4")},
    ],
)
def test_settings_that_were_not_simulated_have_no_reference(run: dict[str, Any]) -> None:
    assert "no reference" in hint_about_pairs("global", **run).text


@pytest.mark.parametrize(
    ("form", "loss", "level"),
    [("release", 95, "good"), ("paper", 95, "look"), ("paper", 98, "good")],
)
def test_cosines_move_the_two_forms_of_the_loss_by_so_much(
    form: Any, loss: float, level: str
) -> None:
    method = CLoVEConfig(loss=LossConfig(form=form))
    assert hint_about("loss", logged(loss=loss), method).level == level


@pytest.mark.parametrize("loss", [LossConfig(kind="l2"), LossConfig(margin=1.0)])
def test_a_margin_that_is_no_constant_is_not_called_one(loss: LossConfig) -> None:
    assert "margin" not in hint_about("loss", logged(loss=-1.0), CLoVEConfig(loss=loss)).text


@pytest.mark.parametrize("name", METHODS.names())
def test_every_metric_that_is_judged_has_a_title_and_a_page_in_the_docs(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
    for metric in metric_table(config_of(METHODS.load(name)())):
        if metric.judge:
            assert metric.group != "other"
            stem = metric.name.rpartition("_")[0].removesuffix("_local_to")
            assert f"`{metric.name}`" in page or f"`{stem}_*`" in page, metric.name


@pytest.mark.parametrize("name", METHODS.names())
def test_metrics_come_in_the_order_of_their_groups(name: str) -> None:
    table = metric_table(config_of(METHODS.load(name)()))
    read = table.in_reading_order({metric.name for metric in table} | {"zzz", "aaa"})
    groups = [list(GROUPS).index(metric.group) for metric in read]
    assert groups == sorted(groups)
    assert [metric.name for metric in read[-2:]] == ["aaa", "zzz"]
    assert read[0].name == "loss"


def test_a_method_can_explain_a_common_metric_in_its_own_way() -> None:
    table = MetricTable([Metric("loss", "Loss", "loss", "a"), Metric("loss", "Mine", "loss", "b")])
    assert [metric.title for metric in table] == ["Mine"]
