"""The DensePose branch against Detectron2's DensePose project: names, maps and losses."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders.tasks.detectron2_models import _values
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.densepose.branch import DensePoseHead, SurfaceMaps, densepose_name
from clove_ssl.tasks.densepose.config import DensePoseHeadConfig, densepose_detector
from clove_ssl.tasks.densepose.detector import build_densepose_detector
from clove_ssl.tasks.densepose.losses import (
    LossWeights,
    SurfaceLabels,
    densepose_losses,
    region_labels,
)
from clove_ssl.tasks.rcnn.regions.pooling import batched_regions

pytestmark = pytest.mark.golden

NAMES = {"person": "coarse_segm", "part": "fine_segm", "u": "u", "v": "v"}
STEPS = {"person": 1, "part": 6, "u": 6, "v": 6}  # every how many channels are recorded


@pytest.fixture(scope="module")
def recorded(recorded_file) -> dict[str, np.ndarray]:
    return recorded_file("detectron2/13_densepose_model.npz")


@pytest.fixture(scope="module")
def head(recorded_file) -> DensePoseHead:
    keys = recorded_file("detectron2/13_densepose_keys.json")["keys"]
    gains = {entry["name"]: entry["gain"] for entry in keys}
    head = DensePoseHead(DensePoseHeadConfig(), 256)
    with torch.no_grad():
        for mine, tensor in head.state_dict().items():
            name = densepose_name(f"surface_head.{mine}")
            tensor.copy_(torch.from_numpy(_values(name, tuple(tensor.shape), gains[name])))
    return head.eval()


def pyramid(recorded: dict[str, np.ndarray]) -> list[Tensor]:
    height, width = recorded["image_hw"].tolist()
    levels = []
    for level, stride in zip((2, 3, 4, 5), (4, 8, 16, 32), strict=True):
        name = f"dp_feature_p{level}_{recorded['feature_seed_suffix'].item()}"
        source = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
        values = source.standard_normal((1, 256, height // stride, width // stride))
        levels.append(torch.from_numpy(values.astype(np.float32)))
    return levels


def assert_recorded(mine: Tensor, theirs: np.ndarray, shape: np.ndarray, part: tuple) -> None:
    assert list(mine.shape) == shape.tolist()
    expected = torch.from_numpy(theirs)
    allowed = 1e-4 * expected.double().square().mean().sqrt().item()
    torch.testing.assert_close(mine[part], expected, rtol=1e-4, atol=allowed)


def every(channels: int, cells: int) -> tuple:
    return (slice(None), *(slice(None, None, step) for step in (channels, cells, cells)))


def test_names_and_shapes_are_the_recorded_ones(recorded_file) -> None:
    keys = recorded_file("detectron2/13_densepose_keys.json")["keys"]
    config = replace(densepose_detector(), backbone_norm="frozen", neck_norm="none")
    backbone = build_backbone(BackboneConfig(zero_init_last=False))
    model = build_densepose_detector(config, DensePoseHeadConfig(), backbone)
    mine = {densepose_name(name): list(x.shape) for name, x in model.state_dict().items()}
    assert mine == {entry["name"]: entry["shape"] for entry in keys}


@torch.no_grad()
def test_maps_are_the_recorded_ones(head: DensePoseHead, recorded: dict[str, np.ndarray]) -> None:
    merged = head.decoder(pyramid(recorded))
    assert_recorded(merged, recorded["decoder_sub"], recorded["decoder_shape"], every(16, 2))
    pooled = head.pool(merged, batched_regions([torch.from_numpy(recorded["boxes"])]))
    assert_recorded(pooled, recorded["pooled_sub"], recorded["pooled_shape"], every(32, 4))
    maps = head.convs(pooled)
    assert_recorded(maps, recorded["head_sub"], recorded["head_shape"], every(32, 4))
    found = head.predict(maps)
    for mine, theirs in NAMES.items():
        values = getattr(found, mine)
        part = every(STEPS[mine], 8)
        assert_recorded(values, recorded[f"{theirs}_sub"], recorded[f"{theirs}_shape"], part)
        spread = values.double().square().mean().sqrt().item()
        assert spread == pytest.approx(recorded[f"{theirs}_rms"].item(), rel=1e-4)


def loss_inputs(recorded: dict[str, np.ndarray]) -> tuple[SurfaceMaps, SurfaceLabels]:
    """The maps of three regions, and the labels of the first two persons."""
    maps = [
        torch.from_numpy(recorded[f"loss_{theirs}_28"].astype(np.float32))
        .repeat_interleave(4, dim=2)
        .repeat_interleave(4, dim=3)
        .requires_grad_()
        for theirs in NAMES.values()
    ]
    fields = {
        axis: torch.cat([torch.tensor(recorded[f"ann{n}_dp_{axis}"]) for n in (0, 1)]).float()
        for axis in "xyIUV"
    }
    counts = [len(recorded[f"ann{n}_dp_x"]) for n in (0, 1)]
    masks = np.stack([recorded[f"ann{n}_segm256"] for n in (0, 1)])
    labels = SurfaceLabels(
        persons=torch.tensor([0, 1]),
        masks=torch.from_numpy(masks) > 0,
        has_mask=torch.tensor([True, True]),
        owners=torch.repeat_interleave(torch.arange(2), torch.tensor(counts)),
        places=torch.stack([fields["x"], fields["y"]], dim=1),
        parts=fields["I"].long(),
        surface=torch.stack([fields["U"], fields["V"]], dim=1),
    )
    return SurfaceMaps(*maps), labels


def losses(maps: SurfaceMaps, labels: SurfaceLabels, boxes: Tensor, truth: Tensor) -> dict:
    owners = torch.arange(len(boxes))
    targets = region_labels(labels, owners, boxes=boxes, truth=truth, side=maps.part.shape[-1])
    return densepose_losses(maps, targets, weights=LossWeights())


def test_losses_are_the_recorded_ones(recorded: dict[str, np.ndarray]) -> None:
    maps, labels = loss_inputs(recorded)
    # The third person has no label, so its region is none that the branch learns from.
    labelled = SurfaceMaps(*(each[:2] for each in maps))
    boxes = torch.from_numpy(recorded["loss_proposal_boxes"][:2])
    truth = torch.from_numpy(recorded["loss_gt_boxes"][:2])
    found = losses(labelled, labels, boxes, truth)
    expected = {
        key.removeprefix("loss_value_"): x.item()
        for key, x in recorded.items()
        if key.startswith("loss_value_")
    }
    assert {name: loss.item() for name, loss in found.items()} == pytest.approx(expected, rel=1e-4)


def test_losses_without_labels_are_zero_and_reach_all_maps(recorded: dict[str, np.ndarray]) -> None:
    maps, labels = loss_inputs(recorded)
    nothing = torch.zeros(0, 4)
    found = losses(SurfaceMaps(*(each[:0] for each in maps)), labels, nothing, nothing)
    assert sorted(found) == sorted(recorded["loss_names_without_annotation"].tolist())
    assert [loss.item() for loss in found.values()] == recorded[
        "loss_values_without_annotation"
    ].tolist()
    sum(found.values()).backward()
    assert all(each.grad is not None for each in maps)
