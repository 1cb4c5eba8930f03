"""The moving-average teacher, the same for every method that has one."""

from __future__ import annotations

import copy
from typing import Generic, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

Student = TypeVar("Student", bound=nn.Module)


class Teacher(nn.Module, Generic[Student]):
    """A frozen copy of ``student`` that follows it slowly.

    Call :meth:`update` once per *optimizer* step; a call in every forward pass
    would be several under gradient accumulation. Weights stay in fp32: in bf16
    a step of one ten-thousandth is rounded away.

    Args:
        student: The module to copy.
        mode: ``train``: batch norm uses the statistics of the teacher's own batch, and running
            statistics come from those; ``eval``: it uses running statistics, which are
            averaged from the student's along with the weights.
    """

    def __init__(self, student: Student, *, mode: Literal["train", "eval"] = "train") -> None:
        super().__init__()
        self.mode = mode
        self.module: Student = copy.deepcopy(student)
        self.module.requires_grad_(False)
        self.train(self.training)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The student's forward pass, without a graph."""
        features: Tensor = self.module(images)
        return features

    def train(self, mode: bool = True) -> Self:
        """Follow the surrounding module, unless the teacher is always in eval mode."""
        super().train(mode)
        self.module.train(mode and self.mode == "train")
        return self

    @torch.no_grad()
    def update(self, student: nn.Module, momentum: float) -> None:
        """theta_t <- momentum * theta_t + (1 - momentum) * theta_s, in place."""
        mine, theirs = self._averaged(self.module), self._averaged(student)
        if [tensor.shape for tensor in mine] != [tensor.shape for tensor in theirs]:
            raise ValueError("the student does not have the shape it had when it was copied")
        if mine:
            torch._foreach_lerp_(mine, theirs, 1.0 - momentum)

    def _averaged(self, module: nn.Module) -> list[Tensor]:
        """Weights and, for a teacher in eval mode, running statistics; never counters."""
        tensors = [parameter.detach() for parameter in module.parameters()]
        if self.mode == "eval":
            tensors += [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        return tensors
