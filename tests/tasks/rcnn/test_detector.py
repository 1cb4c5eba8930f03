"""Whole detectors: what trains, what is drawn at random, what comes out, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders.tasks.tiny_detectors import CLASSES, KEYPOINTS, tiny_batch, tiny_config, tiny_detector
from torch import Tensor, nn

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.detection import (
    DetectorConfig,
    ProposalConfig,
    c4_detector,
    fpn_detector,
    keypoint_detector,
)
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.rcnn.detector import build_detector
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageTargets
from clove_ssl.tasks.rcnn.regions.targets import (
    ObjectMasks,
    TrainingRegions,
    outlines_of,
    rows_of,
)
from clove_ssl.tasks.training_parts import parameter_groups

KINDS = {
    "c4": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg"},
    "c4-masks": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_mask"},
    "fpn": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_mask"},
    "keypoints": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_keypoint"},
}


def swapped(batch: DetectionBatch) -> DetectionBatch:
    return DetectionBatch(
        batch.images[::-1], batch.targets[::-1], batch.original_sizes[::-1], batch.keys.flip(0)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    model = tiny_detector(kind)
    losses = model.losses(tiny_batch(), step=0)
    assert losses.keys() == KINDS[kind]
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    without = {name for name, x in model.named_parameters() if not x.grad.abs().sum() > 0}
    # These images are too small for regions of the coarser levels.
    assert {name for name in without if "pyramid.outputs.c" not in name} == set()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["c4-masks", "fpn", "keypoints"])
@pytest.mark.parametrize("boxes", [[[], []], [[], [[10, 10, 60, 70]]]])
def test_images_without_objects_have_finite_losses_and_statistics(kind: str, boxes: list) -> None:
    model = tiny_detector(kind)
    losses = model.losses(tiny_batch(boxes), step=0)
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    if not any(boxes):
        nothing = losses.keys() & {"loss_box_reg", "loss_mask", "loss_keypoint"}
        assert {name: losses[name].item() for name in nothing} == dict.fromkeys(nothing, 0)


def test_objects_without_visible_keypoints_teach_boxes_only() -> None:
    model, batch = tiny_detector("keypoints"), tiny_batch()
    hidden = tuple(
        replace(each, keypoints=each.keypoints * torch.tensor([1, 1, 0])) for each in batch.targets
    )
    losses = model.losses(replace(batch, targets=hidden), step=0)
    assert losses["loss_keypoint"] == 0
    assert losses["loss_box_reg"] > 0


@pytest.mark.parametrize("kind", ["c4-masks", "fpn", "keypoints"])
def test_detections_are_in_the_original_image(kind: str) -> None:
    model = tiny_detector(kind).eval()
    model.config = replace(
        model.config, read_out=replace(model.config.read_out, score_above=0.0, detections=9)
    )
    batch = replace(tiny_batch(), targets=())
    for found, (height, width) in zip(model.detect(batch), batch.original_sizes, strict=True):
        assert len(found) == 9
        assert found.boxes.min() >= 0
        assert (found.boxes[:, 2:] <= torch.tensor([width, height])).all()
        assert torch.equal(found.scores, found.scores.sort(descending=True).values)
        assert found.classes.max() < CLASSES
        if kind == "keypoints":
            assert found.keypoints.shape == (9, KEYPOINTS, 3)
        else:
            assert found.masks.shape == (9, height, width)


@pytest.mark.parametrize("kind", ["c4-masks", "fpn", "keypoints"])
def test_images_in_which_nothing_is_found_have_empty_results(kind: str) -> None:
    model = tiny_detector(kind).eval()
    model.config = replace(model.config, read_out=replace(model.config.read_out, score_above=1.0))
    batch = replace(tiny_batch(), targets=())
    for found, size in zip(model.detect(batch), batch.original_sizes, strict=True):
        assert (len(found), found.boxes.shape) == (0, (0, 4))
        if kind == "keypoints":
            assert found.keypoints.shape == (0, KEYPOINTS, 3)
        else:
            assert found.masks.shape == (0, *size)


def test_sampling_follows_from_seed_step_and_key_alone() -> None:
    model, batch = tiny_detector("fpn"), tiny_batch()
    proposals = model.proposer.propose(model.proposer(model.maps(batch)), batch.sizes)

    def drawn(batch: DetectionBatch, proposals: list, step: int, image: int) -> list:
        regions = model.draw_regions(batch, proposals, step=step)
        return regions.boxes[regions.regions[:, 0] == image].tolist()

    state = torch.get_rng_state()
    first = drawn(batch, proposals, 3, 0)
    assert drawn(swapped(batch), proposals[::-1], 3, 1) == first
    assert drawn(batch, proposals, 4, 0) != first
    assert drawn(replace(batch, keys=torch.tensor([8, 11])), proposals, 3, 0) != first
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["fpn", "keypoints"])
def test_losses_do_not_depend_on_the_order_of_images(kind: str) -> None:
    model, batch = tiny_detector(kind).double(), tiny_batch()
    mine, theirs = (model.losses(each, step=5) for each in (batch, swapped(batch)))
    values = [{name: loss.item() for name, loss in each.items()} for each in (mine, theirs)]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_bitmaps_give_the_losses_of_the_polygons_they_show() -> None:
    model, batch = tiny_detector("fpn"), tiny_batch()
    bitmaps = []
    for each, (height, width) in zip(batch.targets, batch.sizes, strict=True):
        masks = torch.zeros(len(each), height, width, dtype=torch.bool)
        for mask, (x1, y1, x2, y2) in zip(masks, each.boxes.long().tolist(), strict=True):
            mask[y1:y2, x1:x2] = True
        bitmaps.append(replace(each, polygons=None, bitmaps=masks))
    mixed = replace(batch, targets=(batch.targets[0], bitmaps[1]))
    polygons, both, bits = (
        model.losses(each, step=0)["loss_mask"].item()
        for each in (batch, mixed, replace(batch, targets=tuple(bitmaps)))
    )
    assert both == pytest.approx(polygons, rel=1e-3)
    assert bits == pytest.approx(polygons, rel=1e-3)


def test_bitmaps_become_binary_targets_of_half_covered_pixels() -> None:
    bitmap = torch.zeros(1, 8, 8, dtype=torch.bool)
    bitmap[:, :, :5] = True  # all of the left half, a quarter of the right one
    objects = ImageTargets(torch.tensor([[0.0, 0, 8, 8]]), torch.zeros(1).long(), bitmaps=bitmap)
    whole = torch.tensor([[0.0, 0.0, 0.0, 8.0, 8.0]])
    regions = TrainingRegions(whole, objects.classes, torch.zeros(1).long())
    rows = rows_of(regions, [objects], num_classes=1, masks=True, keypoints=False)
    masks = ObjectMasks([objects], outlines_of([objects]), regions, rows, size=2).read()
    assert masks.tolist() == [[[True, False], [True, False]]]


def test_regions_of_the_c4_map_are_pooled_with_the_true_stride() -> None:
    model = tiny_detector("c4").eval()
    assert model.features.strides == (16,)
    # 72 pixels have 5 cells: a scale read off the map would be 5 / 72.
    pixels = torch.zeros(1, 3, 64, 72)
    with torch.no_grad():
        (level,) = model.features(pixels)
        assert level.shape[-1] == 5
        ramp = torch.arange(5.0).expand_as(level)
        whole = torch.tensor([[0.0, 16.0, 16.0, 48.0, 48.0]])
        model.features.backbone.body.layer4 = nn.Identity()
        model.features.norm = None
        maps = model.features.region_maps([ramp], whole)
    assert maps.mean().item() == pytest.approx(32 / 16 - 0.5)


def test_the_c4_mask_head_sees_the_maps_of_the_box_head() -> None:
    features = tiny_detector("c4-masks").eval().features
    regions = torch.tensor([[0.0, 4.0, 4.0, 40.0, 48.0]])
    with torch.no_grad():
        levels = features(torch.rand(1, 3, 64, 64))
        maps = features.region_maps(levels, regions)
        assert torch.equal(features.head_maps(levels, regions), maps)


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (c4_detector(masks=False), (12000, 2000, 6000, 1000)),
        (fpn_detector(), (2000, 1000, 1000, 1000)),
        (keypoint_detector(), (2000, 1500, 1000, 1000)),
    ],
)
def test_protocols_keep_as_many_proposals_as_published(config: DetectorConfig, counts) -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    proposer = build_detector(config, backbone, classes=2, keypoints=2).proposer
    train, test = proposer.train().limits(), proposer.eval().limits()
    assert (train.before_nms, train.after_nms, test.before_nms, test.after_nms) == counts
    assert train.nms_overlap == test.nms_overlap == 0.7


def test_only_the_asked_for_stages_train() -> None:
    model = tiny_detector("fpn", frozen_stages=3)
    frozen = {name for name, x in model.backbone.body.named_parameters() if not x.requires_grad}
    assert {name.split(".")[0] for name in frozen} == {"conv1", "layer1", "layer2"}
    assert not any(isinstance(x, nn.BatchNorm2d) for x in model.backbone.body.layer2.modules())
    assert any(isinstance(x, nn.BatchNorm2d) for x in model.backbone.body.layer3.modules())
    before = {name: x.clone() for name, x in model.backbone.body.layer1.state_dict().items()}
    model.losses(tiny_batch(), step=0)
    after = model.backbone.body.layer1.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_frozen_norms_are_the_affine_maps_of_their_statistics() -> None:
    trained = build_backbone(BackboneConfig(name="resnet18", zero_init_last=False))
    for module in trained.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = trained.eval()(image)["c5"]
        config = tiny_config("fpn", backbone_norm="frozen")
        model = build_detector(config, trained, classes=1).train()
        torch.testing.assert_close(model.backbone(image)["c5"], expected, rtol=1e-5, atol=1e-5)
    assert not any(isinstance(x, nn.BatchNorm2d) for x in model.backbone.modules())


def test_all_trained_parameters_are_in_one_group() -> None:
    model = tiny_detector("fpn", frozen_stages=1)
    groups = parameter_groups(model, 0.1)
    grouped = [parameter for group in groups for parameter in group["params"]]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(grouped) == len(trained)
    assert set(map(id, grouped)) == set(map(id, trained))
    biases = [model.box_predictor.cls_score.bias, model.mask_head.deconv.bias]
    decayed = set(map(id, groups[0]["params"]))
    assert groups[0]["weight_decay"] == 0.1
    assert all(id(bias) in decayed for bias in biases)


@pytest.mark.parametrize("name", ["convnext_tiny", "regnet_y_400mf"])
def test_other_backbones_carry_a_pyramid(name: str) -> None:
    model = tiny_detector("fpn", backbone=name)
    losses = model.losses(tiny_batch(), step=0)
    assert all(loss.isfinite() for loss in losses.values())
    decay = [group["weight_decay"] for group in parameter_groups(model, 0.1)]
    assert decay == [0.1, 0.0]
    with pytest.raises(UserError, match="no name"):
        detectron2_name(
            f"features.backbone.body.{next(iter(model.backbone.body.state_dict()))}", "fpn"
        )


def test_a_timm_backbone_carries_a_pyramid_but_no_c4_detector() -> None:
    pytest.importorskip("timm")
    model = tiny_detector("fpn", backbone="timm:resnet10t")
    assert all(loss.isfinite() for loss in model.losses(tiny_batch(), step=0).values())
    with pytest.raises(UserError, match="does not come apart"):
        tiny_detector("c4", backbone="timm:resnet10t")
    with pytest.raises(UserError, match="frozen_stages is 1"):
        tiny_detector("fpn", backbone="timm:resnet10t", frozen_stages=1)


def test_a_dilated_backbone_is_refused() -> None:
    dilated = build_backbone(BackboneConfig(name="resnet50", output_stride=16))
    with pytest.raises(UserError, match="output_stride 32"):
        build_detector(tiny_config("fpn"), dilated, classes=1)


def test_a_keypoint_head_needs_keypoints() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    with pytest.raises(UserError, match="no keypoints"):
        build_detector(tiny_config("keypoints"), backbone, classes=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frozen_stages": 6}, "frozen_stages is 6"),
        ({"kind": "c4", "keypoints": True}, "no keypoint head"),
        ({"proposals": ProposalConfig(anchor_sizes=(32.0,))}, "5 levels"),
    ],
)
def test_configs_that_make_no_detector_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DetectorConfig(**changes)


def test_annotations_that_a_head_needs_must_be_there() -> None:
    batch = tiny_batch()
    bare = tuple(replace(each, polygons=None, keypoints=None) for each in batch.targets)
    for kind, message in (("fpn", "masks"), ("keypoints", "keypoints")):
        with pytest.raises(ValueError, match=message):
            tiny_detector(kind).losses(replace(batch, targets=bare), step=0)


def test_batches_move_as_a_whole() -> None:
    batch = tiny_batch().to("meta")
    tensors: list[Tensor] = [*batch.images]
    for each in batch.targets:
        tensors += [each.boxes, each.classes, each.keypoints]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert batch.keys.device.type == "cpu"
    assert batch.sizes == [(64, 96), (80, 72)]
