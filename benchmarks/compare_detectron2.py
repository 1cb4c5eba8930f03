"""Our detectors against Detectron2 itself: boxes, features, detections, losses and scores.

Run:  python -m benchmarks.compare_detectron2 --source DETECTRON2 \\
          --annotations instances.json --images FOLDER [--photos 8 --architecture resnet50]
DETECTRON2 is a checkout of its sources (version 0.6 was compared); its own requirements (fvcore,
iopath, omegaconf, pycocotools) must be installed. Nothing is compiled: the operators that these
detectors use are torchvision's, and the compiled module is replaced by an empty one where it is
absent. With --run a finished run of clove finetune is compared instead of random weights.

Each program reads the photos and the annotations by itself, and Detectron2 builds its model from
the files that `clove export --heads` writes. All anchors and regions enter the losses, so that
nothing is drawn at random. Prints one JSON line per comparison: the largest difference, and the
largest value it is to be seen against; 0.0 means equal in every bit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pickle
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.finetuning import protocol
from clove_ssl.exporting.command import export_backbone
from clove_ssl.exporting.detectron2_config import EXTRA_NORM
from clove_ssl.finetuning.finetuned import load_finetuned, write_finetuned
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import Vocabulary
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.detection.coco_scores import score_coco
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import DetectionTask
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample
from clove_ssl.tasks.loading.geometry import Placement
from clove_ssl.tasks.loading.images import read_image
from clove_ssl.tasks.loading.selection import Labels, select_targets
from clove_ssl.tasks.loading.targets import PackedObjects, make_targets
from clove_ssl.tasks.predictions import Record
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.tasks.rcnn.pixels import resized_shape
from clove_ssl.weights.config import ExportConfig

TASKS = ("coco-fpn", "coco-c4")
EVERYTHING = 1_000_000  # anchors or regions of an image, more than there are
DATASET = "clove_compared"


@dataclass(frozen=True)
class Photo:
    """One photo as both programs have read it."""

    sample: Sample
    ours: DetectionBatch
    theirs: dict[str, Any]


def import_detectron2(source: Path) -> None:
    """Make the sources importable, with or without the compiled part."""
    sys.path.insert(0, str(source))
    try:
        importlib.import_module("detectron2._C")
    except ImportError:
        sys.modules["detectron2._C"] = types.ModuleType("detectron2._C")


def write_random_run(folder: Path, task: str, dataset: DetectionDataset, network: str) -> Path:
    """A run that holds a detector with random weights and varied norms."""
    config = protocol(task, folder, "random")
    assert isinstance(config.task, DetectionConfig)
    detector = config.task.detector
    proposals = replace(detector.proposals, anchors_per_image=EVERYTHING)
    box = replace(detector.box, regions_per_image=EVERYTHING)
    wide = replace(detector, proposals=proposals, box=box)
    config = replace(config, task=replace(config.task, detector=wide))
    built = config.task.build()
    vocabulary = Vocabulary(dataset.class_names, dataset.category_ids, dataset.keypoint_names)
    torch.manual_seed(0)
    backbone = build_backbone(built.backbone_config(network))
    model = built.build_model(backbone, built.without_data(vocabulary), seed=0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    run = RunDirectory(folder)
    run.model.parent.mkdir(parents=True)
    write_finetuned(run, config, model, vocabulary)
    return folder


def build_theirs(weights: Path) -> tuple[Any, Any]:
    """Detectron2's config and model from an export; every key must fit."""
    extra = weights.with_name("res5_extra_norm.py")
    known = importlib.import_module("detectron2.modeling").ROI_HEADS_REGISTRY
    if extra.is_file() and EXTRA_NORM not in known:
        exec(compile(extra.read_text(), str(extra), "exec"), {})
    text = weights.with_suffix(".yaml").read_text().replace("SyncBN", "BN")  # one process
    plain = weights.with_suffix(".cpu.yaml")
    plain.write_text(text)
    settings = importlib.import_module("detectron2.config").get_cfg()
    settings.merge_from_file(str(plain))
    settings.MODEL.DEVICE = "cpu"
    settings.INPUT.MIN_SIZE_TRAIN = (settings.INPUT.MIN_SIZE_TEST,)
    settings.INPUT.RANDOM_FLIP = "none"
    model = importlib.import_module("detectron2.modeling").build_model(settings)
    arrays = pickle.loads(weights.read_bytes())["model"]
    model.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
    return settings, model


def read_photos(
    settings: Any, dataset: DetectionDataset, task: DetectionConfig, count: int
) -> Iterator[Photo]:
    """Photos with objects, read by both."""
    data = importlib.import_module("detectron2.data")
    catalog = data.DatasetCatalog.get(DATASET)
    mapper = data.DatasetMapper(settings, is_train=True)
    by_id = {entry["image_id"]: entry for entry in catalog}
    labels: Labels = "masks" if task.detector.masks else "boxes"
    kept = select_targets(dataset, labels).dataset
    for sample in kept.samples[:count]:
        size = (sample.height, sample.width)
        new = resized_shape(*size, short_side=task.test_side, longest=task.longest)
        placement = Placement(size, new)
        objects = PackedObjects([sample], labels)[0]
        targets = make_targets(objects, placement)
        image = placement.image(read_image(sample.image, size))
        ours = DetectionBatch((image,), (targets.prepared(),), (size,), torch.arange(1))
        yield Photo(sample, ours, mapper(by_id[sample.identifier]))


def tell(detector: str, what: str, ours: Tensor, theirs: Tensor) -> None:
    """Print how far two results differ."""
    line: dict[str, Any] = {"detector": detector, "compared": what}
    if ours.shape != theirs.shape:
        line |= {"ours": list(ours.shape), "theirs": list(theirs.shape)}
    elif ours.numel():
        ours, theirs = ours.detach().double(), theirs.detach().double()
        line |= {
            "largest_difference": float((ours - theirs).abs().max()),
            "largest_value": float(theirs.abs().max()),
        }
    print(json.dumps(line), flush=True)


def compare_photo(name: str, photo: Photo, ours: Detector, theirs: Any) -> None:
    """Boxes, pixels, features and losses of one photo."""
    truth = photo.theirs["instances"].gt_boxes.tensor
    tell(name, "ground-truth boxes", photo.ours.targets[0].boxes, truth)
    tell(name, "pixels", photo.ours.images[0], photo.theirs["image"])
    for network in (ours, theirs):
        network.eval()
    with torch.no_grad():
        levels = ours.maps(photo.ours)
        images = theirs.preprocess_image([photo.theirs])
        maps = theirs.backbone(images.tensor)
        found = ours.find(photo.ours)[0]
        seen = theirs.inference([photo.theirs], do_postprocess=False)[0]
    for number, (mine, other) in enumerate(zip(levels, maps.values(), strict=False)):
        tell(name, f"feature map {number}", mine, other)
    tell(name, "boxes of detections", found.boxes, seen.pred_boxes.tensor)
    tell(name, "scores of detections", found.scores, seen.scores)
    storage = importlib.import_module("detectron2.utils.events").EventStorage
    for network in (ours, theirs):
        network.train()
    with torch.no_grad(), storage():
        mine_losses = ours.losses(photo.ours, step=0)
        their_losses = theirs([photo.theirs])
    for loss, value in their_losses.items():
        tell(name, loss, mine_losses[loss].float(), value.float())


def compare_scores(
    name: str, settings: Any, model: Any, photos: Sequence[Photo], truth: Mapping[str, Any]
) -> None:
    """COCO's AP of Detectron2's own detections, by its evaluator and by ours."""
    evaluation = importlib.import_module("detectron2.evaluation")
    with tempfile.TemporaryDirectory() as folder:
        judge = evaluation.COCOEvaluator(
            DATASET, ("bbox",), False, output_dir=folder, use_fast_impl=False
        )
        judge.reset()
        model.eval()
        for photo in photos:
            with torch.no_grad():
                judge.process([photo.theirs], model.inference([photo.theirs]))
        wanted = [photo.sample.identifier for photo in photos]
        theirs = judge.evaluate(img_ids=wanted)["bbox"]["AP"]
        path = Path(folder) / "coco_instances_results.json"
        records: list[Record] = json.loads(path.read_text())
    shown = {**truth, "images": [e for e in truth["images"] if e["id"] in set(wanted)]}
    shown["annotations"] = [e for e in truth["annotations"] if e["image_id"] in set(wanted)]
    ours = 100 * score_coco(shown, records, kind="box").summary()["AP"]
    tell(name, "AP of the same detections", torch.tensor([ours]), torch.tensor([theirs]))


def compare(run: Path, dataset: DetectionDataset, arguments: argparse.Namespace) -> None:
    """All comparisons of one detector."""
    weights = export_backbone(ExportConfig(source=run, to="detectron2", heads=True))
    settings, theirs = build_theirs(weights)
    model = load_finetuned(run)
    assert isinstance(model.network, DetectionNetwork)
    assert isinstance(model.task, DetectionTask)
    name = model.task.config.name
    photos = list(read_photos(settings, dataset, model.task.config, arguments.photos))
    for photo in photos:
        compare_photo(name, photo, model.network.detector, theirs)
    truth = json.loads(arguments.annotations.read_text())
    compare_scores(name, settings, theirs, photos, truth)


def main() -> None:
    """Compare random detectors of all kinds, or the one of a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--source", type=Path, required=True, help="checkout of Detectron2")
    parser.add_argument("--annotations", type=Path, required=True, help="COCO's format")
    parser.add_argument("--images", type=Path, required=True, help="folder of the photos")
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--architecture", default="resnet50")
    parser.add_argument("--run", type=Path, help="a finished run instead of random weights")
    arguments = parser.parse_args()
    import_detectron2(arguments.source)
    register = importlib.import_module("detectron2.data.datasets").register_coco_instances
    register(DATASET, {}, str(arguments.annotations), str(arguments.images))
    dataset = read_coco(arguments.annotations, arguments.images, faulty="leave out")
    if arguments.run is not None:
        compare(arguments.run, dataset, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS:
            run = write_random_run(Path(folder) / task, task, dataset, arguments.architecture)
            compare(run, dataset, arguments)


if __name__ == "__main__":
    main()
