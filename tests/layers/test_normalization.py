"""Unit vectors, and the conversion of batch norms; tests/distributed has the rest."""

from __future__ import annotations

import copy

import pytest
import torch
from builders.tasks.varied_norms import varied_norm
from torch import nn

from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import (
    SynchronizedBatchNorm2d,
    normalize_counted,
    synchronize_norms,
    unit_vectors,
)
from clove_ssl.methods.teacher_student import Teacher


def small_network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU()).double()


def test_vectors_get_length_one_along_the_dimension() -> None:
    vectors = torch.randn(3, 5, 2, dtype=torch.float64)
    lengths = unit_vectors(vectors, dim=1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("value", [0.0, 1e-6, 60000.0])
def test_half_precision_vectors_are_scaled_in_single_precision(value: float) -> None:
    unit = unit_vectors(torch.full((4,), value, dtype=torch.float16))
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit, torch.full((4,), 0.5 if value else 0.0))


def test_without_other_processes_the_layer_is_plain_batch_norm() -> None:
    maps = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    plain = small_network()
    shared = synchronize_norms(small_network(), "cpu")
    assert torch.equal(shared(maps), plain(maps))
    assert torch.equal(shared[1].running_var, plain[1].running_var)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_conversion_keeps_parameters_buffers_modes_and_names(device_type: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4))
    network[1].eval()
    before = {name: id(value) for name, value in network.named_parameters()}
    buffers = {name: id(value) for name, value in network.named_buffers()}
    converted = synchronize_norms(network, device_type)
    assert converted is network
    assert {name: id(value) for name, value in network.named_parameters()} == before
    assert {name: id(value) for name, value in network.named_buffers()} == buffers
    kind = nn.SyncBatchNorm if device_type == "cuda" else SynchronizedBatchNorm2d
    assert [type(layer) for layer in network[1:]] == [kind, kind]
    assert [layer.training for layer in network[1:]] == [False, True]
    assert network[1].weight is None


def test_a_teacher_inside_the_module_is_converted_and_can_still_follow() -> None:
    student = small_network()
    method = nn.ModuleDict({"student": student, "teacher": Teacher(student)})
    synchronize_norms(method, "cpu")
    teacher = method["teacher"]
    assert type(teacher.module[1]) is SynchronizedBatchNorm2d
    nn.init.constant_(student[1].weight, 3.0)
    teacher.update(student, 0.5)
    assert torch.equal(teacher.module[1].weight, torch.full((6,), 2.0, dtype=torch.float64))
    assert not any(p.requires_grad for p in teacher.parameters())


def test_converting_twice_changes_nothing() -> None:
    network = synchronize_norms(small_network(), "cpu")
    layers = list(network)
    assert list(synchronize_norms(network, "cpu")) == layers


def test_a_converted_network_can_be_copied() -> None:
    network = synchronize_norms(small_network(), "cpu")
    twin = copy.deepcopy(network)
    assert twin[1].weight is not network[1].weight
    assert torch.equal(twin[1].weight, network[1].weight)


def test_layers_that_do_more_than_batch_norm_are_refused() -> None:
    class NormAndActivation(nn.BatchNorm2d):
        pass

    with pytest.raises(UserError, match="--no-sync-norm"):
        synchronize_norms(nn.Sequential(NormAndActivation(4)), "cuda")


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({}, True),
        ({}, False),
        ({"affine": False}, True),
        ({"track_running_stats": False}, True),
    ],
)
def test_rows_that_do_not_count_change_nothing(options: dict[str, bool], training: bool) -> None:
    plain, counting = (varied_norm(nn.BatchNorm1d, **options).train(training) for _ in range(2))
    rows, probe = 3 * torch.randn(2, 7, 4, dtype=torch.float64) + 100
    counted = torch.tensor([1, 1, 0, 1, 0, 1, 0], dtype=torch.bool)
    few, all_rows = rows[counted].requires_grad_(), rows.clone().requires_grad_()
    expected, found = plain(few), normalize_counted(counting, all_rows, counted)
    torch.testing.assert_close(found[counted], expected)
    (expected * probe[counted]).sum().backward()
    (found * probe * counted[:, None]).sum().backward()
    assert all_rows.grad is not None
    torch.testing.assert_close(all_rows.grad[counted], few.grad)
    assert not all_rows.grad[~counted].any()
    for value, other in zip(counting.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(value, other)
    for mine, theirs in zip(counting.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_gradients_of_counted_rows_are_right() -> None:
    rows = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    counted = torch.tensor([1, 0, 1, 1, 0], dtype=torch.bool)
    norm = varied_norm(nn.BatchNorm1d, track_running_stats=False)
    assert torch.autograd.gradcheck(lambda rows: normalize_counted(norm, rows, counted), rows)


@pytest.mark.parametrize("number", [0, 1])
def test_few_counted_rows_do_not_spoil_statistics(number: int) -> None:
    norm = varied_norm(nn.BatchNorm1d)
    rows = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    before = norm.running_mean.clone(), norm.running_var.clone()
    normalized = normalize_counted(norm, rows, torch.arange(3) < number)
    normalized[:number].sum().backward()
    assert normalized.isfinite().all()
    assert rows.grad is not None
    assert not rows.grad.any()  # a single row always ends at the bias
    mean, variance = (rows[0], torch.zeros(4).double()) if number else before
    torch.testing.assert_close(norm.running_mean, before[0].lerp(mean.detach(), 0.1))
    torch.testing.assert_close(norm.running_var, before[1].lerp(variance, 0.1))
