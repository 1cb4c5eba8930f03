"""Numbers in fp32 or better."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.layers.fp32 import all_at_least_fp32, at_least_fp32


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_narrow_and_whole_numbers_become_fp32(narrow: torch.dtype) -> None:
    assert at_least_fp32(torch.ones(2, dtype=narrow)).dtype == torch.float32


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_what_is_wide_enough_is_not_copied(wide: torch.dtype) -> None:
    values = torch.ones(2, dtype=wide)
    assert at_least_fp32(values) is values


def test_all_follow_the_first() -> None:
    mask, rows = torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bfloat16)
    for first in (rows, rows.float(), rows.double()):
        expected = at_least_fp32(first).dtype
        assert {each.dtype for each in all_at_least_fp32(first, mask, rows)} == {expected}
