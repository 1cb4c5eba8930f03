"""Rows of different lengths as one table."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from clove_ssl.layers.transfers import pad_rows


@pytest.mark.parametrize("counts", [[3, 0, 2], [1], [0, 4]])
@pytest.mark.parametrize("shape", [(), (4,)])
def test_rows_are_padded_as_torch_pads_them(counts: list[int], shape: tuple[int, ...]) -> None:
    parts = [torch.rand(count, *shape) for count in counts]
    assert torch.equal(pad_rows(parts), pad_sequence(parts, batch_first=True))


def test_no_rows_at_all_are_an_empty_table() -> None:
    assert pad_rows([torch.zeros(0, 4, dtype=torch.int64)] * 2).shape == (2, 0, 4)
