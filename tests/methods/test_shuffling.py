"""Shuffled groups, the bank of keys, and the heads of contrastive methods."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clove_ssl.errors import UserError
from clove_ssl.methods.heads import ConvHead, MLPHead
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.shuffling import BatchOrders, batch_order, forward_shuffled


def orders_of(step: int) -> BatchOrders:
    orders = BatchOrders()
    orders.begin(step)
    return orders


def test_orders_of_later_steps_are_drawn_at_the_same_place() -> None:
    orders = orders_of(3)
    order = orders.of(8, torch.device("cpu"))
    assert torch.equal(order, batch_order(8, 3))
    orders.begin(4)
    assert torch.equal(order, batch_order(8, 4))


def test_rows_come_back_to_their_places() -> None:
    images = torch.arange(24.0).reshape(12, 2)
    doubled = forward_shuffled(lambda group: 2 * group, images, orders=orders_of(3), groups=4)
    assert torch.equal(doubled, 2 * images)


def test_groups_are_normalised_among_themselves() -> None:
    norm = nn.BatchNorm1d(3, affine=False)
    images = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    out = forward_shuffled(norm, images, orders=orders_of(5), groups=3)
    for members in batch_order(12, 5).chunk(3):
        expected = nn.BatchNorm1d(3, affine=False)(images[members])
        torch.testing.assert_close(out[members], expected)
    assert not torch.allclose(out, norm(images), atol=1e-2)


def test_company_changes_with_the_step_and_repeats_exactly() -> None:
    assert torch.equal(batch_order(64, 7), batch_order(64, 7))
    assert not torch.equal(batch_order(64, 7), batch_order(64, 8))
    assert batch_order(64, 7).sort().values.tolist() == list(range(64))


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    forward_shuffled(lambda group: group, torch.zeros(4, 1), orders=orders_of(0), groups=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_groups_are_one_plain_pass() -> None:
    images, seen = torch.randn(6, 2), []
    forward_shuffled(
        lambda group: seen.append(group) or group, images, orders=orders_of(0), groups=0
    )
    assert len(seen) == 1
    assert torch.equal(seen[0], images)


def test_groups_that_do_not_divide_are_refused_with_a_number_that_does() -> None:
    with pytest.raises(UserError, match=r"8 groups of the 12 images .* --method.shuffle-groups 6,"):
        forward_shuffled(lambda group: group, torch.zeros(12, 1), orders=orders_of(0), groups=8)


def test_a_bank_begins_full_of_unit_vectors() -> None:
    bank = KeyBank(32, 8)
    assert bank.usable().all()
    torch.testing.assert_close(bank.entries.norm(dim=1), torch.ones(32))
    assert len(bank.entries.unique(dim=0)) == 32


def test_collected_keys_enter_when_the_bank_advances() -> None:
    bank = KeyBank(6, 2)
    before = bank.entries.clone()
    first, second = torch.ones(2, 2), torch.full((2, 2), 2.0)
    bank.collect(first)
    bank.collect(second)
    assert torch.equal(bank.entries, before)
    bank.advance()
    bank.advance()  # nothing is waiting any more
    assert torch.equal(bank.entries, torch.cat([first, second, before[4:]]))
    assert bank.pointer == 4


def test_heads_of_vectors_and_maps_compute_the_same() -> None:
    torch.manual_seed(0)
    vectors, cells = MLPHead(5, 7, 3), ConvHead(5, 7, 3)
    with torch.no_grad():
        for linear, conv in ((vectors.fc1, cells.conv1), (vectors.fc2, cells.conv2)):
            conv.weight.copy_(linear.weight[:, :, None, None])
            conv.bias.copy_(linear.bias)
    maps = torch.randn(2, 5, 3, 4)
    rows = maps.permute(0, 2, 3, 1).flatten(0, 2)  # (B * h * w, C)
    expected = vectors(rows).reshape(2, 3, 4, 3).permute(0, 3, 1, 2)
    torch.testing.assert_close(cells(maps), expected)


def test_a_head_has_batch_norm_where_asked_for() -> None:
    assert not any(isinstance(m, nn.BatchNorm1d) for m in MLPHead(5, 7, 3).modules())
    head = MLPHead(5, 7, 3, norm=True)
    rows = torch.randn(16, 5)
    head(rows)
    torch.testing.assert_close(head.norm1.running_mean, 0.1 * head.fc1(rows).mean(0))


def test_groups_of_one_image_are_too_small_for_batch_norm() -> None:
    with pytest.raises(UserError, match=r"leaves one of 8 images.*--method.shuffle-groups 4"):
        forward_shuffled(nn.BatchNorm1d(3), torch.rand(8, 3), orders=orders_of(0), groups=8)
