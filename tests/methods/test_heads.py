"""The convolutional projector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clove_ssl.methods.heads import ConvProjector


def test_projects_every_cell_on_its_own_in_eval_mode() -> None:
    torch.manual_seed(0)
    projector = ConvProjector(5, 7, 3).eval()
    maps = torch.randn(2, 5, 4, 6)
    out = projector(maps)
    assert out.shape == (2, 3, 4, 6)
    torch.testing.assert_close(projector(maps[:, :, 1:2, 2:3]), out[:, :, 1:2, 2:3])


def test_outputs_are_standardised_over_the_batch_in_train_mode() -> None:
    out = ConvProjector(5, 7, 3)(torch.randn(8, 5, 4, 4))
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-2, rtol=0)


def test_default_has_no_biases_and_no_affine_last_norm() -> None:
    names = [name for name, _ in ConvProjector(5, 7, 3).named_parameters()]
    assert names == ["conv1.weight", "norm1.weight", "norm1.bias", "conv2.weight"]


@pytest.mark.parametrize(("last_norm", "kind"), [("affine", nn.BatchNorm2d), ("none", nn.Identity)])
def test_the_last_norm_can_be_affine_or_absent(last_norm: str, kind: type[nn.Module]) -> None:
    projector = ConvProjector(5, 7, 3, bias=True, last_norm=last_norm)
    assert type(projector.norm2) is kind
    assert projector.conv1.bias is not None
    assert projector.conv2.bias is not None
    assert len(list(projector.norm2.parameters())) == (2 if last_norm == "affine" else 0)
