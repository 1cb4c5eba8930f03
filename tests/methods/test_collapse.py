"""No method collapses: features keep their spread and learn what a random network lacks.

Images are mosaics of two textures, the network has a few layers, and a run takes
two hundred steps: as small as it can be for every method to show that it learns.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from builders.files.mosaics import Mosaics
from builders.runs.collapse_runs import Measured, measure, small_network, train

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.clove_plus.config import CLoVEPlusConfig, WholeConfig
from clove_ssl.methods.config import HeadConfig, ProjectorConfig, TeacherConfig
from clove_ssl.methods.cp2.config import CP2Config, PyramidConfig
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.detco.config import DetCoConfig, JigsawConfig
from clove_ssl.methods.inscon.config import InsConConfig, MosaicConfig
from clove_ssl.methods.moco.config import MoCoConfig
from clove_ssl.methods.pixpro.config import PixProConfig
from clove_ssl.methods.resim.config import ReSimConfig, WindowConfig
from clove_ssl.methods.setsim.config import SetSimConfig
from clove_ssl.methods.slotcon.config import SlotConConfig, SlotHeadConfig, SlotLossConfig
from clove_ssl.methods.supervised.config import SupervisedConfig, plain_crop
from clove_ssl.methods.vicregl.config import VICRegLConfig
from clove_ssl.registry import METHODS
from clove_ssl.views.batch import ViewBatch

STEPS, PEAK_LR = 200, 1e-2
LEAST_STD, LEAST_RANK = 0.5, 6.0  # of 1 and 16; random networks have 0.8 and 16
LEAST_GAIN = 0.04  # of the probe's mean IoU, over the best of three random networks

CROPS = {"global_size": 32, "global_scale": (0.15, 0.5), "local_count": 0}
VIEWS = ViewsConfig(**CROPS, blur_sigma=(0.1, 0.5))
HEAD = HeadConfig(hidden=64, out=32)
PROJECTOR = ProjectorConfig(hidden=64, out=32)
TAUGHT: dict[str, Any] = {"views": VIEWS, "teacher": TeacherConfig(momentum=0.98)}
QUEUED: dict[str, Any] = {
    "views": VIEWS,
    "teacher": TeacherConfig(momentum=0.98, final_momentum=0.98),
    "head": HEAD,
    "temperature": 0.1,
    "queue_size": 256,
    "shuffle_groups": 2,
}
WITH_ALL_STAGES = (DetCoConfig, ReSimConfig)
CONFIGS: tuple[MethodConfig, ...] = (
    BYOLConfig(**TAUGHT, projector=HEAD, predictor_hidden=64),
    CLoVEConfig(
        **TAUGHT,
        projector=PROJECTOR,
        attention=AttentionConfig(heads=4),
        loss=LossConfig(top_k=4),
    ),
    CLoVEPlusConfig(
        views=VIEWS,
        projector=PROJECTOR,
        attention=AttentionConfig(heads=4),
        loss=LossConfig(top_k=4),
        stages=("c2", "c3"),
        whole=WholeConfig(width=64),
    ),
    CP2Config(**QUEUED, pyramid=PyramidConfig(channels=32, dilations=(1, 2))),
    DenseCLConfig(**QUEUED, dense_head=HEAD, dense_weight=0.3),
    DetCoConfig(**QUEUED, local_hidden=64, jigsaw=JigsawConfig(grid=2, frame=48, patch=16)),
    InsConConfig(**QUEUED, dense_head=HEAD, mosaic=MosaicConfig(tile=24)),
    MoCoConfig(**QUEUED),
    PixProConfig(**TAUGHT, projector=replace(PROJECTOR, bias=True, last_norm="none")),
    ReSimConfig(
        **{**QUEUED, "views": replace(VIEWS, global_size=48)},
        c4=WindowConfig(window=24, stride=12),
        c3=WindowConfig(window=16, stride=12, negative_images=4),
        pyramid_channels=32,
    ),
    SetSimConfig(**QUEUED, dense_head=HEAD, dense_weight=0.3),
    SlotConConfig(
        views=VIEWS,
        teacher=TeacherConfig(momentum=0.9, final_momentum=0.9),
        prototypes=8,
        head=SlotHeadConfig(hidden=64, out=32),
        loss=SlotLossConfig(slot_temperature=0.1),
    ),
    SupervisedConfig(views=replace(plain_crop(), **CROPS), classes=len(Mosaics.class_names)),
    VICRegLConfig(views=VIEWS, global_width=64, local_width=32, matches=(8, 8)),
)


class Attraction(Method):
    """Draws all cells together and does nothing against collapse."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        maps = self.backbone.features(torch.cat([view.pixels for view in batch.views]))
        cells = maps.flatten(2).mT.flatten(0, 1)  # (N, D)
        return StepOutput(-torch.cosine_similarity(cells, cells.mean(0)).mean())


@cache
def best_random() -> Measured:
    """The random network, of three, whose features say most."""
    return max(measure(small_network(seed=seed)) for seed in range(3))


def keeps_its_spread(measured: Measured) -> bool:
    return measured.std > LEAST_STD and measured.rank > LEAST_RANK


def test_every_method_that_trains_has_its_turn() -> None:
    trained = {name for name in METHODS.names() if METHODS.load(name).trains}
    assert {config.name for config in CONFIGS} == trained


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_method_keeps_its_spread_and_beats_random_weights(config: MethodConfig) -> None:
    method = config.build(small_network("c5" if isinstance(config, WITH_ALL_STAGES) else "c3"))
    train(method, config.view_specs(), steps=STEPS, lr=PEAK_LR)
    measured = measure(method.export_backbone())
    assert keeps_its_spread(measured), measured
    assert measured.miou > best_random().miou + LEAST_GAIN, (measured, best_random())


def test_a_loss_that_invites_collapse_is_found_out() -> None:
    method = Attraction(small_network())
    train(method, VIEWS.specs(), steps=STEPS, lr=PEAK_LR)
    measured = measure(method.backbone)
    assert not keeps_its_spread(measured)
    assert measured.miou < best_random().miou + LEAST_GAIN
