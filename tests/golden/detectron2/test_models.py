"""Whole detectors against Detectron2 0.6: names, start, maps, detections, losses, gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders.labels.tied_boxes import assert_same_but_for_ties
from builders.tasks.detectron2_models import (
    CONFIGS,
    LowestFirst,
    build,
    fill,
    in_detectron2_names,
    paste_probabilities,
)
from torch import Tensor, nn

from clove_ssl.tasks.rcnn.detector import Detector, Found, in_original_pixels
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageDetections, ImageTargets
from clove_ssl.tasks.rcnn.regions.pooling import batched_regions
from clove_ssl.tasks.training_parts import parameter_groups

pytestmark = pytest.mark.golden


class Recorded:
    """A model filled with the recorded weights, and the recorded numbers."""

    def __init__(self, name: str, read) -> None:
        self.name = name
        self.keys = read(f"detectron2/09_{name}_keys.json")
        self.init = read(f"detectron2/09_{name}_init.json")
        self.decay = read(f"detectron2/10_{name}_weight_decay.json")
        self.test = {key: _tensor(x) for key, x in read(f"detectron2/09_{name}_eval.npz").items()}
        self.train = read(f"detectron2/09_{name}_train.npz")
        self.model = build(name, training_config(name, self.train))
        self.start = {
            name: (x.mean().item(), x.std(correction=0).item(), x.numel())
            for name, x in self.model.named_parameters()
        }
        fill(self.model, self.keys)
        self._statistics = {name: x.clone() for name, x in self.model.named_buffers()}

    def named(self, entries: dict) -> dict:
        return in_detectron2_names(entries, self.model.config.kind)

    def reset(self) -> None:
        """Forget gradients, and what batch norms have seen."""
        self.model.zero_grad()
        for name, buffer in self.model.named_buffers():
            buffer.copy_(self._statistics[name])


class Seen:
    """What the model makes of the test image."""

    def __init__(self, recorded: Recorded) -> None:
        model, numbers = recorded.model.eval(), recorded.test
        self.original = tuple(numbers["output_hw"].tolist())
        self.batch = DetectionBatch(
            (numbers["image"],), (), (self.original,), torch.zeros(1, dtype=torch.int64)
        )
        with torch.no_grad():
            self.levels: list[Tensor] = model.maps(self.batch)
            scored = model.proposer(self.levels)
            (self.proposals,) = model.proposer.propose(scored, self.batch.sizes)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array))


def training_config(name: str, train: dict[str, np.ndarray]):
    config = CONFIGS[name]
    return replace(
        config,
        box=replace(config.box, regions_per_image=int(train["roi_batch_per_image"])),
        proposals=replace(config.proposals, anchors_per_image=int(train["rpn_batch_per_image"])),
    )


def training_batch(train: dict[str, np.ndarray]) -> DetectionBatch:
    images = tuple(_tensor(train[f"image{number}"]) for number in range(2))
    return DetectionBatch(
        images,
        tuple(training_targets(train, number) for number in range(2)),
        tuple((image.shape[1], image.shape[2]) for image in images),
        torch.arange(2),
    )


def training_targets(train: dict[str, np.ndarray], image: int) -> ImageTargets:
    boxes, classes = (_tensor(train[f"gt_{field}{image}"]) for field in ("boxes", "classes"))
    if f"gt_keypoints{image}" in train:
        return ImageTargets(boxes, classes, keypoints=_tensor(train[f"gt_keypoints{image}"]))
    ends = np.cumsum(train[f"gt_poly_lengths{image}"])
    polygons = np.split(train[f"gt_poly_xy{image}"], ends[:-1])
    last = np.cumsum(train[f"gt_polys_per_instance{image}"])
    objects = [tuple(polygons[a:b]) for a, b in zip([0, *last[:-1]], last, strict=True)]
    return ImageTargets(boxes, classes, polygons=tuple(objects))


@pytest.fixture(scope="module", params=list(CONFIGS))
def filled(recorded_file, request) -> Recorded:
    return Recorded(request.param, recorded_file)


@pytest.fixture
def recorded(filled: Recorded) -> Recorded:
    filled.reset()
    return filled


@pytest.fixture
def seen(recorded: Recorded) -> Seen:
    return Seen(recorded)


def test_names_and_shapes_are_the_recorded_ones(recorded: Recorded) -> None:
    mine = {name: list(x.shape) for name, x in recorded.model.state_dict().items()}
    theirs = {entry["name"]: entry["shape"] for entry in recorded.keys["keys"]}
    assert recorded.named(mine) == theirs


def test_parameters_start_with_the_recorded_spread(recorded: Recorded) -> None:
    start = recorded.named(recorded.start)
    assert start.keys() == recorded.init.keys()
    for name, (mean, std, count) in start.items():
        theirs = recorded.init[name]
        if theirs["std"] == 0:
            assert (mean, std) == (theirs["mean"], 0), name
        else:
            # The spread of a sample of n values has itself a spread of 1 / sqrt(2n).
            assert std == pytest.approx(theirs["std"], rel=max(0.05, 4 * (2 * count) ** -0.5)), name


def test_weight_decay_is_recorded_for_the_same_parameters(recorded: Recorded) -> None:
    names = {parameter: name for name, parameter in recorded.model.named_parameters()}
    groups = parameter_groups(recorded.model, 1e-4)
    mine = {
        group["weight_decay"]: set(recorded.named({names[p]: None for p in group["params"]}))
        for group in groups
    }
    theirs = recorded.decay
    assert mine == {0.0: set(theirs["weight_decay_0"]), 1e-4: set(theirs["weight_decay_1e-4"])}


def test_feature_maps_are_the_recorded_ones(recorded: Recorded, seen: Seen) -> None:
    single = recorded.name == "c4_mask"
    levels = ["res4"] if single else ["p2", "p3", "p4", "p5", "p6"]
    for level, mine in zip(levels, seen.levels, strict=True):
        numbers = {
            field: recorded.test[f"feat_{level}{field}"]
            for field in ("", "_shape", "_stride_ch_sp", "_channel_mean", "_rms")
        }
        assert list(mine.shape) == numbers["_shape"].tolist()
        channels, cells = numbers["_stride_ch_sp"].tolist()
        allowed = 1e-4 * numbers["_rms"].item()
        part = mine[:, ::channels, ::cells, ::cells]
        torch.testing.assert_close(part, numbers[""], rtol=0, atol=allowed)
        means = mine.mean(dim=(0, 2, 3))
        torch.testing.assert_close(means, numbers["_channel_mean"], rtol=0, atol=allowed)


def test_proposals_are_the_recorded_ones(recorded: Recorded, seen: Seen) -> None:
    assert len(seen.proposals.boxes) == recorded.test["num_proposals"]
    best = recorded.test["proposal_boxes_top50"], recorded.test["proposal_logits_top50"]
    assert_same_but_for_ties(seen.proposals, best, boxes_within=0.02, logits_within=1e-4)


def test_class_logits_and_offsets_are_the_recorded_ones(recorded: Recorded, seen: Seen) -> None:
    regions = batched_regions([recorded.test["proposal_boxes_top50"]])
    with torch.no_grad():
        maps = recorded.model.features.region_maps(seen.levels, regions)
        logits, offsets = recorded.model.predict_boxes(maps)
    expected = recorded.test["top50_cls_logits"]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * rms(expected))
    expected = recorded.test["top50_box_deltas"]
    part = offsets[:, : expected.shape[1]]
    torch.testing.assert_close(part, expected, rtol=0, atol=1e-4 * rms(expected))


def rms(values: Tensor) -> float:
    return values.double().square().mean().sqrt().item()


@pytest.mark.slow
def test_detections_are_the_recorded_ones(recorded: Recorded, seen: Seen) -> None:
    (found,) = recorded.model.eval().find(seen.batch)
    compare_boxes(found, recorded.test, "raw_")
    if found.masks is not None:
        best = recorded.test["raw_masks_top20"]
        torch.testing.assert_close(found.masks[: len(best)], best, rtol=0, atol=1e-4)
    if found.keypoints is not None:
        compare_keypoints(found.keypoints, recorded.test["raw_keypoints"])
    (size,) = seen.batch.sizes
    final = in_original_pixels(found, seen=size, original=seen.original)
    compare_boxes(final, recorded.test, "")
    if final.masks is not None:
        compare_masks(found, final, recorded.test["masks_packedbits"].numpy())
    if final.keypoints is not None:
        compare_keypoints(final.keypoints, recorded.test["keypoints"])


def compare_masks(found: Found, final: ImageDetections, packed: np.ndarray) -> None:
    """Pixels may differ where the probability is the threshold, but for rounding."""
    bits = torch.from_numpy(np.unpackbits(packed, axis=1, count=final.masks[0].numel()))
    different = final.masks != bits.view_as(final.masks).bool()
    size = (final.masks.shape[1], final.masks.shape[2])
    probabilities = paste_probabilities(found.masks, final.boxes, image_size=size)
    assert ((probabilities[different] - 0.5).abs() < 1e-3).all()
    assert different.float().mean() < 1e-5


def compare_boxes(mine: Found | ImageDetections, numbers: dict[str, Tensor], prefix: str) -> None:
    torch.testing.assert_close(mine.boxes, numbers[f"{prefix}boxes"], rtol=0, atol=0.02)
    torch.testing.assert_close(mine.scores, numbers[f"{prefix}scores"], rtol=0, atol=1e-4)
    assert torch.equal(mine.classes, numbers[f"{prefix}classes"])


def compare_keypoints(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine[..., :2], theirs[..., :2], rtol=0, atol=0.02)
    torch.testing.assert_close(mine[..., 2], theirs[..., 2], rtol=0, atol=1e-4)


def test_losses_and_gradients_with_fixed_norms_are_the_recorded_ones(recorded: Recorded) -> None:
    model = with_fixed_norms(recorded.model)
    losses = model.losses(training_batch(recorded.train), step=0)
    compare_losses(losses, recorded.train, "bn_eval")
    sum(losses.values()).backward()
    compare_gradients(recorded, "bn_eval")


def test_losses_and_statistics_with_trained_norms_are_the_recorded_ones(
    recorded: Recorded,
) -> None:
    model = recorded.model.train()
    model.priorities = LowestFirst()
    # Gradients of this pass for one model only: they cost most of the time.
    with_gradients = recorded.name == "fpn_mask"
    with torch.set_grad_enabled(with_gradients):
        losses = model.losses(training_batch(recorded.train), step=0)
    compare_losses(losses, recorded.train, "bn_train")
    compare_statistics(recorded)
    if with_gradients:
        sum(losses.values()).backward()
        compare_gradients(recorded, "bn_train")


def with_fixed_norms(model: Detector) -> Detector:
    """A model in train mode, but for its batch norms, that takes the first candidates it meets."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    model.priorities = LowestFirst()
    return model


def compare_losses(losses: dict[str, Tensor], train: dict[str, np.ndarray], mode: str) -> None:
    prefix = f"{mode}_loss_"
    theirs = {
        key.removeprefix(f"{mode}_"): x.item() for key, x in train.items() if key.startswith(prefix)
    }
    mine = {name: loss.item() for name, loss in losses.items()}
    assert mine == pytest.approx(theirs, rel=1e-4 if mode == "bn_eval" else 1e-3)


def compare_gradients(recorded: Recorded, mode: str) -> None:
    norms = {name: x.grad.norm().item() for name, x in recorded.model.named_parameters()}
    mine = recorded.named(norms)
    names = recorded.train[f"{mode}_grad_names"].tolist()
    theirs = dict(zip(names, recorded.train[f"{mode}_grad_norms"].tolist(), strict=True))
    # The bias in front of a softmax has no gradient but rounding errors.
    assert mine == pytest.approx(theirs, rel=1e-2, abs=1e-6)


def compare_statistics(recorded: Recorded) -> None:
    mine = recorded.named(recorded.model.state_dict())
    theirs = {
        key.removeprefix("after:"): _tensor(values)
        for key, values in recorded.train.items()
        if key.startswith("after:")
    }
    assert theirs
    for name, values in theirs.items():
        torch.testing.assert_close(mine[name], values, rtol=1e-3, atol=1e-3 * rms(values))


def test_sampled_regions_are_the_recorded_ones(recorded: Recorded) -> None:
    model = with_fixed_norms(recorded.model)
    batch = training_batch(recorded.train)
    with torch.no_grad():
        proposals = model.proposer.propose(model.proposer(model.maps(batch)), batch.sizes)
        regions = model.draw_regions(batch, proposals, step=0)
    for image in range(2):
        assert len(proposals[image].boxes) == recorded.train[f"bn_eval_num_proposals{image}"]
        here = regions.regions[:, 0] == image
        boxes = _tensor(recorded.train[f"bn_eval_sampled_boxes{image}"])
        torch.testing.assert_close(regions.boxes[here], boxes, rtol=0, atol=0.02)
        classes = _tensor(recorded.train[f"bn_eval_sampled_classes{image}"])
        assert torch.equal(regions.classes[here], classes)
