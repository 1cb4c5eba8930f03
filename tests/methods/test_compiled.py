"""What a method says goes through its networks is what does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders.batches.compiling import method_and_batch
from builders.runs.method_runs import TAUGHT
from torch import Tensor

from clove_ssl.methods.base import Progress
from clove_ssl.methods.teacher_student import TeacherStudentMethod


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", TAUGHT)
def test_both_networks_get_what_the_method_says(name: str, prepared: bool, tmp_path: Path) -> None:
    method, batch = method_and_batch(name, tmp_path)
    assert isinstance(method, TeacherStudentMethod)
    if prepared:
        method.before_compilation()
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    for network, images in zip(method.encoders(), seen, strict=True):
        network.register_forward_pre_hook(lambda _, inputs, to=images: to.append(inputs[0]))
    method(batch, Progress(0, 1))
    for found, said in zip(seen, method.encoder_inputs(batch), strict=True):
        assert [each.shape for each in found] == [each.shape for each in said]
    for found, said in zip(seen[0], method.encoder_inputs(batch).student, strict=True):
        assert torch.equal(found, said)
