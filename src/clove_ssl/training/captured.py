"""The passes of a step as CUDA graphs: recorded once, replayed with every new batch.

A small network leaves a GPU waiting for the host, which starts some thousand kernels per step. A
graph starts all of them at once. There are two for a step, its forward and its backward pass: the
check of the loss is read between them as without graphs, and the optimizer, whose learning rate
changes, runs after them while the backward pass is still going.

The kernels are those of a step that is not captured, in the same order, so a run that is resumed,
whose first steps are not captured, goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from clove_ssl.config.choice import Choice
from clove_ssl.errors import UserError
from clove_ssl.layers.captured import Recorder
from clove_ssl.layers.transfers import map_tensors, tensors_of
from clove_ssl.methods.base import Learner, Progress, StepOutput
from clove_ssl.methods.compiled import Capturable
from clove_ssl.training.numerics import Precision
from clove_ssl.views.batch import ViewBatch

STEPS_BEFORE = 3  # until then libraries choose their kernels and take their workspaces


@dataclass(frozen=True)
class Recording:
    """One kind of step: where its batch is put, and what appears where when it has run."""

    batch: ViewBatch
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    output: StepOutput
    gradients: list[tuple[nn.Parameter, Tensor]]
    left: list[list[Tensor]]  # for ``after_step``


class CapturedPasses:
    """Runs the passes of micro-batches, at first kernel by kernel, then as graphs.

    The gradients of the first micro-batch of a step have a place of their own, to which the graphs
    of the others add.

    Args:
        learner: Says what its steps have in common.
        precision: That of the forward pass.
        device: A GPU.
        micro_batches: Of a step.
    """

    def __init__(
        self,
        learner: Learner,
        precision: Precision,
        device: torch.device,
        *,
        micro_batches: int = 1,
    ) -> None:
        assert isinstance(learner, Capturable), "the caller has asked why_not_captured"
        self._learner = learner
        self._steps_of: Capturable = learner
        self._precision = precision
        self._micro_batches = micro_batches
        self._recorder = Recorder(device)
        self._recordings: dict[Hashable, Recording] = {}
        self._met: set[Hashable] = set()
        self._begun = 0  # steps
        self._replays = False  # the first micro-batch of this step was replayed

    def own_stream(self) -> AbstractContextManager[None]:
        """All work of a run belongs inside."""
        return self._recorder.own_stream()

    def forget(self) -> None:
        """Record anew, in other memory, since batches of other sizes will come."""
        self._recordings.clear()
        self._met.clear()
        self._begun = 0
        # The memory of graphs that are gone cannot be that of new ones.
        self._recorder = self._recorder.beside()

    def covers(self, batch: ViewBatch, progress: Progress, *, number: int = 0) -> bool:
        """Whether the micro-batch of this number is replayed; asked once for each."""
        kind = self._kind(progress, number)
        # A kind that is met for the first time may still make tensors that last, such as a gradient
        # or a momentum, which must not come from the memory of a graph.
        known = kind in self._met and self._begun >= STEPS_BEFORE
        self._met.add(kind)
        if number == 0:
            self._begun += 1
            self._replays = True
        # Graphs of later micro-batches add to the gradients of a first one that was replayed.
        self._replays = self._replays and known and self._has_room_for(batch, kind, progress)
        return self._replays

    def run(
        self,
        batch: ViewBatch,
        progress: Progress,
        *,
        check: Callable[[Tensor], None],
        number: int = 0,
    ) -> StepOutput:
        """Both passes of a micro-batch; ``check`` gets the loss before the second is queued."""
        recording = self._recordings[self._kind(progress, number)]
        # What Python decides anew in every step (momentum of the teacher, orders of a shuffle) is
        # written into buffers here, which the graphs read.
        self._learner.before_forward(progress)
        _copy(batch, recording.batch)
        # A replay reads and writes the addresses of the recording, whatever Python calls them by
        # now.
        recording.forward.replay()
        check(recording.output.loss)
        recording.backward.replay()
        for parameter, gradient in recording.gradients:
            # The optimizer's ``zero_grad`` has taken the gradients away; they lie where they always
            # do.
            parameter.grad = gradient
        for mine, kept in zip(self._steps_of.left_by_forward(), recording.left, strict=True):
            # Python that filled these lists does not run in a replay.
            mine += [self._lasting(tensor) for tensor in kept]
        return replace(
            recording.output,
            loss=self._lasting(recording.output.loss),
            metrics={
                name: self._lasting(value) for name, value in recording.output.metrics.items()
            },
        )

    def _has_room_for(self, batch: ViewBatch, kind: Hashable, progress: Progress) -> bool:
        """Whether a batch fits into the recording of its kind, which is made if there is none."""
        if kind not in self._recordings:
            self._recordings[kind] = self._record(batch, progress)
        return _shapes(self._recordings[kind].batch) == _shapes(batch)

    def _kind(self, progress: Progress, number: int) -> Hashable:
        return self._steps_of.step_kind(progress), number > 0, progress.closes_step

    def _lasting(self, tensor: Tensor) -> Tensor:
        """A result as it is now, if the next micro-batch would write over it."""
        return tensor.clone() if self._micro_batches > 1 else tensor

    def _record(self, batch: ViewBatch, progress: Progress) -> Recording:
        """Record a micro-batch of a new kind; nothing of it is computed yet."""
        place = _place_for(batch)
        # The forward pass must not prepare once more: ``run`` does it before every replay.
        progress = replace(progress, prepared=True)
        before = [list(tensors) for tensors in self._steps_of.left_by_forward()]
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self._recorder.recorded(forward), self._precision.autocast():
            output: StepOutput = self._learner(place, progress)
        with self._recorder.recorded(backward):
            (output.loss / self._micro_batches).backward()  # type: ignore[no-untyped-call]
        gradients = [(p, p.grad) for p in self._learner.parameters() if p.grad is not None]
        left = []
        for tensors, earlier in zip(self._steps_of.left_by_forward(), before, strict=True):
            left.append(tensors[len(earlier) :])
            # What recording left are places without values yet; nobody may take them for keys of a
            # step.
            tensors[:] = earlier
        output = replace(output, loss=output.loss.detach())
        return Recording(place, forward, backward, output, gradients, left)


def _place_for(batch: ViewBatch) -> ViewBatch:
    """Room for batches like this one, laid out alike: views that lie side by side stay so."""
    device = batch.views[0].pixels.device
    storages: dict[int, torch.UntypedStorage] = {}

    def twin(tensor: Tensor) -> Tensor:
        if tensor.device != device:
            return tensor.to(device)
        storage = tensor.untyped_storage()
        # Views may be slices of one tensor. A copy for each would lie elsewhere, and code that
        # joins neighbours without copying would be recorded differently.
        mine = storages.setdefault(storage.data_ptr(), storage.clone())  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        return empty.set_(mine, tensor.storage_offset(), tensor.shape, tensor.stride())

    return map_tensors(batch, twin)


def _copy(batch: ViewBatch, place: ViewBatch) -> None:
    """Put a batch where the graphs look for it."""
    for mine, new in zip(tensors_of(place), tensors_of(batch), strict=True):
        # Queued on this stream, behind the last replay: nothing is overwritten while it is read.
        mine.copy_(new, non_blocking=True)


def _shapes(batch: ViewBatch) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors_of(batch)]


def why_not_captured(learner: object) -> str:
    """Why the steps of a learner cannot be captured; empty if they can."""
    if not isinstance(learner, Capturable):
        return "the method does not say that every step runs the same kernels"
    return learner.why_not_captured()


def decide_capture(
    asked: Literal["auto", "always", "never"],
    obstacles: Mapping[str, bool],
    *,
    reason: str,
    costs: str = "",
) -> Choice[bool]:
    """Whether steps are captured: wherever they can be and nothing speaks against it.

    Args:
        asked: What the user says.
        obstacles: By what each is called, whether it is there.
        reason: For capturing.
        costs: Against it, unless the user wants it always.
    """
    if asked == "never":
        return Choice(False, "as asked")
    found = [obstacle for obstacle, applies in obstacles.items() if applies]
    if not found and costs and asked == "auto":
        return Choice(False, costs)
    if not found:
        return Choice(True, reason)
    if asked == "always":
        raise UserError(
            f"--capture always cannot be done here: {found[0]}. Leave it out to let such runs "
            "start their kernels one by one."
        )
    return Choice(False, found[0])
