"""When a fine-tuning is scored."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from builders.runs.tiny_finetuning import tiny_finetuning

from clove_ssl.config.finetuning import EvaluationConfig
from clove_ssl.finetuning.plan import FinetunePlan, plan_finetuning


def plan(iterations: int, every: int | None) -> FinetunePlan:
    config = tiny_finetuning("voc-semantic", Path("run"), iterations=iterations)
    config = replace(config, evaluation=EvaluationConfig(every=every))
    return plan_finetuning(config, images=6, processes=1)


@pytest.mark.parametrize("every", [None, 1, 3, 7, 10, 11])
def test_the_evaluations_are_all_steps_that_evaluate(every: int | None) -> None:
    one = plan(10, every)
    for start in range(11):
        expected = [step for step in range(start, 11) if one.evaluates(step)]
        assert list(one.evaluations(start)) == expected


def test_a_billion_iterations_are_not_counted_one_by_one() -> None:
    assert list(islice(plan(10**9, 10**8).evaluations(5), 2)) == [10**8, 2 * 10**8]
    assert list(plan(10**9, None).evaluations(5)) == [10**9]
