"""How soon does the last stage of a backbone learn what boxes need?

Run:  python -m benchmarks.box_heads RUN_OR_FILE... --data FOLDER [--norms trained 0.5]
      [--splits train test] [--images 900 350] [--steps 600] [--seed 0]

``voc-c4`` uses the last stage of a ResNet as its box head. Here it is trained for itself, with
predictors of classes and offsets, on maps of c4 that stay as they are: displaced boxes of VOC's
objects and boxes of the background, batches of 32, the optimizer of the protocol. ``--norms`` are
shares of the norm with which convolutions begin (``last_norm`` of a backbone), or ``trained``. One
JSON line per backbone and norm, of images that nothing was trained on:

- class_accuracy: of objects, in percent; box_error: mean distance of the four offsets
- means: shares of their variance that are explained, in percent (left-right, up-down, wider,
  higher)
- train_class_loss, train_box_loss: means of the last third of the steps
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.ops import roi_align

from benchmarks.box_offsets import SIDE, displaced, maps_of, objects_of, samples_of
from clove_ssl import load_backbone
from clove_ssl.backbones.build import Backbone
from clove_ssl.backbones.last_norm import size_last_stage
from clove_ssl.tasks.detection.voc import VOC_CLASSES
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.rcnn.boxes import encode_boxes
from clove_ssl.tasks.rcnn.regions.roi_heads import BoxPredictor

CELLS = 10  # of a region on each side, where the protocol has 14
COPIES, BACKGROUND = 2, 4  # of an object; boxes of an image
BATCH, WARM_UP, MEASURED, STATISTICS = 32, 100, 64, 20
LEARNING_RATE, DROPS = 0.02, (3 / 4, 11 / 12)
BACKGROUND_CLASS = len(VOC_CLASSES)


class Regions(NamedTuple):
    """What a box head sees, and what it should say."""

    cells: Tensor  # (R, C4, 10, 10), half precision
    classes: Tensor  # (R)
    offsets: Tensor  # (R, 4)


class BoxHead(nn.Module):
    """The last stage with predictors behind it."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.predictor = BoxPredictor(backbone.channels["c5"], len(VOC_CLASSES))

    def forward(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Regions (R, C4, 10, 10) -> scores (R, K + 1), offsets (R, K, 4)."""
        means = self.backbone.run_stage("c5", cells.float()).mean((2, 3))
        scores, offsets = self.predictor(means)
        return scores, offsets.view(len(cells), -1, 4)

    def learned(self) -> Iterator[nn.Parameter]:
        """What is trained: the maps before the last stage stay."""
        yield from (each for part in self.stage() for each in part.parameters())
        yield from self.predictor.parameters()

    def stage(self) -> list[nn.Module]:
        """The modules of the last stage."""
        return [self.backbone.body.get_submodule(name) for name in self.backbone.parts["c5"]]


@torch.no_grad()
def regions_of(backbone: Backbone, samples: Sequence[Sample], *, seed: int) -> Regions:
    """Displaced boxes of objects, and boxes anywhere."""
    generator = torch.Generator().manual_seed(seed)
    parts = [_of_image(backbone, each, generator) for each in samples]
    return Regions(*(torch.cat(column) for column in zip(*filter(None, parts), strict=True)))


def _of_image(backbone: Backbone, sample: Sample, generator: torch.Generator) -> Regions | None:
    scale = SIDE / min(sample.width, sample.height)
    boxes, classes = objects_of(sample, scale)
    if len(boxes) == 0:
        return None
    boxes = boxes.repeat_interleave(COPIES, dim=0)
    seen = displaced(boxes, generator)
    maps = maps_of(backbone, sample, scale)
    stride = backbone.strides["c4"]
    size = stride * torch.tensor([maps.shape[3], maps.shape[2]])
    corners = 0.7 * torch.rand(BACKGROUND, 2, generator=generator) * size
    sides = 30 + 0.4 * torch.rand(BACKGROUND, 2, generator=generator) * size
    everything = torch.cat([seen, torch.cat([corners, corners + sides], dim=1)])
    cells = roi_align(maps, [everything], CELLS, 1 / stride, 0, aligned=True)
    background = torch.full((BACKGROUND,), BACKGROUND_CLASS)
    offsets = encode_boxes(seen, boxes, weights=(10.0, 10.0, 5.0, 5.0))
    return Regions(
        cells.half(),
        torch.cat([classes.repeat_interleave(COPIES), background]),
        torch.cat([offsets, torch.zeros(BACKGROUND, 4)]),
    )


def train(head: BoxHead, regions: Regions, *, steps: int, seed: int) -> list[float]:
    """Train a head; the losses of classes and boxes, means of the last third."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(head.learned(), LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
    losses = []
    head.train()
    for step in range(steps):
        drops = sum(step >= drop * steps for drop in DROPS)
        rate = LEARNING_RATE * min(1, (step + 1) / WARM_UP) * 0.1**drops
        optimizer.param_groups[0]["lr"] = rate
        chosen = torch.randint(len(regions.classes), (BATCH,), generator=generator)
        terms = losses_of(head, Regions(*(each[chosen] for each in regions)))
        optimizer.zero_grad()
        terms.sum().backward()
        optimizer.step()
        losses.append(terms.detach())
    return [float(each) for each in torch.stack(losses[2 * steps // 3 :]).mean(0)]


def losses_of(head: BoxHead, regions: Regions) -> Tensor:
    """The losses of classes and of boxes (2)."""
    scores, offsets = head(regions.cells)
    on_object = regions.classes < BACKGROUND_CLASS
    mine = offsets[on_object, regions.classes[on_object]]
    distances = (mine - regions.offsets[on_object]).abs().sum()
    return torch.stack([cross_entropy(scores, regions.classes), distances / len(scores)])


@torch.no_grad()
def score(head: BoxHead, train: Regions, test: Regions) -> dict[str, object]:
    """What a trained head knows of other images, with statistics of those it was trained on."""
    for norm in (each for part in head.stage() for each in part.modules()):
        if isinstance(norm, nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None  # the mean of all batches
    for cells in train.cells[torch.randperm(len(train.cells))].split(MEASURED)[:STATISTICS]:
        head(cells)
    head.eval()
    parts = [head(cells) for cells in test.cells.split(MEASURED)]
    scores, offsets = (torch.cat(column) for column in zip(*parts, strict=True))
    on_object = test.classes < BACKGROUND_CLASS
    classes, wanted = test.classes[on_object], test.offsets[on_object]
    found = scores[on_object, :BACKGROUND_CLASS].argmax(1) == classes
    errors = offsets[on_object, classes] - wanted
    explained = 1 - errors.square().mean(0) / wanted.var(0)
    return {
        "class_accuracy": round(100 * float(found.float().mean()), 1),
        "box_error": round(float(errors.abs().mean()), 3),
        "means": [round(100 * float(each), 1) for each in explained],
    }


def measure(
    path: str, norms: Sequence[str], splits: Sequence[Sequence[Sample]], *, steps: int, seed: int
) -> Iterator[dict[str, object]]:
    """The lines of a backbone."""
    backbone = load_backbone(path).eval()
    fitted, asked = (regions_of(backbone, each, seed=n) for n, each in enumerate(splits))
    for norm in norms:
        backbone = load_backbone(path)
        backbone.last_norm = None if norm == "trained" else float(norm)
        size_last_stage(backbone, backbone.body.state_dict())
        torch.manual_seed(seed)
        head = BoxHead(backbone)
        losses = train(head, fitted, steps=steps, seed=seed)
        names = ("train_class_loss", "train_box_loss")
        told = {name: round(loss, 3) for name, loss in zip(names, losses, strict=True)}
        line: dict[str, object] = {"backbone": path, "last_norm": norm, "seed": seed}
        yield {**line, **score(head, fitted, asked), **told}


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backbones", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--norms", nargs="+", default=["trained", "0.5"])
    parser.add_argument("--splits", nargs=2, default=["train", "test"])
    parser.add_argument("--images", nargs=2, type=int, default=[900, 350])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    splits = samples_of(given.data, given.splits, given.images)
    for path in given.backbones:
        for line in measure(path, given.norms, splits, steps=given.steps, seed=given.seed):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
