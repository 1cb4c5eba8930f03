"""Semantic segmentation: crops and labels stay together, and the loss is the mean over pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.labels.pixels import IGNORE, VOC_CLASSES
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading
from clove_ssl.tasks.predictions import write_label_maps
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN
from clove_ssl.tasks.semantic import model
from clove_ssl.tasks.semantic.config import VOCSemanticConfig
from clove_ssl.tasks.semantic.loading import SemanticBatch, load_crops, load_whole_images
from clove_ssl.tasks.semantic.model import SemanticNetwork
from clove_ssl.tasks.semantic.task import SemanticTask

READING = Reading.alone(batch=4, steps=3, seed=3)


class Telling:
    """Images whose red tells the label of a pixel and whose green its column."""

    class_names = tuple("abcdefg")

    def __len__(self) -> int:
        return 5

    def name(self, index: int) -> str:
        return str(index)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        height, width = 20 + index, 30
        labels = torch.arange(height * width).view(height, width).remainder(7).to(torch.uint8)
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        image[0], image[1] = 30 * labels, torch.arange(width).to(torch.uint8)
        return image, labels


def crops(crop: int, reading: Reading = READING) -> list[SemanticBatch]:
    config = VOCSemanticConfig(crop=crop, scales=(1.0, 1.0))
    return list(load_crops(Telling(), config, reading))


def test_labels_follow_their_pixels() -> None:
    for batch in crops(16):
        assert torch.equal(batch.images[:, 0], 30 * batch.labels)
        steps = batch.images[:, 1].int().diff(dim=-1)
        assert steps.abs().eq(1).all()
    directions = {
        int(step) for b in crops(16) for step in b.images[:, 1].int().diff(dim=-1)[:, 0, 0]
    }
    assert directions == {-1, 1}  # some were mirrored


def test_a_crop_beyond_the_border_is_filled_and_not_judged() -> None:
    (batch, *_) = crops(40)
    outside = batch.labels[0] == IGNORE
    assert outside[:, 30:].all()
    assert not outside[:20, :30].any()
    filled = batch.images[0][:, outside]
    assert torch.equal(filled[:, 0], torch.tensor([round(value) for value in PIXEL_MEAN]).byte())


def test_a_restart_and_other_processes_see_the_same_crops() -> None:
    whole = crops(16)
    (last,) = crops(16, READING.between(2, 3))
    assert torch.equal(last.images, whole[2].images)
    halves = [
        Reading(**{**vars(READING), "processes": 2, "rank": rank, "micro_batch": 2})
        for rank in (0, 1)
    ]
    for batch, *parts in zip(whole, *(crops(16, half) for half in halves), strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), batch.images)


def test_every_test_image_comes_once_over_all_processes() -> None:
    keys = []
    for rank in (0, 1):
        reading = Reading(**{**vars(READING), "processes": 2, "rank": rank})
        batches = load_whole_images(Telling(), VOCSemanticConfig(), reading)
        keys += [int(batch.keys[0]) for batch in batches]
    assert sorted(keys) == list(range(5))


def test_large_test_images_shrink_and_their_labels_do_not() -> None:
    (batch, *_) = load_whole_images(Telling(), VOCSemanticConfig(test_longest=15), READING)
    assert batch.images.shape == (1, 3, 10, 15)
    assert batch.labels.shape == (1, 20, 30)


@pytest.fixture(scope="module")
def network() -> SemanticNetwork:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    config = VOCSemanticConfig(head_width=8, head_dilation=1)
    return SemanticNetwork(config, backbone, classes=7).eval()


def test_the_loss_is_the_mean_over_judged_pixels(network: SemanticNetwork) -> None:
    (batch, *_) = crops(40)
    logits = torch.nn.functional.interpolate(
        network(batch.images), size=(40, 40), mode="bilinear", align_corners=False
    ).log_softmax(1)
    judged = [
        -logits[image, int(label), row, column].item()
        for (image, row, column), label in np.ndenumerate(batch.labels.numpy())
        if label != IGNORE
    ]
    loss = network.losses(batch, step=0)["loss_pixel"]
    assert loss.item() == pytest.approx(np.mean(judged), rel=1e-5)


def test_a_batch_that_nobody_judged_has_no_loss(network: SemanticNetwork) -> None:
    (batch, *_) = crops(16)
    blank = SemanticBatch(batch.images, torch.full_like(batch.labels, IGNORE), batch.keys)
    assert network.losses(blank, step=0)["loss_pixel"].item() == 0


def test_classes_of_a_large_photo_are_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, size = torch.randn(2, 5, 4, 6), torch.Size((30, 50))
    at_once = model._strongest(logits, size)
    monkeypatch.setattr(model, "_MOST_LOGITS", 1)
    assert len(at_once.unique()) == 5
    assert torch.equal(at_once, model._strongest(logits, size))


def test_networks_are_dilated_where_they_can_be() -> None:
    task = SemanticTask(VOCSemanticConfig())
    assert task.backbone_config("resnet50").output_stride == 16
    assert task.backbone_config("resnet18").output_stride == 32


def test_lists_are_found_or_named(tmp_path: Path) -> None:
    task = SemanticTask(VOCSemanticConfig())
    task.write_scenes(LabelledDataConfig(scenes_train=3, scenes_test=2, scenes_size=32), tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(VOC_CLASSES))  # else scenes are told from VOC
    found = task.read(LabelledDataConfig(root=tmp_path))
    assert (found.train_images, found.test_images) == (3, 2)
    named = LabelledDataConfig(root=tmp_path, train_lists=("2012:test",))
    assert task.read(named).train_images == 2
    with pytest.raises(UserError, match="one list of VOC 2012"):
        task.read(LabelledDataConfig(root=tmp_path, train_lists=("2012:train", "2012:test")))


def test_to_be_tested_takes_no_list_to_learn_from(tmp_path: Path) -> None:
    task = SemanticTask(VOCSemanticConfig())
    task.write_scenes(LabelledDataConfig(scenes_train=3, scenes_test=2, scenes_size=32), tmp_path)
    (tmp_path / "VOC2012/ImageSets/Segmentation/train.txt").unlink()
    named = LabelledDataConfig(root=tmp_path, test_lists=("2012:test",))
    assert len(task.read_test(named, tmp_path)) == 2


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({}, "has no classes for the 20 x 30 pixels of 0"),
        ({"lost": np.zeros((2, 2), np.uint8)}, "has classes for lost, which is no test image"),
        ({"0": np.full((20, 30), 7, np.uint8)}, "has 7 of type uint8 for a pixel of 0; .* 0 to 6"),
        (
            {"0": np.full((20, 30), -1, np.int16)},
            "has -1 of type int16 for a pixel of 0; .* 0 to 6",
        ),
        ({"0": np.zeros((20, 30))}, "of type float64 for a pixel of 0"),
    ],
)
def test_predictions_of_something_else_are_refused(
    tmp_path: Path, maps: dict[str, np.ndarray], message: str
) -> None:
    write_label_maps(tmp_path / "classes.npz", maps, header={})
    with pytest.raises(UserError, match=message):
        SemanticTask(VOCSemanticConfig()).score(tmp_path, Telling())


def test_numbers_of_any_width_and_order_of_bytes_are_scored(tmp_path: Path) -> None:
    scores = []
    for kind in ("u1", "<i8", ">i2"):
        maps: Any = {str(index): np.ones((20 + index, 30), kind) for index in range(5)}
        write_label_maps(tmp_path / "classes.npz", maps, header={})
        scores.append(SemanticTask(VOCSemanticConfig()).score(tmp_path, Telling()).by_name())
    assert scores[0] == scores[1] == scores[2]
