"""Which probes images allow, and that all of them run on each layout."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.scenes import SceneSource, paint_scene
from clove_ssl.errors import UserError
from clove_ssl.probes.data import open_probe_data, readable_images
from clove_ssl.probes.keypoints import SMALLEST, crop_persons, persons_of_scenes
from clove_ssl.probes.suite import Amounts, ProbeSuite
from clove_ssl.probes.views import draw_pairs
from clove_ssl.tasks.detection.scenes import write_coco_scenes

FEW = Amounts(pairs=6, classes=(40, 20), masks=(6, 4), persons=(6, 4))
LABEL_FREE = {"correspondence", "effective_rank", "alignment", "uniformity"}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(name="resnet18", stage="c3", zero_init_last=False))


def kinds_of(data: str | Path, backbone: Backbone, **options: object) -> set[str]:
    opened = open_probe_data(str(data), size=64, counts=(6, 4), **options)  # type: ignore[arg-type]
    scores = ProbeSuite(opened, size=64, amounts=FEW).measure(backbone, ("c3",), device="cpu")
    assert all(np.isfinite(score.value) for score in scores.values())
    return set(scores)


def colour(path: Path, shade: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    grain = np.random.default_rng(len(str(path))).integers(0, 40, (48, 48, 3))
    Image.fromarray((grain + shade).astype(np.uint8)).save(path)


def class_folders(root: Path, count: int) -> None:
    for number in range(count):
        colour(root / "red" / f"{number}.png", (200, 20, 20))
        colour(root / "blue" / f"{number}.png", (20, 20, 200))


def test_scenes_allow_everything_but_classes(backbone: Backbone) -> None:
    expected = LABEL_FREE | {"segmentation", "retrieval", "keypoints"}
    assert kinds_of("scenes", backbone) == expected


def test_plain_images_allow_what_needs_no_labels(tmp_path: Path, backbone: Backbone) -> None:
    for number in range(4):
        colour(tmp_path / f"{number}.png", (90, 20, 20))
    assert kinds_of(tmp_path, backbone) == LABEL_FREE


@pytest.mark.parametrize("test_split", ["test", "val"])
def test_class_folders_with_splits_are_found(
    tmp_path: Path, backbone: Backbone, test_split: str
) -> None:
    class_folders(tmp_path / "train", 6)
    class_folders(tmp_path / test_split, 3)
    opened = open_probe_data(str(tmp_path))
    suite = ProbeSuite(opened, size=32, names=("knn", "linear"), amounts=FEW)
    scores = suite.measure(backbone, ("c3",), device="cpu")
    assert {name: score.value for name, score in scores.items()} == {"knn": 1.0, "linear": 1.0}
    assert scores["knn"].chance == 0.5


def test_class_folders_without_splits_are_divided_within_classes(tmp_path: Path) -> None:
    class_folders(tmp_path, 10)
    opened = open_probe_data(str(tmp_path))
    assert opened.classes is not None
    known, asked = opened.classes
    assert not set(known.chosen) & set(asked.chosen)
    assert len(known.chosen) == 16
    assert np.bincount(asked.labels.numbers[list(asked.chosen)]).tolist() == [2, 2]


def test_another_source_can_be_learned_from(tmp_path: Path, backbone: Backbone) -> None:
    class_folders(tmp_path / "a", 5)
    class_folders(tmp_path / "b", 2)
    found = kinds_of(tmp_path / "b", backbone, train=str(tmp_path / "a"))
    assert found == LABEL_FREE | {"knn", "linear"}
    colour(tmp_path / "b/green/0.png", (0, 200, 0))
    with pytest.raises(UserError, match="class 'green', which no training image has"):
        kinds_of(tmp_path / "b", backbone, train=str(tmp_path / "a"))


def test_images_that_were_learned_from_are_not_judged_on_in_silence(
    tmp_path: Path, backbone: Backbone, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    for number in range(10):
        for part in ("a", "b"):
            path = tmp_path / part / ("odd" if number % 2 else "even") / f"{part}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 255, (32, 32, 3), np.uint8)).save(path)
    kinds_of(tmp_path / "b", backbone, train=str(tmp_path / "a"))
    assert "warning" not in capsys.readouterr().out
    shutil.copy(tmp_path / "a/odd/a1.png", tmp_path / "b/odd/other-name.png")
    kinds_of(tmp_path / "b", backbone, train=str(tmp_path / "a"))
    said = " ".join(capsys.readouterr().out.split())
    assert "warning 1 of the 11 test images look exactly like an image that is learned from" in said
    with pytest.raises(UserError, match="are the same images"):
        open_probe_data(str(tmp_path / "b"), train=f"{tmp_path}/a/../b/")
    with pytest.raises(UserError, match="--test-split train is what probes learn from"):
        open_probe_data(str(tmp_path / "b"), test_split="train")


def test_coco_has_masks_and_persons(tmp_path: Path, backbone: Backbone) -> None:
    for split in ("train", "test"):
        write_coco_scenes(tmp_path, split, count=8, size=96)
    expected = LABEL_FREE | {"segmentation", "retrieval", "keypoints"}
    assert kinds_of(tmp_path, backbone) == expected
    for path in (tmp_path / "annotations").glob("instances*"):
        path.unlink()
    assert kinds_of(tmp_path, backbone) == LABEL_FREE | {"keypoints"}


@pytest.mark.parametrize("splits", [("train", "val"), ("",)])
def test_mask_folders_have_masks(
    tmp_path: Path, backbone: Backbone, splits: tuple[str, ...]
) -> None:
    for split in splits:
        for number in range(10):
            scene = paint_scene(number, size=64, seed=len(split))
            for part, pixels in (("images", scene.image), ("masks", scene.semantic)):
                path = tmp_path / part / split / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    assert kinds_of(tmp_path, backbone) == LABEL_FREE | {"segmentation", "retrieval"}


def test_cityscapes_has_masks(tmp_path: Path, backbone: Backbone) -> None:
    for split in ("train", "val"):
        for number in range(4):
            scene = paint_scene(number, size=64, seed=len(split))
            ids = np.where(scene.semantic == 0, 7, 24).astype(np.uint8)  # road and person
            for part, end, pixels in (
                ("leftImg8bit", "leftImg8bit", scene.image),
                ("gtFine", "gtFine_labelIds", ids),
            ):
                path = tmp_path / part / split / "ulm" / f"ulm_{number}_{end}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    assert kinds_of(tmp_path, backbone) == LABEL_FREE | {"segmentation", "retrieval"}


def test_a_single_image_cannot_be_spread(tmp_path: Path, backbone: Backbone) -> None:
    colour(tmp_path / "1.png", (90, 20, 20))
    assert kinds_of(tmp_path, backbone) == {"correspondence"}


def test_too_few_labelled_images_are_no_classes(tmp_path: Path, backbone: Backbone) -> None:
    class_folders(tmp_path / "few", 3)
    assert kinds_of(tmp_path / "few", backbone) == LABEL_FREE  # none is left to test on
    class_folders(tmp_path / "more", 5)
    with pytest.raises(UserError, match="8 training images with a class are too few"):
        kinds_of(tmp_path / "more", backbone)
    for part, pixels in (("images", (48, 48, 3)), ("masks", (48, 48))):
        (tmp_path / "masked" / part).mkdir(parents=True)
        numbers = np.arange(np.prod(pixels)).reshape(pixels) % 2
        Image.fromarray(numbers.astype(np.uint8)).save(tmp_path / "masked" / part / "1.png")
    with pytest.raises(UserError, match="1 images with masks and no splits"):
        open_probe_data(str(tmp_path / "masked"))


def test_a_probe_that_needs_other_labels_is_refused(tmp_path: Path) -> None:
    colour(tmp_path / "1.png", (90, 20, 20))
    with pytest.raises(UserError, match="keypoints needs persons.*Possible are: correspondence"):
        ProbeSuite(open_probe_data(str(tmp_path)), size=32, names=("keypoints",))


def test_probes_repeat_themselves_and_leave_everything_alone(backbone: Backbone) -> None:
    data = open_probe_data("scenes", size=64, counts=(6, 4))
    before, state = copy.deepcopy(backbone.state_dict()), torch.get_rng_state()
    backbone.train()
    first, second = (
        ProbeSuite(data, size=64, amounts=FEW).measure(backbone, ("c3",), device="cpu")
        for _ in range(2)
    )
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)
    assert backbone.training
    assert all(torch.equal(before[name], now) for name, now in backbone.state_dict().items())


def test_views_depend_on_the_seed_and_the_image_alone() -> None:
    images = readable_images(SceneSource(4, 64, "test"))
    pairs, again, other = (
        draw_pairs(images, limit=limit, size=32, seed=seed)
        for limit, seed in ((4, 0), (2, 0), (4, 1))
    )
    assert torch.equal(pairs.pixels[0][::2], again.pixels[0])  # every second image
    assert torch.equal(pairs.boxes[1][::2], again.boxes[1])
    assert not torch.equal(pairs.boxes[0], other.boxes[0])
    assert not torch.equal(pairs.pixels[0], pairs.pixels[1])


def test_an_unreadable_image_is_named_or_replaced(tmp_path: Path) -> None:
    for number in range(3):
        colour(tmp_path / f"{number}.png", (90, 20, 20))
    (tmp_path / "1.png").write_bytes(b"no picture")
    data = open_probe_data(str(tmp_path))
    with pytest.raises(UserError, match=r"1\.png cannot be probed"):
        draw_pairs(data.images, limit=3, size=32, seed=0)
    from clove_ssl.data.sources import FolderSource

    forgiving = readable_images(FolderSource(tmp_path))
    assert torch.equal(forgiving.load(1), forgiving.load(2))


def test_crops_keep_keypoints_where_they_are() -> None:
    source = SceneSource(30, 128, "test")
    persons = persons_of_scenes(source)
    crops = crop_persons(persons, size=64, limit=5)
    assert crops.images.shape == (5, 3, 64, 64)
    for number, person in enumerate(persons[index * len(persons) // 5] for index in range(5)):
        x0, y0, x1, y1 = person.box
        longer = max(x1 - x0, y1 - y0)
        zoom = crops.extent[number].item() / longer
        assert longer >= SMALLEST
        assert zoom == pytest.approx(64 / round(1.25 * longer))
        for (x, y, v), point, seen in zip(
            person.keypoints, crops.points[number], crops.visible[number], strict=True
        ):
            assert seen.item() == (v == 2)
            if v == 2:  # the colour of the pixel at the keypoint is that of the scene
                place = ((point - 32) / zoom).tolist()
                assert place[0] == pytest.approx(x - (x0 + x1) / 2, abs=1)
                assert place[1] == pytest.approx(y - (y0 + y1) / 2, abs=1)


def test_images_without_a_clear_person_are_refused() -> None:
    with pytest.raises(UserError, match="No person has 3 keypoints in sight"):
        crop_persons([], size=64, limit=4)
