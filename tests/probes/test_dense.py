"""The dense probe: fair, exact where it can be, and blind to what it must not see."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.labels.pixels import IGNORE, SceneLabels
from clove_ssl.errors import UserError
from clove_ssl.layers import normalization
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.probes.classifiers import PENALTIES, choose_and_fit, fit
from clove_ssl.probes.dense import cell_labels, dense_probe
from clove_ssl.probes.features import FrozenFeatures
from clove_ssl.tasks.semantic.scores import accuracy, class_iou, confusion, iou_interval, mean_iou

COLOURS = torch.tensor([[220, 40, 40], [40, 220, 40], [40, 40, 220]], dtype=torch.uint8)


@dataclasses.dataclass
class Patches:
    """Images of coloured patches whose class is the colour, or nothing the image shows."""

    count: int
    first: int = 0
    readable: bool = True
    margin: int = 0  # unjudged columns on the left
    names: tuple[str, ...] = ("red", "green", "blue")

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.names

    def __len__(self) -> int:
        return self.count

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.first + index)
        shown = torch.randint(3, (4, 4), generator=generator)
        told = shown if self.readable else torch.randint(3, (4, 4), generator=generator)
        labels = told.repeat_interleave(16, 0).repeat_interleave(16, 1).byte()  # (64, 64)
        labels[:, : self.margin] = IGNORE
        pixels = COLOURS[shown].permute(2, 0, 1)  # (3, 4, 4)
        return pixels.repeat_interleave(16, 1).repeat_interleave(16, 2), labels


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(name="resnet18", stage="c2", zero_init_last=False))


def test_what_features_show_is_found_and_what_they_do_not_is_not(backbone: Backbone) -> None:
    found = dense_probe(backbone, Patches(12), Patches(6, 100), size=64)
    guessed = dense_probe(
        backbone, Patches(12, readable=False), Patches(6, 100, readable=False), size=64
    )
    assert found.miou > 0.9
    assert found.accuracy > 0.95
    assert guessed.miou < 0.4  # three classes by chance: a fifth of the union
    assert found.interval[0] <= found.miou <= found.interval[1]
    assert set(found.per_class) == {"red", "green", "blue"}
    assert found.cells == 12 * 16 * 16


def test_a_seed_gives_one_result(backbone: Backbone) -> None:
    sets = Patches(6), Patches(4, 100)
    first = dense_probe(backbone, *sets, size=64, max_cells=300, seed=3)
    torch.manual_seed(99)
    assert dense_probe(backbone, *sets, size=64, max_cells=300, seed=3) == first
    assert dense_probe(backbone, *sets, size=64, max_cells=300, seed=4) != first


def test_the_backbone_is_left_alone(backbone: Backbone) -> None:
    before = copy.deepcopy(backbone.state_dict())
    backbone.train()
    dense_probe(backbone, Patches(3), Patches(2, 100), size=64, stage="c3")
    assert backbone.training
    assert backbone.stage == "c2"
    assert all(torch.equal(before[name], now) for name, now in backbone.state_dict().items())


def test_running_statistics_make_no_difference(backbone: Backbone) -> None:
    other = copy.deepcopy(backbone)
    for module in other.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-3, 3)
            module.running_var.uniform_(0.1, 9)
    sets = Patches(4), Patches(2, 100)
    assert dense_probe(other, *sets, size=64) == dense_probe(backbone, *sets, size=64)


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_synchronised_batch_norm_is_probed_like_plain(
    backbone: Backbone, device_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synchronize_norms(copy.deepcopy(backbone), device_type)
    # Only the first process of a run probes, and it must not wait for the others.
    monkeypatch.setattr(normalization, "processes", lambda: 2)
    assert isinstance(synced, Backbone)
    sets = Patches(4), Patches(2, 100)
    assert dense_probe(synced, *sets, size=64) == dense_probe(backbone, *sets, size=64)


def test_calibration_leaves_unit_statistics_on_its_images(backbone: Backbone) -> None:
    images = torch.stack([Patches(8).load(index)[0] for index in range(8)])
    extract = FrozenFeatures(backbone, ["c2"], device="cpu")
    extract.calibrate(images)
    frozen = extract._backbone
    inputs: list[Tensor] = []
    frozen.body.bn1.register_forward_hook(lambda _, args, __: inputs.append(args[0]))
    extract(images)
    assert not frozen.body.bn1.training
    torch.testing.assert_close(frozen.body.bn1.running_mean, inputs[0].mean((0, 2, 3)))


def test_stages_are_stacked_at_the_finest_size(backbone: Backbone) -> None:
    extract = FrozenFeatures(backbone, ("c3", "c2", "c5"), device="cpu")
    images = torch.stack([Patches(1).load(0)[0]])
    stacked = extract(images)
    assert stacked.shape == (1, 128 + 64 + 512, 16, 16)
    told: list[int] = []  # what a terminal shows meanwhile
    alone = FrozenFeatures(backbone, ("c2",), device="cpu", seen=told.append)(images)
    assert told == [len(images)]
    torch.testing.assert_close(stacked[:, 128:192], alone)
    coarse = FrozenFeatures(backbone, ("c5",), device="cpu")(images)
    torch.testing.assert_close(
        stacked[:, 192:], F.interpolate(coarse, (16, 16), mode="bilinear", align_corners=False)
    )


def test_several_stages_can_be_probed_together(backbone: Backbone) -> None:
    result = dense_probe(backbone, Patches(4), Patches(2, 100), size=64, stage=("c3", "c2"))
    assert result.cells == 4 * 16 * 16


def test_unjudged_pixels_neither_teach_nor_count(backbone: Backbone) -> None:
    clean = dense_probe(backbone, Patches(8), Patches(4, 100), size=64)
    hidden = dense_probe(backbone, Patches(8, margin=24), Patches(4, 100, margin=24), size=64)
    assert hidden.cells == 8 * 16 * 10 < clean.cells
    assert hidden.miou > 0.9


def test_images_of_another_size_are_scaled(backbone: Backbone) -> None:
    result = dense_probe(backbone, Patches(8), Patches(4, 100), size=96)
    assert result.cells == 8 * 24 * 24
    assert result.miou > 0.9


def test_scenes_can_be_probed(backbone: Backbone) -> None:
    train, test = SceneLabels(6, 64, "train"), SceneLabels(4, 64, "test")
    result = dense_probe(backbone, train, test, size=64)
    assert 0 < result.miou < 1
    assert set(result.per_class) <= set(train.class_names)


def test_limits_on_images_and_cells_hold(backbone: Backbone) -> None:
    few = dense_probe(backbone, Patches(9), Patches(5, 100), size=64, max_train=4, max_test=2)
    assert few.cells == 4 * 16 * 16
    sampled = dense_probe(backbone, Patches(4), Patches(2, 100), size=64, max_cells=100)
    assert sampled.cells == 100


def test_an_unknown_stage_names_the_known_ones(backbone: Backbone) -> None:
    with pytest.raises(UserError, match="no stage c6; it has c2, c3, c4, c5"):
        dense_probe(backbone, Patches(2), Patches(1), size=64, stage="c6")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (Patches(4), Patches(4, names=("a", "b", "c")), "different classes"),
        (Patches(1), Patches(4), "1 training"),
        (Patches(3, margin=64), Patches(4), "No cell"),
    ],
)
def test_useless_sets_are_refused(
    backbone: Backbone, train: Patches, test: Patches, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        dense_probe(backbone, train, test, size=64)


def test_the_label_of_a_cell_is_that_of_at_least_half_its_pixels() -> None:
    labels = torch.tensor(
        [
            [1, 1, 0, 2, 255, 255],
            [1, 0, 1, 3, 255, 2],
            [0, 0, 2, 255, 1, 1],
            [1, 1, 255, 2, 1, 255],
        ],
        dtype=torch.uint8,
    )
    expected = [[1, IGNORE, IGNORE], [0, 2, 1]]
    assert cell_labels(labels[None], (2, 3), classes=4)[0].tolist() == expected


def test_the_fit_is_at_the_minimum_of_its_objective() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(300, 5, generator=generator, dtype=torch.float64) * 4 + 2
    labels = (features[:, 0] > 3).long() + (features[:, 1] > 6).long()
    found = fit(features, labels, classes=3, penalty=0.01)
    weight = found.weight.clone().requires_grad_()
    bias = found.bias.clone().requires_grad_()
    scaled = (features - features.mean(0)) / features.std(0)
    per_cell = F.cross_entropy(scaled @ weight.T + bias, labels, reduction="none")
    importance = (1 / labels.bincount().double().sqrt())[labels]
    loss = (per_cell * importance).sum() / importance.sum() + 0.005 * (weight**2).sum()
    loss.backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert max(weight.grad.abs().max().item(), bias.grad.abs().max().item()) < 1e-4


def test_a_channel_that_never_moves_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    # In float64: a float32 optimum is so flat that another processor ends a little beside it.
    features = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    labels = (features[:, 0] > 0).long()
    constant = torch.cat([features, torch.full_like(features[:, :1], 7.0)], dim=1)
    logits = fit(features, labels, classes=2, penalty=0.1).cell_logits(features)
    constant[:, 3] += 5e-7 * labels  # what rounding may leave of a channel
    other = fit(constant, labels, classes=2, penalty=0.1).cell_logits(constant)
    torch.testing.assert_close(other, logits)


@pytest.mark.parametrize("noise", [0.0, 2.0, 8.0])
def test_held_out_cells_choose_the_penalty(noise: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(300, 100, generator=generator)
    blurred = features[:, :20].sum(1) + noise * torch.randn(300, generator=generator)
    labels, held_out = (blurred > 0).long(), torch.arange(300) >= 200
    scores = {}
    for penalty in PENALTIES:
        trial = fit(features[:200], labels[:200], classes=2, penalty=penalty)
        guesses = trial.cell_logits(features[200:]).argmax(1)
        right = [((guesses == k) & (labels[200:] == k)).sum().item() for k in (0, 1)]
        either = [((guesses == k) | (labels[200:] == k)).sum().item() for k in (0, 1)]
        scores[penalty] = (right[0] / either[0] + right[1] / either[1]) / 2
    found, penalty = choose_and_fit(features, labels, held_out, classes=2)
    assert scores[penalty] == max(scores.values()) > min(scores.values())
    assert torch.equal(found.weight, fit(features, labels, classes=2, penalty=penalty).weight)


def test_scores_are_those_of_a_count_by_hand() -> None:
    truth = torch.tensor([0, 0, 0, 1, 1, 2])
    predicted = torch.tensor([0, 0, 1, 1, 2, 2])
    counts = confusion(truth, predicted, classes=5)
    assert class_iou(counts) == pytest.approx({0: 2 / 3, 1: 1 / 3, 2: 1 / 2})
    assert mean_iou(counts) == pytest.approx((2 / 3 + 1 / 3 + 1 / 2) / 3)
    assert accuracy(counts) == pytest.approx(4 / 6)


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    counts = confusion(torch.tensor([0, 0]), torch.tensor([0, 1]), classes=3)
    assert class_iou(counts) == {0: 0.5, 1: 0.0}


def test_the_interval_is_wide_for_unequal_images_and_empty_for_equal_ones() -> None:
    right = confusion(torch.tensor([0, 1]), torch.tensor([0, 1]), classes=2)
    wrong = confusion(torch.tensor([0, 1]), torch.tensor([1, 0]), classes=2)
    generator = torch.Generator().manual_seed(0)
    assert iou_interval(torch.stack([right] * 9), generator) == (1.0, 1.0)
    low, high = iou_interval(torch.stack([right, wrong] * 10), generator)
    assert 0.1 < low < 1 / 3 < high < 0.7


def test_rare_classes_do_not_lift_the_interval_above_the_score() -> None:
    """Thirty classes that are never found, each in one image of sixty."""
    images = []
    for number in range(60):
        truth = torch.tensor([0, 0, 1 + number % 30])
        predicted = torch.tensor([0, 31 * (number % 2), 0])
        images.append(confusion(truth, predicted, classes=32))
    by_image = torch.stack(images)
    low, high = iou_interval(by_image, torch.Generator().manual_seed(0))
    assert low < mean_iou(by_image.sum(0)) < high
    assert high < 0.03  # one class of 32 is found half of the time
