"""Numbers on their way between host and device, without a pause.

A plain copy waits until the device has done all that was queued before it; one from or to
page-locked memory does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

T = TypeVar("T")

Numbers = Sequence[float] | Sequence[Sequence[float]]


def send(numbers: Numbers, device: torch.device, *, dtype: torch.dtype) -> Tensor:
    """The numbers as a tensor on ``device``."""
    # Page-locked: a copy from ordinary memory waits for all that is queued.
    here = torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)


def send_like(numbers: Numbers, like: Tensor) -> Tensor:
    """The numbers as a tensor with the device and the type of another one."""
    return send(numbers, like.device, dtype=like.dtype)


def constant(numbers: tuple[float, ...], device: torch.device, *, dtype: torch.dtype) -> Tensor:
    """Numbers that never change, as a tensor that a GPU keeps from its first use on.

    A recorded graph must not send anything: it would read the host's memory again when it runs.
    """
    if device.type != "cuda" or torch.compiler.is_compiling():
        return send(numbers, device, dtype=dtype)
    return _kept_on_gpu(numbers, device, dtype)


@cache  # of any size: a graph may still read what would be forgotten
def _kept_on_gpu(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    # A thread of its own has ordinary memory, also where this one's is that of graphs, which would
    # write over it, and a stream on which nothing is waited for.
    with ThreadPoolExecutor(1) as other:
        return other.submit(torch.tensor, numbers, dtype=dtype, device=device).result()


def send_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def send_tables(tables: Sequence[npt.NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Tables of whole numbers on ``device``, which travel together."""
    flat = np.concatenate([table.ravel() for table in tables])
    there = send_tensor(torch.from_numpy(flat), device)
    parts = torch.split(there, [table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]


def pad_rows(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (N_b, ...) as one (B, N, ...) with zeros behind the shorter ones.

    It takes the host a few operations, where ``pad_sequence`` takes some for every tensor.
    """
    counts = [len(part) for part in parts]
    longest, total = max(counts), sum(counts)
    if longest == 0:
        return parts[0].new_zeros(len(parts), 0, *parts[0].shape[1:])
    ends = accumulate(counts)
    places = [
        [*range(end - count, end), *[total] * (longest - count)]
        for count, end in zip(counts, ends, strict=True)
    ]
    # One more row, of zeros, to which all places point that only fill up.
    joined = torch.cat([*parts, parts[0].new_zeros(1, *parts[0].shape[1:])])  # (total + 1, ...)
    return joined[send(places, joined.device, dtype=torch.int64)]


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """A value with ``change`` made to every tensor in it, deep in dataclasses and tuples, too."""
    return cast(T, _mapped(value, change))


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is tuple:
        return tuple(_mapped(each, change) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value))
        return replace(value, **{name: _mapped(getattr(value, name), change) for name in names})
    return value


def tensors_of(value: object) -> Iterator[Tensor]:
    """Every tensor in a value, deep in dataclasses, mappings, lists and tuples, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


class HostCopy:
    """A few whole numbers of the device on their way to the host.

    The copy begins at once. Work that is queued between it and :meth:`read` keeps
    the device busy while the host waits, and after that.
    """

    def __init__(self, numbers: Tensor) -> None:
        on_gpu = numbers.is_cuda
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=on_gpu)
        self._host.copy_(numbers.detach(), non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if on_gpu:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            # An event behind the copy alone: synchronizing the stream would wait for the backward
            # pass, too.
            self._copied.record()

    def read(self) -> list[int]:
        """The numbers; waits for the copy, not for the work queued after it."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers: list[int] = self._host.tolist()
        return numbers
