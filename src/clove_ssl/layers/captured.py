"""Parts of a step as CUDA graphs: recorded once for every shape, replayed with new contents.

A small network leaves a GPU waiting for the host, which starts some thousand kernels per step. A
graph starts all of them at once. It keeps the addresses of everything it reads and writes, so it
is for one shape; what comes in is copied to where it looks, and what comes out is written over when
it runs the next time.

Graphs share their memory, also that of what comes in and out: another one may use it afterwards. So
a forward pass is followed by its backward pass, and by whoever needs the gradients, before another
forward pass begins. A part of a step that runs between both passes of another part has memory of
its own.
"""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SEEN_BEFORE = 3
"""Passes of a kind that run kernel by kernel: libraries choose their kernels in them, and a kind
that does not come again would not repay its recording, which takes as long as some steps."""
MOST_KINDS = 16

Function = Callable[..., tuple[Tensor, ...]]


class Recorder:
    """Makes CUDA graphs, on a stream of its own and in memory that they share."""

    def __init__(self, device: torch.device) -> None:
        # The stream of warm-up, recording and replay must be one: gradients remember the stream
        # they were first made on, and autograd would wait for it inside the graph.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # One pool for all graphs. They never run at the same time, and the backward pass reads what
        # the forward pass left in it.
        self._memory = torch.cuda.graph_pool_handle()

    def beside(self) -> Recorder:
        """One for graphs that run between both passes of this one's, on the same stream."""
        other = copy.copy(self)
        other._memory = torch.cuda.graph_pool_handle()
        return other

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """All work of a run belongs inside: graphs cannot be recorded on torch's first stream."""
        before = torch.cuda.current_stream()
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            yield
        before.wait_stream(self._stream)

    @contextmanager
    def recorded(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """What is queued inside becomes part of a graph, and is not run."""
        # Another thread pins batches meanwhile, which only this mode of the check allows.
        mode = "thread_local"
        with (
            no_garbage_collected(),
            torch.cuda.graph(
                graph, pool=self._memory, stream=self._stream, capture_error_mode=mode
            ),
        ):
            yield

    @contextmanager
    def memory(self) -> Iterator[None]:
        """What this thread makes inside lies where graphs write, so only until one of them runs.

        There must be a graph, whose memory it is.
        """
        # A ``MemPool`` of its own would have to outlive all graphs, or torch aborts the process,
        # and Python collects what refers to each other in any order. Torch asks for its id alone.
        with torch.cuda.use_mem_pool(SimpleNamespace(id=self._memory)):  # type: ignore[arg-type]
            yield


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Python frees only what nobody refers to; cycles wait until afterwards."""
    # Page-locked memory that was used on a stream is given back with an event on that stream. One
    # that becomes part of a graph can never be asked whether it is over, and torch asks whenever it
    # needs such memory: somebody else would be told of an invalid argument.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Sightings:
    """Which kinds of passes come so often that they are recorded."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()
        self._left = MOST_KINDS

    def is_due(self, kind: Hashable) -> bool:
        """Whether a pass should be recorded before it is made; asked once for each."""
        self._seen[kind] += 1
        return self._seen[kind] > SEEN_BEFORE and self._left > 0

    def count_recorded(self) -> None:
        """One kind more was recorded."""
        self._left -= 1

    def give_up(self) -> None:
        """Record nothing any more."""
        self._left = 0


@dataclass(frozen=True)
class Recording:
    """Both passes of one kind: where contents are put, and what appears where.

    The tensors are :func:`borrowed`, and so are for this kind only while it is in use.
    """

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    learned: Sequence[bool]  # which outputs have a gradient
    outer: Sequence[Tensor]  # the gradients of those
    learners: Sequence[int | nn.Parameter]  # inputs by number, and parameters
    inner: Sequence[Tensor]  # the gradients of those


class CapturedFunction:
    """A function of tensors and parameters, at first kernel by kernel, then as graphs.

    Results are the same bit for bit: the kernels are, and gradients arrive in the same layout. They
    are valid until the next call.

    Args:
        function: Takes tensors, and asks neither the host nor the device for anything but their
            contents.
        parameters: All that it may learn.
        recorder: Makes the graphs.
        accumulates: Whether gradients of several calls are added up.
        warn: Told why something could not be recorded; it runs as before then.
        read_in_place: How many inputs, the first ones, are read where they lie instead of from a
            copy. They should come out of another graph, which leaves them where they were before.
    """

    def __init__(
        self,
        function: Function,
        parameters: Sequence[nn.Parameter],
        recorder: Recorder,
        *,
        accumulates: bool,
        warn: Callable[[str], None],
        read_in_place: int = 0,
    ) -> None:
        self._function = function
        self._parameters = [each for each in parameters if each.requires_grad]
        self._recorder = recorder
        self._accumulates = accumulates
        self._warn = warn
        self._read_in_place = read_in_place
        self._sightings = Sightings()
        self._recordings: dict[Hashable, Recording] = {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the function gives."""
        kernels = kind_of(inputs)
        kind = (kernels, *(each.data_ptr() for each in inputs[: self._read_in_place]))
        if kind not in self._recordings and self._sightings.is_due(kernels):
            self._try_to_record(kind, inputs)
        recording = self._recordings.get(kind)
        if recording is None:
            return self._pass_by_kernels(inputs)
        _put(inputs, recording.inputs)
        learners = (inputs[each] if isinstance(each, int) else each for each in recording.learners)
        replayed: tuple[Tensor, ...] = _Replay.apply(recording, self._accumulates, *learners)
        return replayed

    def _pass_by_kernels(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A pass that is not recorded."""
        # Its maps are gone when the next pass begins, so graphs lend their memory, if there is one.
        lend = self._recorder.memory if self._recordings else nullcontext
        options = (self._function, lend, self._accumulates, len(inputs))
        outputs: tuple[Tensor, ...] = _KernelByKernel.apply(*options, *inputs, *self._parameters)
        return outputs

    @property
    def kinds(self) -> int:
        """How many kinds of passes are replayed."""
        return len(self._recordings)

    def _try_to_record(self, kind: Hashable, inputs: Sequence[Tensor]) -> None:
        try:
            recording = self._record(inputs)
        except Exception as error:  # whatever it is, the kernels can still be started one by one
            self._sightings.give_up()
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            self._warn(
                f"a part of the step could not be captured, and runs kernel by kernel: {reason[0]} "
                "Nothing else changes; --capture never does not try."
            )
            return
        self._recordings[kind] = recording
        self._sightings.count_recorded()

    def _record(self, inputs: Sequence[Tensor]) -> Recording:
        """Record both passes; nothing of them is computed, so no statistics move."""
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        still, moving = inputs[: self._read_in_place], inputs[self._read_in_place :]
        with _casts_of_its_own(), self._recorder.recorded(forward):
            # Inside, so that places for contents lie in the memory of graphs as well.
            places = [*map(Tensor.detach, still), *map(torch.empty_like, moving)]
            for place, each in zip(places, inputs, strict=True):
                place.requires_grad_(each.requires_grad)
            outputs = self._function(*places)
            learned = [each for each in outputs if each.requires_grad]
            outer = [torch.empty_like(each) for each in learned]
        taught = [number for number, place in enumerate(places) if place.requires_grad]
        learners: list[int | nn.Parameter] = [*taught, *self._parameters]
        leaves = [*(places[number] for number in taught), *self._parameters]
        # As in a step, where the backward pass begins behind the context of the forward pass.
        with (
            torch.autocast(places[0].device.type, enabled=False),
            self._recorder.recorded(backward),
        ):
            found = torch.autograd.grad(learned, leaves, outer, allow_unused=True)
        pairs = zip(learners, found, strict=True)
        reached = [(learner, gradient) for learner, gradient in pairs if gradient is not None]
        return Recording(
            forward=forward,
            backward=backward,
            inputs=[borrowed(each) for each in places],
            outputs=[borrowed(each) for each in outputs],
            learned=[each.requires_grad for each in outputs],
            outer=[borrowed(each) for each in outer],
            learners=[learner for learner, _ in reached],
            inner=[borrowed(gradient) for _, gradient in reached],
        )


def _put(contents: Sequence[Tensor], places: Sequence[Tensor]) -> None:
    """Copy tensors to where a graph reads them, but for those that lie there already."""
    pairs = zip(contents, places, strict=True)
    away = [(each.detach(), place) for each, place in pairs if each.data_ptr() != place.data_ptr()]
    if away:
        torch._foreach_copy_([place for _, place in away], [each for each, _ in away])


class _Bytes:
    """Memory of a GPU, as torch and others tell each other of it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": "|u1",
            "version": 2,
        }


def borrowed(tensor: Tensor) -> Tensor:
    """The same place with the same layout, which is free for others when ``tensor`` is gone.

    Memory of a graph stays mapped for as long as there is the graph. What it holds for one kind of
    passes may take 1.5 GB, and there are many kinds, only one of which is in use at a time.
    """
    if not tensor.is_cuda or tensor.numel() == 0:
        return tensor.detach()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((length - 1) * step for length, step in steps)
    place = _Bytes(tensor.data_ptr(), elements * tensor.element_size())
    plain = torch.as_tensor(place, device=tensor.device).view(tensor.dtype)
    return plain.as_strided(tensor.shape, tensor.stride())


def kind_of(inputs: Sequence[Tensor]) -> Hashable:
    """What has to be equal for two passes to run the same kernels."""
    device = inputs[0].device.type
    casts = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return casts, *((each.shape, each.stride(), each.dtype, each.requires_grad) for each in inputs)


@contextmanager
def _casts_of_its_own() -> Iterator[None]:
    """Weights that autocast keeps in half precision are made inside, and not used outside.

    Those of a graph are made anew by every replay; those from outside would stay as they are.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


class _KernelByKernel(torch.autograd.Function):
    """Both passes of a function as one operation, as a replay is one.

    Gradients come all at once, and maps of both passes may lie in memory that is lent.
    """

    @staticmethod
    def forward(
        ctx: Any,
        function: Function,
        lend: Callable[[], AbstractContextManager[None]],
        accumulates: bool,
        inputs: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        places = [each.detach().requires_grad_(each.requires_grad) for each in tensors[:inputs]]
        with lend(), torch.enable_grad():
            outputs = function(*places)
        ctx.lend, ctx.accumulates = lend, accumulates
        ctx.leaves = [*places, *tensors[inputs:]]
        ctx.learned = [each for each in outputs if each.requires_grad]
        handed_on = tuple(each.detach() for each in outputs)
        pairs = zip(outputs, handed_on, strict=True)
        ctx.is_learned = [each.requires_grad for each in outputs]
        ctx.mark_non_differentiable(*(mine for each, mine in pairs if not each.requires_grad))
        return handed_on

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        leaves, learned = ctx.leaves, ctx.learned
        del ctx.leaves, ctx.learned  # or their memory is kept for as long as the loss
        pairs = zip(gradients, ctx.is_learned, strict=True)
        came = [gradient for gradient, is_learned in pairs if is_learned]
        taught = [each for each in leaves if each.requires_grad]
        with ctx.lend():
            outer = [in_layout_of(each, like) for each, like in zip(came, learned, strict=True)]
            found = iter(torch.autograd.grad(learned, taught, outer, allow_unused=True))
        reached = [next(found) if each.requires_grad else None for each in leaves]
        lasting = [_lasting(each, clones=ctx.accumulates) for each in reached]
        return None, None, None, None, *lasting


def in_layout_of(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient in the layout that it has in a replay, on which some kernels depend."""
    if gradient.stride() == like.stride():
        return gradient
    return torch.empty_like(like).copy_(gradient)


def _lasting(gradient: Tensor | None, *, clones: bool) -> Tensor | None:
    """A gradient that is valid until the next pass, or after it where more will be added to it."""
    return gradient.clone() if clones and gradient is not None else gradient


class _Replay(torch.autograd.Function):
    """Both passes of a recording, as one operation."""

    @staticmethod
    def forward(
        ctx: Any, recording: Recording, accumulates: bool, *learners: Tensor
    ) -> tuple[Tensor, ...]:
        recording.forward.replay()
        outputs = tuple(each.detach() for each in recording.outputs)
        pairs = zip(outputs, recording.learned, strict=True)
        ctx.mark_non_differentiable(*(each for each, is_learned in pairs if not is_learned))
        ctx.recording, ctx.accumulates = recording, accumulates
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        recording: Recording = ctx.recording
        pairs = zip(gradients, recording.learned, strict=True)
        came = [gradient for gradient, is_learned in pairs if is_learned]
        torch._foreach_copy_(list(recording.outer), came)
        recording.backward.replay()
        # An alias of its own may become the gradient of a parameter without a copy.
        aliases = (each.detach() for each in recording.inner)
        return None, None, *(_lasting(each, clones=ctx.accumulates) for each in aliases)
