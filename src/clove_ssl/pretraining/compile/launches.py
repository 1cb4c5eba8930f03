"""Which kernels of ours a run will launch, seen without a GPU.

Views of some made-up photos are rendered, and one step is taken on tensors that have shapes but no
values; the optimizer gets others. Launches are noted instead of made. All of this is for a process
of its own: what it puts in the place of torch's and Triton's parts is there for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clove_ssl.backbones.build import build_backbone, fuse_norms, outlined
from clove_ssl.config.pretraining import OptimizerConfig, PretrainConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.layers.transfers import map_tensors
from clove_ssl.methods.base import Method, Progress
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.training.numerics import Precision
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import draw_views
from clove_ssl.views.draw.relations import rows_of_numbers
from clove_ssl.views.render.gpu import render_batch

_PHOTOS = 16  # so many that some view of each size is blurred
_SIDE = 64  # pixels; kernels are the same for photos of all sizes


@dataclass(frozen=True)
class Launch:
    """A kernel, and what it is compiled for."""

    kernel: Any
    arguments: Sequence[Any]
    options: Mapping[str, Any]

    def compile(self) -> None:
        """Leave the kernel in Triton's cache, and the code in C by which it is launched."""
        from triton.backends.nvidia.driver import CudaLauncher

        compiled = self.kernel.run(*self.arguments, grid=(1,), warmup=True, **self.options)
        CudaLauncher(compiled.src, compiled.metadata)


class _Pointer:
    """All that a kernel is compiled for of a tensor: its type, and whether it begins at 16 bytes.

    New memory always does, so the place in it says that.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._place = int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        return self._place

    @staticmethod
    def ptr_range() -> int:
        return 0


class _Driver:
    """In the place of Triton's driver: a GPU of which nothing but its kind is known."""

    def __init__(self, capability: tuple[int, int]) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_driver() -> None:
    """Leave Triton's own code in C in its cache."""
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()


def pretend_gpu(capability: tuple[int, int]) -> None:
    """Have kernels compiled for such a GPU from now on, though this process must not touch it."""
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime import driver

    driver.set_active(_Driver(capability))
    torch.cuda.get_device_capability = lambda device=None: capability
    # Tensors without values on a GPU would need one in their backward pass. So they are on the
    # CPU, and say otherwise to all who ask whether there are kernels for them.
    FakeTensor.is_cuda = True


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """Meanwhile kernels are not launched; those that Triton tells apart are in the list."""
    from triton import knobs
    from triton.runtime.jit import JITFunction

    launches: dict[tuple[str, str], Launch] = {}
    found: list[Launch] = []
    really = JITFunction.run

    def note(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        stand_ins = [_Pointer(a) if isinstance(a, Tensor) else a for a in arguments]
        launch = Launch(kernel, stand_ins, options)
        # Asked here, in the order of a run: Triton 3.6 gives kernels that call the same function
        # other names in its cache when they are asked for in another order.
        code = kernel.cache_key

        def skip(*, key: str, **_: Any) -> bool:
            if launches.setdefault((code, key), launch) is launch:
                found.append(launch)
            return True  # do not compile it

        knobs.runtime.jit_cache_hook = skip
        really(kernel, *stand_ins, grid=grid, warmup=True, **options)

    before, JITFunction.run = knobs.runtime.jit_cache_hook, note
    try:
        yield found
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook = really, before


def render_unseen(specs: Sequence[ViewSpec], dtype: torch.dtype) -> None:
    """Launch the kernels that render views."""
    photos = [torch.zeros(3, _SIDE, _SIDE, dtype=torch.uint8) for _ in range(_PHOTOS)]
    rows = (_PHOTOS, rows_of_numbers(specs), UNIFORMS_PER_VIEW)
    uniforms = np.random.default_rng(0).random(rows)
    sides = np.full(_PHOTOS, _SIDE)
    parameters = draw_views(uniforms, sides, sides, specs)
    render_batch(photos, parameters, specs, dtype=dtype, backend="triton")


def step_unseen(method: Method, images: int, precision: Precision, *, dtype: torch.dtype) -> None:
    """Launch the kernels of the first step: both passes, and what is logged of it.

    Args:
        method: As :func:`outline` gives it; it has no memory afterwards either.
        images: Of a pass.
        precision: The run's.
        dtype: Of the pixels.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    precision.prepare()  # kernels that multiply ask for it
    with FakeTensorMode(allow_non_fake_inputs=True):
        # torch puts no tensor of this kind into a parameter that is there already.
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        method.to_empty(device="cpu")
        batch = synthetic_batch(method.views(), images, device=torch.device("cpu"), dtype=dtype)
        batch = map_tensors(batch, _as_rendered)
        with _cast(precision):
            output = method(batch, Progress(0, 2))
        output.loss.backward()
        method.health(output)


def update_unseen(config: OptimizerConfig) -> None:
    """Launch the kernels of an optimizer that has some."""
    if config.name != "lars":
        return
    from clove_ssl.lars_kernels import TensorList

    one = [torch.zeros(1)]
    buffers = one if config.momentum else []
    for layerwise in (True, False):
        TensorList().update(
            one, one, buffers, layerwise=layerwise, lr=0.0, momentum=config.momentum,
            weight_decay=config.weight_decay, trust=config.trust, eps=0.0,
        )  # fmt: skip


def outline(config: PretrainConfig) -> Method:
    """The method as a run has it on a GPU, without memory."""
    backbone = build_backbone(config.backbone).to("meta")
    with outlined():
        method = config.method.build(backbone)
    method.to(memory_format=torch.channels_last)
    fuse_norms(method)
    return method.train()


def _as_rendered(tensor: Tensor) -> Tensor:
    is_map = tensor.ndim == 4
    return tensor.contiguous(memory_format=torch.channels_last) if is_map else tensor


@contextmanager
def _cast(precision: Precision) -> Iterator[None]:
    """Autocast for tensors on the CPU, and for those who ask about the GPU's.

    Not torch's own context, which looks for a GPU.
    """
    halves = precision.name != "fp32"
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, halves)
        torch.set_autocast_dtype(device, precision.dtype if halves else torch.bfloat16)
    try:
        yield
    finally:
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()
