"""When a run probes itself, and mistakes in what probes are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders.runs.tiny_runs import tiny_config
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl import cli
from clove_ssl.config.probing import RunProbeConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.choices import plan_run
from clove_ssl.probes.in_run import probe_steps
from clove_ssl.training.plan import RunPlan


def plan(*, images: int, batch_size: int, epochs: int) -> RunPlan:
    config = replace(tiny_config(Path("unused")), steps=None, epochs=epochs, batch_size=batch_size)
    return plan_run(config, images=images, processes=1, device_type="cpu")


def test_whole_epochs_give_as_many_probes_as_they_should() -> None:
    steps = probe_steps(RunProbeConfig(), plan(images=13_301, batch_size=256, epochs=100))
    assert len(steps) == 10
    assert steps[0] == pytest.approx(520, abs=1)
    assert steps[-1] == 5195


def test_a_run_on_few_images_is_probed_by_steps() -> None:
    steps = probe_steps(RunProbeConfig(min_steps=300), plan(images=64, batch_size=8, epochs=100))
    assert steps == [400, 800]


@pytest.mark.parametrize("every", [None, 10.0])
def test_probes_can_be_off_or_too_far_apart_for_the_run(every: float | None) -> None:
    config = RunProbeConfig(every_epochs=every, min_steps=1)
    assert probe_steps(config, plan(images=64, batch_size=8, epochs=9)) == []


def test_a_short_run_that_keeps_its_best_backbone_is_probed_at_its_end() -> None:
    config = RunProbeConfig(keep_best="correspondence")
    assert probe_steps(config, plan(images=64, batch_size=8, epochs=2)) == [16]
    with pytest.raises(UserError, match="turns probes off"):
        RunProbeConfig(keep_best="correspondence", every_epochs=None)


@given(
    images=st.integers(8, 5000),
    epochs=st.integers(1, 300),
    every=st.floats(0.1, 50),
    min_steps=st.integers(1, 500),
)
def test_probes_are_never_closer_than_asked_and_the_last_is_at_the_end(
    images: int, epochs: int, every: float, min_steps: int
) -> None:
    run = plan(images=images, batch_size=8, epochs=epochs)
    steps = probe_steps(RunProbeConfig(every_epochs=every, min_steps=min_steps), run)
    interval = max(min_steps, every * images / 8)
    gaps = [later - step for step, later in zip([0, *steps], steps, strict=False)]
    assert all(gap >= 0.98 * interval - 1 for gap in gaps)
    assert steps[-1:] in ([], [run.total_steps])
    assert len(steps) >= int(run.total_steps / interval)


def test_the_demo_spends_its_minutes_on_training() -> None:
    demo = recipe("clove-demo", Path("unused"))
    run = plan_run(demo, images=demo.data.scenes_count, processes=1, device_type="cpu")
    assert probe_steps(demo.probe, run) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["probe", "random:resnet18", "--size", "0"],
            "--size is 0; expected a whole number from 32",
        ),
        (["probe", "random:resnet18", "--data", "nowhere"], "does not exist"),
        (["probe"], "needs something to probe"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_best": "knn"}, "--probe.names correspondence spread knn"),
    ],
)
def test_senseless_values_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RunProbeConfig(**changes)  # type: ignore[arg-type]
