"""Batches of a detector: what is in them, who gets which, and what stops a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.labels.small_datasets import random_dataset
from PIL import Image

from clove_ssl.data.order import BatchOrder
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.detection.config import COCOPyramidConfig
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample
from clove_ssl.tasks.loading.batches import (
    LoadedBatches,
    load_test_batches,
    load_training_batches,
    training_order,
)
from clove_ssl.tasks.loading.geometry import Placement
from clove_ssl.tasks.loading.images import InputSizes, TrainingImages, check_images
from clove_ssl.tasks.loading.selection import (
    Labels,
    check_testable,
    select_targets,
    take_fraction,
)
from clove_ssl.tasks.loading.targets import PackedObjects, make_targets
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.tasks.rcnn.pixels import resized_shape

SIZES = InputSizes((24, 32, 48), longest=80)
BATCH = 4


def training_batches(
    dataset: DetectionDataset,
    *,
    labels: Labels = "masks",
    processes: int = 1,
    rank: int = 0,
    micro_batch: int = BATCH,
    start: int = 0,
    stop: int = 6,
    workers: int = 0,
    mirror: bool = True,
) -> LoadedBatches:
    order = training_order(dataset, seed=3, group=2)
    images = TrainingImages(dataset, labels, sizes=SIZES, order=order, mirror=mirror)
    plan = BatchOrder(
        order, batch_size=BATCH, processes=processes, rank=rank, micro_batch=micro_batch
    )
    return load_training_batches(images, plan, start_step=start, total_steps=stop, workers=workers)


def plain(value: object) -> object:
    """A value as numbers that can be compared."""
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value


def by_key(batches: list[DetectionBatch]) -> dict[int, tuple[torch.Tensor, object]]:
    """Pixels and targets of every image."""
    return {
        int(key): (image, plain(tuple(vars(target.prepared()).values())))
        for batch in batches
        for key, image, target in zip(batch.keys, batch.images, batch.targets, strict=True)
    }


def assert_same(
    mine: dict[int, tuple[torch.Tensor, object]], theirs: dict[int, tuple[torch.Tensor, object]]
) -> None:
    assert mine.keys() == theirs.keys()
    for key, (image, target) in mine.items():
        assert torch.equal(image, theirs[key][0])
        assert target == theirs[key][1]


@pytest.fixture
def dataset(tmp_path: Path) -> DetectionDataset:
    return random_dataset(tmp_path / "images")


def test_batches_hold_resized_images_and_their_objects(dataset: DetectionDataset) -> None:
    seen = []
    for batch in training_batches(dataset):
        assert len(batch) == BATCH
        for image, target, original in zip(
            batch.images, batch.targets, batch.original_sizes, strict=True
        ):
            assert image.dtype == torch.uint8
            shapes = [resized_shape(*original, short_side=s, longest=80) for s in (24, 32, 48)]
            assert tuple(image.shape[1:]) in shapes
            seen.append(min(image.shape[1:]))
            assert target.polygons is not None
            assert len(target) == len(target.polygons) == len(target.boxes)
            assert target.bitmaps is None
            assert target.boxes[:, 2].max() <= image.shape[2]
            assert target.boxes[:, 3].max() <= image.shape[1]
    assert len(set(seen)) >= 3


def test_a_task_deals_wide_and_tall_images_into_batches_of_one_kind() -> None:
    shapes = [(30, 40), (40, 30), (30, 30)] * 8
    samples = tuple(
        Sample(Path(f"{number}.png"), number, width=width, height=height, annotations=())
        for number, (height, width) in enumerate(shapes)
    )
    task = COCOPyramidConfig().build()
    order = task.training_order(DetectionDataset(samples, ("thing",), (1,)), seed=0, group=BATCH)
    for start in range(0, 48, BATCH):
        batch = order.draws(start, start + BATCH).indices.tolist()
        assert len({samples[index].width > samples[index].height for index in batch}) == 1


def test_a_strip_keeps_a_pixel() -> None:
    assert resized_shape(1, 5000, short_side=800, longest=1333) == (1, 1333)


def test_a_restart_at_any_step_continues_exactly(dataset: DetectionDataset) -> None:
    everything = list(training_batches(dataset, labels="keypoints"))
    for start in (1, 4):
        rest = list(training_batches(dataset, labels="keypoints", start=start))
        assert_same(by_key(rest), by_key(everything[start:]))


def test_processes_share_the_batches_of_one(dataset: DetectionDataset) -> None:
    alone = by_key(list(training_batches(dataset)))
    for processes, micro_batch in ((2, 2), (4, 1), (2, 1)):
        shared: dict[int, tuple[torch.Tensor, object]] = {}
        for rank in range(processes):
            part = by_key(
                list(
                    training_batches(
                        dataset, processes=processes, rank=rank, micro_batch=micro_batch
                    )
                )
            )
            assert not part.keys() & shared.keys()
            shared |= part
        assert_same(shared, alone)


def test_workers_change_nothing(dataset: DetectionDataset) -> None:
    alone = by_key(list(training_batches(dataset, stop=3)))
    assert_same(by_key(list(training_batches(dataset, stop=3, workers=2))), alone)


def test_pixels_are_those_of_pillow(dataset: DetectionDataset) -> None:
    (batch,) = load_test_batches(dataset, sizes=InputSizes((30,), longest=50), batch_size=99)
    assert batch.targets == ()
    for key, image, original in zip(batch.keys, batch.images, batch.original_sizes, strict=True):
        sample = dataset.samples[int(key)]
        assert original == (sample.height, sample.width)
        height, width = resized_shape(*original, short_side=30, longest=50)
        picture = Image.open(sample.image).resize((width, height), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), np.asarray(picture))


@pytest.mark.parametrize(("processes", "size", "workers"), [(1, 1, 0), (3, 2, 0), (2, 1, 1)])
def test_every_test_image_comes_exactly_once(
    dataset: DetectionDataset, processes: int, size: int, workers: int
) -> None:
    keys = []
    for rank in range(processes):
        batches = load_test_batches(
            dataset,
            sizes=InputSizes((24,)),
            batch_size=size,
            processes=processes,
            rank=rank,
            workers=workers,
        )
        keys += [int(key) for batch in batches for key in batch.keys]
    assert sorted(keys) == list(range(len(dataset.samples)))


def test_masks_of_runs_become_bitmaps_that_fill_their_boxes(tmp_path: Path) -> None:
    dataset = random_dataset(tmp_path, runs=True)
    for batch in training_batches(dataset):
        for image, target in zip(batch.images, batch.targets, strict=True):
            assert target.bitmaps is not None
            assert target.polygons is None
            assert tuple(target.bitmaps.shape) == (len(target), *image.shape[1:])
            for bits, box in zip(target.bitmaps, target.boxes, strict=True):
                rows, columns = bits.any(1).nonzero(), bits.any(0).nonzero()
                extent = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                np.testing.assert_allclose(extent, box, atol=0.51)


def test_an_image_with_runs_and_polygons_gets_bitmaps_of_both(tmp_path: Path) -> None:
    runs = random_dataset(tmp_path, runs=True, images=1).samples[0]
    polygons = random_dataset(tmp_path, images=1).samples[0]
    mixed = dataclasses.replace(runs, annotations=(runs.annotations[0], *polygons.annotations[:1]))
    (objects,) = PackedObjects([mixed], "masks")
    target = make_targets(objects, Placement(objects.size, (80, 120)))
    assert target.bitmaps is not None
    assert torch.equal(target.bitmaps[0], target.bitmaps[1])


def test_keypoints_lie_in_the_middle_of_their_pixels(tmp_path: Path) -> None:
    points = ((3.0, 4.0, 2), (0.0, 0.0, 0))
    thing = Annotation((0.0, 0.0, 10.0, 10.0), 0, 100.0, keypoints=points)
    sample = Sample(
        tmp_path / "a.png", 1, 20, 10, (thing, dataclasses.replace(thing, keypoints=None))
    )
    (objects,) = PackedObjects([sample], "keypoints", keypoints=2)
    plain = make_targets(objects, Placement((10, 20), (20, 40)), mirror_order=(1, 0))
    assert plain.keypoints is not None
    assert plain.keypoints.tolist() == [[[7, 9, 2], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    turned = make_targets(
        objects, Placement((10, 20), (20, 40), mirrored=True), mirror_order=(1, 0)
    )
    assert turned.keypoints is not None
    assert turned.keypoints[0].tolist() == [[0, 0, 0], [33, 9, 2]]


def test_objects_of_which_nothing_is_left_are_no_targets(tmp_path: Path) -> None:
    inside = Annotation((1.0, 1.0, 5.0, 5.0), 0, 16.0, mask=((1.0, 1.0, 5.0, 1.0, 5.0, 5.0),))
    outside = dataclasses.replace(inside, box=(-1.0, 0.0, 0.0, 5.0), category=1)
    sample = Sample(tmp_path / "a.png", 1, 20, 10, (outside, inside))
    (objects,) = PackedObjects([sample], "masks")
    target = make_targets(objects, Placement((10, 20), (10, 20)))
    assert target.classes.tolist() == [0]
    assert target.polygons is not None
    assert len(target.polygons) == 1
    (empty,) = PackedObjects([dataclasses.replace(sample, annotations=())], "masks")
    assert len(make_targets(empty, Placement((10, 20), (10, 20)))) == 0


def test_mirroring_can_be_switched_off(dataset: DetectionDataset) -> None:
    nameless = dataclasses.replace(dataset, keypoint_names=("left_hand",) * 17)
    with pytest.raises(UserError, match="switch mirroring off"):
        training_batches(nameless, labels="keypoints")
    for batch in training_batches(nameless, labels="keypoints", mirror=False, stop=2):
        assert batch.targets[0].keypoints is not None


def test_crowds_and_images_without_targets_are_left_out_and_counted(
    dataset: DetectionDataset,
) -> None:
    first, second, third, *others = dataset.samples
    crowd = dataclasses.replace(first.annotations[0], crowd=True)
    bare = dataclasses.replace(second.annotations[0], mask=None, keypoints=None)
    samples = (
        dataclasses.replace(first, annotations=(crowd,)),
        dataclasses.replace(second, annotations=(bare,)),
        dataclasses.replace(third, annotations=(*third.annotations, crowd)),
        *others,
    )
    changed = dataclasses.replace(dataset, samples=samples)
    boxes, masks, points = (
        select_targets(changed, labels) for labels in ("boxes", "masks", "keypoints")
    )
    assert boxes.images_left_out == 1
    assert masks.images_left_out == 2
    assert points.images_left_out == 2
    assert masks.objects_without_mask == 1
    for selection in (boxes, masks, points):
        assert selection.crowds_left_out == 2
        assert not any(t.crowd for s in selection.dataset.samples for t in s.annotations)
    assert "left out: 2 images without a target, 2 crowds, 1 objects" in masks.describe()


def test_annotations_of_another_task_are_refused(dataset: DetectionDataset) -> None:
    samples = tuple(
        dataclasses.replace(
            sample,
            annotations=tuple(
                dataclasses.replace(thing, mask=None, keypoints=None)
                for thing in sample.annotations
            ),
        )
        for sample in dataset.samples
    )
    bare = dataclasses.replace(dataset, samples=samples)
    assert len(select_targets(bare, "boxes").dataset.samples) == len(samples)
    with pytest.raises(UserError, match="None of the 7 training images has an object with a mask"):
        select_targets(bare, "masks")
    with pytest.raises(UserError, match="labelled keypoint"):
        select_targets(bare, "keypoints")


def test_objects_with_other_keypoints_than_the_named_ones_are_refused(
    dataset: DetectionDataset,
) -> None:
    nameless = dataclasses.replace(dataset, keypoint_names=())
    with pytest.raises(UserError, match="has 17 keypoints, but the categories name 0"):
        select_targets(nameless, "keypoints")
    with pytest.raises(UserError, match="has 17 keypoints, but the categories name 0"):
        check_testable(nameless, "keypoints")
    assert select_targets(nameless, "masks").images_left_out == 0


def test_a_larger_fraction_holds_every_smaller_one(dataset: DetectionDataset) -> None:
    chosen = [take_fraction(dataset, share, seed=4).samples for share in (0.01, 0.3, 0.7, 1)]
    assert [len(samples) for samples in chosen] == [1, 2, 5, 7]
    for smaller, larger in zip(chosen, chosen[1:], strict=False):
        assert {s.identifier for s in smaller} <= {s.identifier for s in larger}
    assert chosen[-1] == dataset.samples
    others = {take_fraction(dataset, 0.3, seed=seed).samples for seed in range(8)}
    assert len(others) > 1
    for share in (0, -1, 1.5):
        with pytest.raises(UserError, match="--fraction 0.1"):
            take_fraction(dataset, share, seed=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_stops_the_run_with_its_name_and_no_traceback(
    dataset: DetectionDataset, workers: int
) -> None:
    path = dataset.samples[2].image
    path.write_bytes(path.read_bytes()[:-30])
    for batches in (
        training_batches(dataset, workers=workers),
        load_test_batches(dataset, sizes=InputSizes((24,)), workers=workers),
    ):
        with pytest.raises(UserError) as caught:
            list(batches)
        assert str(caught.value).startswith(f"{path} cannot be read: ")
        assert "Traceback" not in str(caught.value)


def test_an_image_of_another_size_is_refused(dataset: DetectionDataset) -> None:
    sample = dataset.samples[1]
    Image.new("RGB", (50, 64)).save(sample.image)
    with pytest.raises(UserError, match=r"1\.png has 50 x 64 pixels, .* says 48 x 64"):
        list(training_batches(dataset))


def test_files_can_be_checked_before_a_run(dataset: DetectionDataset) -> None:
    check_images(dataset.samples)
    Image.new("RGB", (50, 64)).save(dataset.samples[1].image)
    with pytest.raises(UserError, match=r"1\.png has 50 x 64 pixels"):
        check_images(dataset.samples)
    dataset.samples[0].image.write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match=r"0\.png cannot be read: a web page"):
        check_images(dataset.samples)
    dataset.samples[0].image.unlink()
    with pytest.raises(UserError, match=r"0\.png cannot be read: No such file"):
        check_images(dataset.samples)


def test_real_images_and_masks_are_read(data_folder: Path) -> None:
    root = data_folder / "coco"
    dataset = read_coco(root / "annotations" / "instances_train.json", root / "images" / "train")
    selection = select_targets(dataset, "masks")
    check_images(selection.dataset.samples[:50])
    for batch in training_batches(selection.dataset, stop=3):
        for target in batch.targets:
            assert target.polygons is not None
            assert (target.boxes[:, 2:] > target.boxes[:, :2]).all()
