"""What is trained, frozen and a mere buffer in the LVIS detector, against Detectron2 0.6."""

from __future__ import annotations

import pytest
from builders.tasks.detectron2_models import in_detectron2_names

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.lvis.config import lvis_detector
from clove_ssl.tasks.rcnn.detector import build_detector

pytestmark = pytest.mark.golden


def test_trained_and_frozen_parameters_are_the_recorded_ones(recorded_file) -> None:
    recorded = recorded_file("detectron2/10_lvis_trainable.json")
    classes, *_ = recorded["trainable_shapes"]["roi_heads.mask_head.predictor.bias"]
    model = build_detector(lvis_detector(), build_backbone(BackboneConfig()), classes=classes)
    parameters = in_detectron2_names(dict(model.named_parameters()), "fpn")
    trained = {name: list(x.shape) for name, x in parameters.items() if x.requires_grad}
    assert trained == recorded["trainable_shapes"]
    frozen = {name for name, x in parameters.items() if not x.requires_grad}
    assert frozen == set(recorded["frozen_parameters"])
    buffers = in_detectron2_names(dict(model.named_buffers()), "fpn")
    theirs = {name for name in recorded["buffers"] if "norm" in name}
    assert set(buffers) == theirs
