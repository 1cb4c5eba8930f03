"""Numbers of the host on the device, without a pause.

A plain copy from the host waits until the device has done all that was queued before it; one from
page-locked memory does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Numbers = Sequence[float] | Sequence[Sequence[float]]


def send(numbers: Numbers, device: torch.device, *, dtype: torch.dtype) -> Tensor:
    """The numbers as a tensor on ``device``."""
    here = torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)


def send_like(numbers: Numbers, like: Tensor) -> Tensor:
    """The numbers as a tensor with the device and the type of another one."""
    return send(numbers, like.device, dtype=like.dtype)


def send_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
