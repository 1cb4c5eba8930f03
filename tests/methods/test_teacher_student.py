"""The moving-average teacher."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clove_ssl.methods.teacher_student import Teacher


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


def moved(student: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter))
    return student


def test_starts_as_a_frozen_copy_with_memory_of_its_own() -> None:
    student = network()
    teacher = Teacher(student)
    before = [p.clone() for p in teacher.parameters()]
    moved(student)
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.parameters(), strict=True))
    assert not any(p.requires_grad for p in teacher.parameters())


def test_an_update_is_a_weighted_mean_in_place() -> None:
    student = network()
    teacher = Teacher(student)
    addresses = [p.data_ptr() for p in teacher.parameters()]
    old = [p.clone() for p in teacher.parameters()]
    moved(student)
    teacher.update(student, 0.9)
    for was, now, theirs in zip(old, teacher.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(now, 0.9 * was + 0.1 * theirs.detach())
    assert [p.data_ptr() for p in teacher.parameters()] == addresses


@pytest.mark.parametrize(("momentum", "follows"), [(1.0, False), (0.0, True)])
def test_the_ends_of_the_momentum_are_exact(momentum: float, follows: bool) -> None:
    student = network()
    teacher = Teacher(student)
    old = [p.clone() for p in teacher.parameters()]
    moved(student)
    teacher.update(student, momentum)
    expected = student.parameters() if follows else old
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), expected, strict=True))


def test_a_tiny_step_is_not_rounded_away() -> None:
    student = nn.Linear(4, 4)
    teacher = Teacher(student)
    nn.init.ones_(teacher.module.weight)
    nn.init.zeros_(student.weight)
    teacher.update(student, 0.9999)
    assert (teacher.module.weight < 1).all()


def test_forward_makes_no_graph() -> None:
    out = Teacher(network())(torch.randn(2, 3, 4, 4, requires_grad=True))
    assert not out.requires_grad


def test_in_train_mode_statistics_are_the_teachers_own() -> None:
    student = network()
    teacher = Teacher(student)
    student(torch.randn(8, 3, 4, 4) + 5)
    teacher.update(student, 0.5)
    norm = teacher.module[1]
    assert torch.equal(norm.running_mean, torch.zeros(4))
    teacher(torch.randn(8, 3, 4, 4))
    assert not torch.equal(norm.running_mean, torch.zeros(4))
    assert norm.num_batches_tracked == 1


def test_in_eval_mode_statistics_are_averaged_from_the_students_and_counters_are_not() -> None:
    student = network()
    teacher = Teacher(student, mode="eval").train()
    student(torch.randn(8, 3, 4, 4) + 5)
    teacher.update(student, 0.5)
    torch.testing.assert_close(teacher.module[1].running_mean, 0.5 * student[1].running_mean)
    assert teacher.module[1].num_batches_tracked == 0
    before = teacher.module[1].running_mean.clone()
    teacher(torch.randn(8, 3, 4, 4))
    assert torch.equal(teacher.module[1].running_mean, before)


def test_the_eval_mode_survives_train_calls_on_a_parent() -> None:
    parent = nn.ModuleList([Teacher(network(), mode="eval"), Teacher(network())])
    parent.train()
    assert [child.module.training for child in parent] == [False, True]
    parent.eval()
    assert [child.module.training for child in parent] == [False, False]


def test_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        Teacher(network()).update(nn.Conv2d(3, 4, 1), 0.9)
