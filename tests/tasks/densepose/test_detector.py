"""The DensePose branch: what it learns from, what it says, and batches without labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders.tasks.tiny_densepose import (
    TINY_HEAD,
    scenes,
    tiny_densepose_detector,
    training_images,
)
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.detection import fpn_detector
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.densepose.branch import SurfaceMaps
from clove_ssl.tasks.densepose.config import DensePoseHeadConfig, densepose_detector
from clove_ssl.tasks.densepose.detector import (
    DensePoseDetector,
    build_densepose_detector,
    choose_regions,
    read_surfaces,
)
from clove_ssl.tasks.densepose.loading import pack_labels
from clove_ssl.tasks.densepose.losses import (
    DensePoseBatch,
    LossWeights,
    densepose_losses,
    join_labels,
    region_labels,
)
from clove_ssl.tasks.densepose.reader import DensePoseDataset, labels_of
from clove_ssl.tasks.densepose.similarity import (
    FoundPerson,
    LabelledPerson,
    mask_in_box,
    mask_overlaps,
    place_mask,
    point_similarities,
)
from clove_ssl.tasks.densepose.surfaces import FigureSurface, Places
from clove_ssl.tasks.loading.images import read_image
from clove_ssl.tasks.rcnn.regions.pooling import batched_regions
from clove_ssl.tasks.rcnn.regions.targets import TrainingRegions


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DensePoseDataset:
    return scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture
def batch(dataset: DensePoseDataset) -> DensePoseBatch:
    batch = training_images(dataset)[range(2)]
    assert isinstance(batch, DensePoseBatch)
    return batch


def true_regions(batch: DensePoseBatch) -> TrainingRegions:
    """The boxes of all objects as regions."""
    boxes = [objects.boxes for objects in batch.targets]
    classes = torch.cat([objects.classes for objects in batch.targets])
    return TrainingRegions(batched_regions(boxes), classes, torch.arange(len(classes)))


def without_labels(batch: DensePoseBatch) -> DensePoseBatch:
    return DensePoseBatch.of(
        batch, [pack_labels([None] * len(objects), mirror=None) for objects in batch.targets]
    )


def test_a_batch_without_labels_gives_every_parameter_a_gradient(batch: DensePoseBatch) -> None:
    model = tiny_densepose_detector()
    losses = model.losses(without_labels(batch), step=0)
    for name in "SIUV":
        assert losses[f"loss_densepose_{name}"].item() == 0
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    assert all(not p.grad.any() for p in model.surface_head.parameters() if p.grad is not None)


def test_an_image_without_objects_is_no_obstacle(batch: DensePoseBatch) -> None:
    empty = replace(
        without_labels(batch),
        targets=tuple(
            replace(objects, boxes=objects.boxes[:0], classes=objects.classes[:0])
            for objects in batch.targets
        ),
    )
    empty = DensePoseBatch.of(empty, [pack_labels([], mirror=None) for _ in batch.targets])
    losses = tiny_densepose_detector().losses(empty, step=0)
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_labels_reach_every_parameter_of_the_branch(batch: DensePoseBatch) -> None:
    model = tiny_densepose_detector()
    losses = model.surface_losses(model.maps(batch), true_regions(batch), batch)
    sum(losses.values()).backward()
    for name, parameter in model.surface_head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_surface_losses_do_not_depend_on_how_images_are_shared_out(batch: DensePoseBatch) -> None:
    """U and V are sums; two images in one batch weigh as much as in two."""
    model = tiny_densepose_detector().eval()
    halves = [
        DensePoseBatch.of(
            DensePoseBatch(
                batch.images[n : n + 1],
                batch.targets[n : n + 1],
                batch.original_sizes[n : n + 1],
                batch.keys[n : n + 1],
            ),
            batch.labels[n : n + 1],
        )
        for n in (0, 1)
    ]
    whole, *parts = (
        model.surface_losses(model.maps(each), true_regions(each), each)["loss_densepose_U"]
        for each in (batch, *halves)
    )
    assert whole.item() == pytest.approx(sum(part.item() for part in parts) / 2, rel=1e-5)


def test_only_regions_that_overlap_a_labelled_person_are_learned_from(
    batch: DensePoseBatch,
) -> None:
    true = true_regions(batch)
    labels = join_labels(batch.labels, [len(objects) for objects in batch.targets])
    shifted = true.regions.clone()
    shifted[:, 1:] += 0.3 * (true.boxes[:, 2:] - true.boxes[:, :2]).repeat(1, 2)
    background = true._replace(classes=torch.ones_like(true.classes))
    for regions, expected in (
        (true, labels.persons.tolist()),
        (true._replace(regions=shifted), []),
        (background, []),
    ):
        chosen = choose_regions(regions, labels, batch, overlap_above=0.7)
        assert chosen.regions.objects.tolist() == expected
        assert labels.persons[chosen.owners].tolist() == expected


def test_losses_equal_a_slow_calculation() -> None:
    draws = np.random.default_rng(0)
    side, count = 12, 30
    maps = SurfaceMaps(
        *(torch.from_numpy(draws.normal(size=(1, c, side, side))) for c in (2, 25, 25, 25))
    )
    box, truth = torch.tensor([[2.0, 3.0, 50.0, 60.0]]), torch.tensor([[0.0, 5.0, 48.0, 70.0]])
    mask = torch.zeros(1, 256, 256, dtype=torch.bool)
    mask[0, 64:192, 64:192] = True
    labels = join_labels([pack_labels([], mirror=None)], [0])._replace(
        persons=torch.tensor([0]),
        masks=mask,
        has_mask=torch.tensor([True]),
        owners=torch.zeros(count, dtype=torch.int64),
        places=torch.from_numpy(draws.uniform(0, 256, (count, 2))),
        parts=torch.from_numpy(draws.integers(0, 25, count)),
        surface=torch.from_numpy(draws.random((count, 2))),
    )
    owners = torch.tensor([0])
    targets = region_labels(labels, owners, boxes=box.double(), truth=truth.double(), side=side)
    found = densepose_losses(maps, targets, weights=LossWeights(1.0, 1.0, 1.0))
    expected = slow_losses(maps, labels, box[0].tolist(), truth[0].tolist(), side)
    for name, value in expected.items():
        assert found[f"loss_densepose_{name}"].item() == pytest.approx(value, rel=1e-9), name


def slow_losses(maps: SurfaceMaps, labels, box: list, truth: list, side: int) -> dict[str, float]:
    """Point by point: bilinear values, cross entropy of the part, smooth L1 of U and V."""
    part_terms, u_terms, v_terms = [], [], []
    for (px, py), part, (u, v) in zip(
        labels.places.tolist(), labels.parts.tolist(), labels.surface.tolist(), strict=True
    ):
        x = truth[0] + px * (truth[2] - truth[0]) / 256 - box[0]
        y = truth[1] + py * (truth[3] - truth[1]) / 256 - box[1]
        width, height = box[2] - box[0], box[3] - box[1]
        if not (0 <= x < width and 0 <= y < height):
            continue
        at = (y * side / height, x * side / width)
        logits = [bilinear(maps.part[0, c], at) for c in range(25)]
        part_terms.append(np.log(np.exp(logits).sum()) - logits[part])
        if part:
            u_terms.append(smooth(bilinear(maps.u[0, part], at) - u))
            v_terms.append(smooth(bilinear(maps.v[0, part], at) - v))
    person_terms = []
    for row in range(side):
        for column in range(side):
            x = box[0] + column / side * (box[2] - box[0])
            y = box[1] + row / side * (box[3] - box[1])
            # The corners of the mask's first and last pixels lie on the edges of the box.
            across = round((x - truth[0]) / (truth[2] - truth[0]) * 255)
            down = round((y - truth[1]) / (truth[3] - truth[1]) * 255)
            inside = 0 <= across < 256 and 0 <= down < 256
            target = int(inside and bool(labels.masks[0, down, across]))
            pair = maps.person[0, :, row, column].tolist()
            person_terms.append(np.log(np.exp(pair).sum()) - pair[target])
    return {
        "S": float(np.mean(person_terms)),
        "I": float(np.mean(part_terms)),
        "U": sum(u_terms),
        "V": sum(v_terms),
    }


def bilinear(values: Tensor, at: tuple[float, float]) -> float:
    last = len(values) - 1
    y, x = (min(each, last) for each in at)
    top, left = min(int(y), last), min(int(x), last)
    bottom, right = min(top + 1, last), min(left + 1, last)
    down, across = y - top, x - left
    upper = values[top, left] * (1 - across) + values[top, right] * across
    lower = values[bottom, left] * (1 - across) + values[bottom, right] * across
    return float(upper * (1 - down) + lower * down)


def smooth(distance: float) -> float:
    return 0.5 * distance**2 if abs(distance) < 1 else abs(distance) - 0.5


def test_the_branch_can_learn_a_figure(batch: DensePoseBatch) -> None:
    """A region's labels, losses and read-out agree about where a pixel is."""
    model = tiny_densepose_detector()
    torch.manual_seed(0)
    head = DensePoseHeadConfig(decoder_width=16, convs=1, width=32, pooled_side=14)
    model = build_densepose_detector(model.config, head, model.backbone).eval()
    regions = true_regions(batch)
    with torch.no_grad():
        levels = model.maps(batch)
    optimizer = torch.optim.Adam(model.surface_head.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        sum(model.surface_losses(levels, regions, batch).values()).backward()
        optimizer.step()
    points, masks = agreement(model, levels, batch)
    assert min(points) > 0.6
    assert min(masks) > 0.6


def agreement(
    model: DensePoseDetector, levels: list[Tensor], batch: DensePoseBatch
) -> tuple[list[float], list[float]]:
    """GPS and mask overlap of labelled persons, given their boxes."""
    regions = true_regions(batch)
    maps = model.surface_head(levels[:-1], regions.regions)
    surfaces = list(read_surfaces(maps, regions.boxes))
    labels = join_labels(batch.labels, [len(objects) for objects in batch.targets])
    points, masks = [], []
    size = batch.sizes[0]
    for row, person in enumerate(labels.persons.tolist()):
        x0, y0, x1, y1 = regions.boxes[person].double().tolist()
        box = (x0, y0, x1 - x0, y1 - y0)
        own = labels.owners == row
        true = LabelledPerson(
            box,
            box[2] * box[3],
            points=labels.places[own].double().numpy(),
            places=Places(labels.parts[own].numpy(), labels.surface[own].double().numpy()),
        )
        found = FoundPerson(box, 1.0, surfaces[person].numpy())
        points.append(point_similarities([found], [true], FigureSurface())[0, 0])
        mine = place_mask(found.surface[0] > 0, box, size)
        theirs = mask_in_box(labels.masks[row].numpy(), box, size)
        masks.append(mask_overlaps([mine], [theirs], np.zeros(1, bool))[0, 0])
    return points, masks


def test_mirrored_images_have_mirrored_labels(dataset: DensePoseDataset) -> None:
    images = training_images(dataset)
    seen: dict[int, dict[bool, tuple]] = {}
    for start in range(0, 40, 2):
        batch = images[range(start, start + 2)]
        draws = images._order.draws(start, start + 2)
        for index, image, labels in zip(draws.indices, batch.images, batch.labels, strict=True):
            plain = is_plain(image, dataset, int(index))
            seen.setdefault(int(index), {})[plain] = (image, labels)
    both = [each for each in seen.values() if len(each) == 2]
    assert both
    for each in both:
        (image, labels), (mirror_image, mirrored) = each[True], each[False]
        assert torch.equal(image.flip(2), mirror_image)
        assert torch.equal(labels.masks.flip(2), mirrored.masks)
        torch.testing.assert_close(labels.places[:, 0], 256 - mirrored.places[:, 0])
        torch.testing.assert_close(labels.places[:, 1], mirrored.places[:, 1])
        torch.testing.assert_close(labels.surface[:, 0], mirrored.surface[:, 0])


def is_plain(image: Tensor, dataset: DensePoseDataset, index: int) -> bool:
    sample = dataset.samples[index]
    pixels = torch.from_numpy(read_image(sample.image, (sample.height, sample.width)).copy())
    return torch.equal(image, pixels.permute(2, 0, 1))


def test_detections_carry_surfaces_of_their_boxes(batch: DensePoseBatch) -> None:
    model = tiny_densepose_detector().eval()
    test = replace(batch, targets=(), labels=(), original_sizes=((100, 140), (64, 64)))
    for found in model.detect(test):
        assert len(found.surfaces) == len(found) > 0
        sides = (found.boxes[:, 2:].double() - found.boxes[:, :2].double()).long().clamp(min=1)
        for surface, (width, height) in zip(found.surfaces, sides.tolist(), strict=True):
            assert tuple(surface.shape) == (3, height, width)
            assert surface.dtype == torch.uint8
            assert int(surface[0].max()) <= 24
            assert not surface[1:, surface[0] == 0].any()


def test_an_image_in_which_nothing_is_found_is_no_obstacle(batch: DensePoseBatch) -> None:
    model = tiny_densepose_detector().eval()
    model.config = replace(model.config, read_out=replace(model.config.read_out, score_above=1.0))
    assert [len(found) for found in model.detect(replace(batch, targets=(), labels=()))] == [0, 0]


def test_a_surface_is_that_of_the_strongest_part() -> None:
    maps = SurfaceMaps(*(torch.zeros(1, c, 4, 4) for c in (2, 25, 25, 25)))
    maps.person[0, 1, :, 2:] = 1.0  # the right half shows a person
    maps.person[0, 0, :, :2] = 1.0
    maps.part[0, 7] = 2.0
    maps.u[0, 7], maps.u[0, 0], maps.v[0, 7] = 0.5, 0.9, 1.7
    (surface,) = read_surfaces(maps, torch.tensor([[1.0, 2.0, 9.9, 6.5]]))
    assert tuple(surface.shape) == (3, 4, 8)
    assert surface[:, 2, 7].tolist() == [7, 127, 255]
    assert surface[:, 2, 0].tolist() == [0, 0, 0]


def test_other_heads_beside_the_branch_are_refused() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    with pytest.raises(UserError, match="DensePose needs a pyramid and no other head"):
        build_densepose_detector(fpn_detector(), TINY_HEAD, backbone)


def test_the_published_detector_has_two_layers_and_the_older_pooling() -> None:
    config = densepose_detector()
    assert (config.box.convs, config.box.fcs, config.box.pooling) == (0, 2, "legacy")
    assert (config.backbone_norm, config.neck_norm, config.head_norm) == ("batch", "batch", "none")
    assert not config.masks
    assert not config.keypoints


def test_labels_are_packed_with_their_owners(dataset: DensePoseDataset) -> None:
    persons = [labels_of(p) for sample in dataset.samples for p in sample.annotations]
    known = [each for each in persons if each is not None]
    packed = pack_labels(persons, mirror=None)
    assert packed.persons.tolist() == [n for n, each in enumerate(persons) if each is not None]
    for row, each in enumerate(known):
        np.testing.assert_allclose(packed.places[packed.owners == row].numpy(), each.points, 1e-6)
        np.testing.assert_array_equal(packed.masks[row].numpy(), each.mask())
