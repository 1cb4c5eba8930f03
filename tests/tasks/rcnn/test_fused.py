"""Detectors whose norms run together with what follows them learn the same."""

from __future__ import annotations

import pytest
import torch
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from torch import Tensor

from clove_ssl.backbones.build import fuse_norms
from clove_ssl.tasks.rcnn import features, layers
from clove_ssl.tasks.rcnn.detector import Detector


@pytest.mark.parametrize("kind", ["c4", "fpn"])
def test_a_fused_detector_has_the_same_losses_and_statistics(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = learned(tiny_detector(kind))
    for module in (features, layers):
        monkeypatch.setattr(module, "WORTH_FUSING", 0)
    model = tiny_detector(kind)
    fuse_norms(model)
    assert model.backbone._recut is not None
    torch.testing.assert_close(learned(model), plain, rtol=1e-4, atol=1e-5)


def learned(model: Detector) -> dict[str, Tensor]:
    with torch.no_grad():
        return model.losses(tiny_batch(), step=0) | dict(model.named_buffers())
