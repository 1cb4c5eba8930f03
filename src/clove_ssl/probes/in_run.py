"""Probes of a run by itself, spread evenly over its steps.

They leave the run as it would be without them: the network is copied, all random
numbers come from generators of their own, and the time they take counts for no step.
The first process does them while the others wait at their next step. Scores go to
``metrics.jsonl`` under names that start with ``probe_``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from clove_ssl.backbones.build import Backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import SCENES, PretrainConfig
from clove_ssl.config.probing import RunProbeConfig
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Method
from clove_ssl.probes.data import ProbeData, open_probe_data, readable_images
from clove_ssl.probes.scores import Score
from clove_ssl.probes.suite import TITLES, Amounts, ProbeSuite
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import PROBE_PREFIX, PROBE_SECONDS, read_metrics
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.observer import Batches, Observer
from clove_ssl.training.plan import RunPlan
from clove_ssl.weights.safetensors_file import save_backbone


class RunProbes:
    """The probes of a run; none where its config asks for none.

    Args:
        config: Of the whole run.
        plan: Its steps.
        source: Its images.
        size: Side of the method's large views.
    """

    def __init__(
        self, config: PretrainConfig, plan: RunPlan, source: ImageSource, *, size: int
    ) -> None:
        self.steps = probe_steps(config.probe, plan)
        self.config = config
        self._suite: ProbeSuite | None = None
        if self.steps:  # opened now, so that what is wrong with it is said before the run
            self._suite = ProbeSuite(
                _open_data(config, source),
                size=config.probe.size or size,
                names=config.probe.names,
                amounts=_amounts(config.probe),
                seed=config.seed,
            )

    def measure(self, backbone: Backbone, device: torch.device) -> dict[str, Score]:
        """The scores of a backbone, which is left as it is."""
        assert self._suite is not None  # there are steps, or nobody asks
        return self._suite.measure(backbone, (backbone.stage,), device=device)


@dataclass(frozen=True)
class ProbedRun:
    """A run that is trained and probed in turn."""

    run: RunDirectory
    probes: RunProbes
    method: Method
    loop: TrainingLoop
    observer: Observer

    def train(self, feed: Batches, *, until: int) -> bool:
        """Run the loop to a step; False when asked to stop before the end."""
        loop = self.loop
        with loop.listening():
            for step in (step for step in self.probes.steps if loop.step <= step <= until):
                if not loop.run(feed, self.observer, until=step):
                    return False
                self.catch_up()
            return loop.run(feed, self.observer, until=until)

    def catch_up(self) -> None:
        """Do the probe of the current step, unless there is none or it was done before."""
        step = self.loop.step
        if step not in self.probes.steps or not self.loop.process.is_first:
            return
        earlier = read_metrics(self.run)
        if not any(row["step"] == step and PROBE_SECONDS in row for row in earlier):
            self._probe(step, earlier)

    def _probe(self, step: int, earlier: Sequence[Mapping[str, float]]) -> None:
        console, backbone = self.loop.console, self.method.export_backbone()
        start = time.perf_counter()
        try:
            scores = self.probes.measure(backbone, self.loop.process.device)
        except UserError as error:  # a training run of days is worth more than a score
            console.warn(f"the probe after step {step} is left out: {error}")
            return
        seconds = time.perf_counter() - start
        metrics = {f"{PROBE_PREFIX}{name}": score.value for name, score in scores.items()}
        # The line comes last: where it stands, a later start takes the probe for done.
        self._keep_if_best(step, backbone, metrics, earlier)
        epoch = self.loop.plan.epoch(step)
        self.observer.evaluated(step, {"epoch": epoch, **metrics, PROBE_SECONDS: seconds})
        console.say(f"Probe after step {step}: {_describe(scores)} ({seconds:.1f} s)")

    def _keep_if_best(
        self,
        step: int,
        backbone: Backbone,
        metrics: Mapping[str, float],
        earlier: Sequence[Mapping[str, float]],
    ) -> None:
        config = self.probes.config
        if config.probe.keep_best == "none":
            return
        name = f"{PROBE_PREFIX}{config.probe.keep_best}"
        if metrics[name] > max((row[name] for row in earlier if name in row), default=-math.inf):
            metadata = {
                "method": config.method.name,
                "config_hash": files.fingerprint(config),
                "step": str(step),
                name: repr(metrics[name]),
            }
            save_backbone(backbone, self.run.best_backbone, metadata)


def probe_steps(config: RunProbeConfig, plan: RunPlan) -> list[int]:
    """After which steps a run probes itself; the last of them is its end."""
    count = config.count(plan.total_steps, plan.images / plan.batch_size)
    return [plan.total_steps * number // count for number in range(1, count + 1)]


def _open_data(config: PretrainConfig, source: ImageSource) -> ProbeData:
    if config.probe.data is None and config.data.source != SCENES:
        return ProbeData(images=readable_images(source))
    return open_probe_data(
        config.probe.data or SCENES,
        size=config.data.scenes_size,
        counts=_amounts(config.probe).masks,
    )


def _amounts(config: RunProbeConfig) -> Amounts:
    """As many images to score on as asked for, and at most four times as many to learn from."""
    pair = (4 * config.images, config.images)
    return Amounts(pairs=config.images, classes=pair, masks=pair, persons=pair)


def _describe(scores: Mapping[str, Score]) -> str:
    return ", ".join(
        f"{TITLES[name]} {score.shown()}{(' %' if score.is_share else '')}"
        + (f" (chance {score.shown_chance()} %)" if score.chance is not None else "")
        for name, score in scores.items()
    )
