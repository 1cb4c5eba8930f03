"""Number formats: which one a run uses, why, and how a step is scaled for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

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
