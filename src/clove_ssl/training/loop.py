"""The training loop: gradients, agreement, optimizer, checkpoints, log.

It drives any :class:`Learner`, a method or a fine-tuned network, so that whatever is trained has
every safety the loop has: a loss that is not finite stops all processes before a
weight changes, a signal ends the run with a checkpoint, and what was saved
continues bit for bit.
"""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.interrupts import answered_with, caught
from clove_ssl.layers.captured import Recorder
from clove_ssl.layers.transfers import HostCopy
from clove_ssl.methods.base import Learner, Progress, StepOutput
from clove_ssl.training.captured import CapturedPasses
from clove_ssl.training.checkpoints import (
    CheckpointStore,
    CheckpointWriter,
    State,
    restore_optimizer,
)
from clove_ssl.training.numerics import Precision, random_state, set_random_state
from clove_ssl.training.observer import (
    Batches,
    Observer,
    describe_metrics,
    gradient_norm,
    mean_output,
)
from clove_ssl.training.plan import RunPlan
from clove_ssl.training.processes import Process
from clove_ssl.views.batch import ViewBatch

AFTER_THIS_STEP = "stopping after this step; press Ctrl-C again to stop now"


@dataclass(frozen=True)
class Verdict:
    """The same on every process."""

    non_finite: bool
    stop: bool


class StopRequest:
    """Set by SIGTERM, SIGINT or a closed terminal; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals for the duration of the loop."""
        with caught(self._handle, interrupts=True), answered_with(AFTER_THIS_STEP):
            yield


class StepSignals:
    """What all processes must agree on before an optimizer step.

    Each process may see a loss that is not finite, or be asked to stop. One tiny
    reduction per step spreads the news. Its result is copied to the host while the
    backward pass runs and is read only after that pass was queued, so the device
    never runs dry waiting for the answer.
    """

    def __init__(self, process: Process, stop: StopRequest) -> None:
        self._process = process
        self._stop = stop
        self._sent: HostCopy | None = None

    def send(self, loss: Tensor) -> None:
        """Start spreading the news of this step; returns at once."""
        bad = ~torch.isfinite(loss.detach())
        flags = torch.stack([bad, torch.full_like(bad, self._stop.asked)])
        self._sent = HostCopy(self._process.maximum(flags.int()))

    def verdict(self) -> Verdict:
        """Read the flags that were sent last; does not wait for the work queued after them."""
        assert self._sent is not None, "nothing was sent"
        non_finite, stop = self._sent.read()
        if self._process.world_size == 1:  # nobody to agree with: heed what came since, too
            stop = self._stop.asked
        return Verdict(non_finite=bool(non_finite), stop=bool(stop))


@dataclass(kw_only=True)
class TrainingLoop:
    """Takes a learner from its current step to the last one."""

    learner: Learner
    optimizer: Optimizer
    lr: Callable[[int], float]
    plan: RunPlan
    precision: Precision
    process: Process
    store: CheckpointStore
    console: Console
    captured: CapturedPasses | None = None
    recorder: Recorder | None = None  # of a learner that captures parts of its steps itself
    advice: str = "Try a smaller --lr or --precision fp32 in a new run."
    step: int = 0
    _stop: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        self._model = _distributed(self.learner, self.process)
        self._scaler = self.precision.scaler()
        self._signals = StepSignals(self.process, self._stop)
        self._writer = CheckpointWriter(self.store)
        self._after_pass: Callable[[int], None] = lambda step: None

    def run(self, feed: Batches, observer: Observer, *, until: int | None = None) -> bool:
        """Train to the end, or to step ``until``; False when asked to stop before the end.

        Every checkpoint is on the disk when this returns.
        """
        goal = self.plan.total_steps if until is None else until
        self._after_pass = observer.pass_done
        self._model.train()
        with (
            self._stop.listening(),
            self._stream(),
            self._writer.finishing(),
            observer.kept_shown(self.step),
        ):
            while self.step < goal:
                self._writer.check()
                stopping = self._train_step(feed, observer)
                if self.plan.writes_checkpoint(self.step) or stopping:
                    self._save(feed, observer)
                if stopping and self.step < self.plan.total_steps:
                    return False
        return True

    @property
    def asked_to_stop(self) -> bool:
        """Whether this process was asked to stop, be it in the very last step."""
        return self._stop.asked

    def expect_other_sizes(self) -> None:
        """Batches may have other sizes from now on."""
        if self.captured is not None:
            self.captured.forget()

    def listening(self) -> AbstractContextManager[None]:
        """Catch requests to stop between calls of :meth:`run` as well; the next step heeds them."""
        return self._stop.listening()

    def _stream(self) -> AbstractContextManager[None]:
        records = self.captured or self.recorder
        return nullcontext() if records is None else records.own_stream()

    def _train_step(self, feed: Batches, observer: Observer) -> bool:
        """One optimizer step; True when the run was asked to stop after it."""
        # From the step alone, not from a scheduler with a state: a resumed run cannot drift.
        lr = self.lr(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        try:
            output = mean_output(self._accumulate(feed))
        except FloatingPointError as error:
            raise self._diverged(str(error)) from None
        # All processes decide alike, or one would wait forever for the gradients of the others.
        verdict = self._signals.verdict()
        if verdict.non_finite:
            raise self._non_finite(output)
        norm = self._update(measures_norm=observer.wants(self.step))
        self.learner.after_step(Progress(self.step, self.plan.total_steps))
        self.step += 1
        observer.step_done(self.step)
        if norm is not None:
            observer.log(self.step, self.learner, output, lr=lr, norm=norm, feed=feed)
        return verdict.stop

    def _update(self, *, measures_norm: bool) -> Tensor | None:
        """Change the weights; the length of the gradient that did it, where it is asked for."""
        # Before the norm and before LARS, whose trust ratios need gradients as they are.
        self._scaler.unscale_(self.optimizer)
        norm = gradient_norm(self.learner) if measures_norm else None
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _accumulate(self, feed: Batches) -> list[StepOutput]:
        """Forward and backward over the micro-batches of a step."""
        outputs: list[StepOutput] = []
        for number in range(self.plan.micro_batches):
            closes = number + 1 == self.plan.micro_batches
            progress = Progress(self.step, self.plan.total_steps, closes_step=closes)
            batch = feed.next()
            if self.captured is not None and self.captured.covers(batch, progress, number=number):
                outputs.append(self._replay(batch, progress, outputs))
                continue
            # Forward and backward inside: DDP decides in its forward pass whether it will reduce.
            with self._gradients_stay_local(unless=closes):
                with self.precision.autocast():
                    output = self._model(batch, progress)
                outputs.append(output)
                # In the last micro-batch, with the losses of all: one message per step, however
                # many passes.
                if closes:
                    self._signals.send(torch.stack([o.loss.detach() for o in outputs]).sum())
                self._scaler.scale(output.loss / self.plan.micro_batches).backward()
            self._after_pass(self.step)
        return outputs

    def _replay(self, batch: ViewBatch, progress: Progress, before: list[StepOutput]) -> StepOutput:
        """One micro-batch of a captured step, after ``before``."""
        assert self.captured is not None

        def check(loss: Tensor) -> None:
            if progress.closes_step:
                losses = [output.loss for output in before]
                self._signals.send(torch.stack([*losses, loss]).sum())

        return self.captured.run(batch, progress, check=check, number=len(before))

    def _gradients_stay_local(self, *, unless: bool) -> AbstractContextManager[None]:
        if unless or not isinstance(self._model, DistributedDataParallel):
            return nullcontext()
        return self._model.no_sync()

    def _non_finite(self, output: StepOutput) -> UserError:
        tensors = {"loss": output.loss.detach(), **output.metrics}
        metrics = {name: float(value) for name, value in tensors.items()}
        terms = describe_metrics(metrics)
        if math.isfinite(metrics["loss"]):
            return self._diverged("The loss of another process is not finite", f" has: {terms}")
        return self._diverged("The loss is not finite", f": {terms}")

    def _diverged(self, problem: str, details: str = "") -> UserError:
        self._writer.wait()
        return UserError(
            f"{problem} at step {self.step + 1}, process {self.process.rank}{details}."
            f" No weight was changed by this step. The last checkpoint: {self.store.last_path()}. "
            f"{self.advice}"
        )

    def _save(self, feed: Batches, observer: Observer) -> None:
        if not self.process.is_first:
            return
        milestone = self.plan.is_milestone(self.step)
        state = self._state(feed)
        self._writer.save(self.step, state, milestone=milestone, before=observer.settle)

    def _state(self, feed: Batches) -> State:
        return {
            "step": self.step,
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            # Of the first process. Others have the same: what must differ comes from seed, step and
            # rank.
            "random": random_state(self.process.device),
            "feed": feed.state(),
        }

    def restore(self) -> State:
        """Continue from the newest checkpoint; gives the state of the feed, empty for a new run."""
        state = self.store.load_latest(needs=_PARTS)
        if state is None:
            return {}
        with self.store.fitting(state["step"]):
            # The learner before the optimizer, whose state must fit its weights; the generators
            # last, since nothing that was done before may have moved them.
            self.learner.load_state_dict(state["learner"])
            restore_optimizer(self.optimizer, state["optimizer"])
            self._scaler.load_state_dict(state["scaler"])
            set_random_state(state["random"], self.process.device)
        self.step = state["step"]
        feed_state: State = state["feed"]
        return feed_state


_PARTS = dict.fromkeys(("learner", "optimizer", "scaler", "random", "feed"), dict)
"""Of a checkpoint, beside its step."""


def _distributed(learner: nn.Module, process: Process) -> nn.Module:
    if process.world_size == 1:
        return learner
    on_gpu = process.device.type == "cuda"
    with warnings.catch_warnings():
        # Its newer name does not exist in all versions of torch, nor mean quite the same.
        warnings.filterwarnings("ignore", message="`broadcast_buffers`", category=FutureWarning)
        return DistributedDataParallel(
            learner,
            device_ids=[process.device] if on_gpu else None,
            broadcast_buffers=False,  # queues and teacher statistics are equal by construction
            gradient_as_bucket_view=True,
        )
