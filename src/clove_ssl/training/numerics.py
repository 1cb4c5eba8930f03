"""How a run computes: number formats, random states, and kernels that repeat themselves.

Which format it uses, why, and how a step is scaled for it; and what makes it repeat itself bit
for bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from clove_ssl.errors import UserError

Name = Literal["auto", "fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The format of the network; losses, teacher and optimizer stay in fp32."""

    name: str
    reason: str
    device_type: str

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.name]

    def values(self) -> dict[str, str]:
        """The choice as it stands in ``provenance.json``."""
        return {"value": self.name, "reason": self.reason}

    def prepare(self) -> None:
        """Let products in fp32 round their factors to 11 bits where the network has 8 itself."""
        # "high" is TF32, which tensor cores multiply much faster; beside a network in bf16 its 11
        # bits are enough.
        torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")

    def autocast(self) -> AbstractContextManager[object]:
        """Context in which the network runs."""
        return torch.autocast(self.device_type, self.dtype, enabled=self.name != "fp32")

    def scaler(self) -> torch.amp.GradScaler:
        """Gradient scaling, which only fp16 needs."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "fp16")


def choose_precision(name: Name, device: torch.device) -> Precision:
    """Resolve ``auto`` and refuse what the device cannot do."""
    if device.type == "cpu":
        if name in {"bf16", "fp16"}:
            raise UserError(
                f"--precision {name} needs a GPU; this run is on a CPU. Leave it out for fp32."
            )
        return Precision("fp32", "on a CPU", "cpu")
    if name != "auto":
        return Precision(name, "as asked", device.type)
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision("bf16", "the GPU supports it", device.type)
    return Precision("fp16", "the GPU has no bf16", device.type)


def start_repeatably(
    seed: int, device: torch.device, *, deterministic: bool, sizes_vary: bool = False
) -> None:
    """Seed torch, and on a GPU choose kernels that repeat themselves if asked to.

    Kernels of a CPU always do; torch's deterministic mode would only slow them down. Kernels are
    tried out for every new size of image, which pays off unless sizes vary.
    """
    torch.manual_seed(seed)
    if device.type != "cuda":
        return
    if deterministic:
        # cuBLAS reads this when its first handle is made and is not repeatable without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Warnings, not errors: an operation without a deterministic kernel would end a run for a bit.
    # By this name torch does not tell its compiler, which takes seconds to import; whoever compiles
    # does (``pretraining/compile/method.py``).
    torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    # New memory would be filled by a kernel of the current stream. nvJPEG waits for no stream, so
    # pictures that it had written already would be filled as well.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Trials time kernels, and another one may win next time, with other roundings.
    torch.backends.cudnn.benchmark = not (deterministic or sizes_vary)
    _allow_fused_attention(not deterministic)


@contextmanager
def without_trials(*, remembered_apart: bool = False) -> Iterator[None]:
    """Take the first kernel for a convolution instead of trying several out.

    cuDNN remembers what it took for a size. Where that is not to last, it is
    ``remembered_apart``: with the choices of its deterministic mode.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, remembered_apart or cudnn.deterministic
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def _allow_fused_attention(allowed: bool) -> None:
    """Fused kernels, whose backward passes add up in any order; plain products always remain."""
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    torch.backends.cuda.enable_flash_sdp(allowed)
    torch.backends.cuda.enable_mem_efficient_sdp(allowed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of torch's generators that a run on ``device`` uses."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue the generators where :func:`random_state` left them."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
