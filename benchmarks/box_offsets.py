"""Can a detector read from a backbone, as it is, where a box should move?

Run:  python -m benchmarks.box_offsets RUN_OR_FILE... --data FOLDER [--splits train test]
      [--images 600 300]

Boxes of VOC's objects are displaced and resized a little. A linear map (ridge regression) gets what
the box head of ``voc-c4`` gets, the mean of c5 over the displaced box, and is asked for the way
back: left-right, up-down, wider, higher. For comparison it also gets the map of c4 over the box as
3 x 3 cells. Nothing of the backbone is trained. One JSON line per backbone: the shares of the
variance, in percent, that are explained on images that the map was not fitted to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torchvision.ops import roi_align
from torchvision.transforms.functional import normalize, to_tensor

from clove_ssl import load_backbone
from clove_ssl.backbones.build import Backbone
from clove_ssl.tasks.detection.voc import read_voc
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.rcnn.boxes import encode_boxes
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD

SIDE = 320  # pixels, of the shorter side of images
SMALLEST = 24.0  # pixels, of boxes that are looked at
OBJECTS, COPIES = 3, 3  # of an image; of an object
SPREAD = torch.tensor([0.12, 0.12, 0.2, 0.2])  # of places in sides of the box, of log sizes
CELLS = 3
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)


class Regions(NamedTuple):
    """Displaced boxes of some images."""

    means: Tensor  # (R, C5) of c5
    grids: Tensor  # (R, 9 * C4) of c4
    offsets: Tensor  # (R, 4) the way back


def samples_of(data: Path, splits: Sequence[str], images: Sequence[int]) -> list[Sequence[Sample]]:
    """The first images of each split of VOC."""
    pairs = zip(splits, images, strict=True)
    return [read_voc(data, [(2012, split)]).samples[:count] for split, count in pairs]


def displaced(boxes: Tensor, generator: torch.Generator) -> Tensor:
    """Boxes (B, 4) beside these."""
    places = (boxes[:, :2] + boxes[:, 2:]) / 2
    sides = boxes[:, 2:] - boxes[:, :2]
    noise = SPREAD * torch.randn(len(boxes), 4, generator=generator)
    places, sides = places + noise[:, :2] * sides, sides * noise[:, 2:].exp()
    return torch.cat([places - sides / 2, places + sides / 2], dim=1)


def objects_of(sample: Sample, scale: float) -> tuple[Tensor, Tensor]:
    """The first large enough boxes (B, 4), in pixels of the resized image, and their classes."""
    boxes = scale * torch.tensor([each.box for each in sample.annotations]).view(-1, 4)
    classes = torch.tensor([each.category for each in sample.annotations], dtype=torch.int64)
    large = (boxes[:, 2:] - boxes[:, :2]).amin(dim=1) > SMALLEST
    return boxes[large][:OBJECTS], classes[large][:OBJECTS]


def maps_of(backbone: Backbone, sample: Sample, scale: float) -> Tensor:
    """The map of c4 of the resized image (1, C4, h, w)."""
    size = round(scale * sample.width), round(scale * sample.height)
    photo = Image.open(sample.image).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    pixels = normalize(to_tensor(photo), IMAGENET_MEAN, IMAGENET_STD)[None]
    maps: dict[str, Tensor] = backbone(pixels, "c4")
    return maps["c4"]


@torch.no_grad()
def regions_of(backbone: Backbone, samples: Sequence[Sample], *, seed: int) -> Regions:
    """What a linear map gets and what it is asked for."""
    generator = torch.Generator().manual_seed(seed)
    parts = list(_regions(backbone, samples, generator))
    return Regions(*(torch.cat(column).double() for column in zip(*parts, strict=True)))


def _regions(
    backbone: Backbone, samples: Sequence[Sample], generator: torch.Generator
) -> Iterator[Regions]:
    for sample in samples:
        scale = SIDE / min(sample.width, sample.height)
        boxes = objects_of(sample, scale)[0].repeat_interleave(COPIES, dim=0)
        if len(boxes) == 0:
            continue
        seen = displaced(boxes, generator)
        maps = maps_of(backbone, sample, scale)
        cells = roi_align(maps, [seen], 14, 1 / backbone.strides["c4"], 0, aligned=True)
        means = backbone.run_stage("c5", cells).mean((2, 3))
        grids = adaptive_avg_pool2d(cells, CELLS).flatten(1)
        yield Regions(means, grids, encode_boxes(seen, boxes, weights=(1.0, 1.0, 1.0, 1.0)))


def explained(train: Tensor, wanted: Tensor, test: Tensor, answers: Tensor) -> list[float]:
    """Shares of the variance of each offset, in percent, with the best of some penalties."""
    middle, spread = train.mean(0), train.std(0) + 1e-6
    known, asked = ((each - middle) / spread for each in (train, test))
    shift = wanted.mean(0)
    products, shares = known.T @ known, []
    for penalty in PENALTIES:
        way = torch.linalg.solve(
            products + penalty * torch.eye(len(products), dtype=products.dtype),
            known.T @ (wanted - shift),
        )
        errors = (asked @ way + shift - answers).square().mean(0)
        shares.append(1 - errors / answers.var(0))
    best = max(shares, key=lambda each: float(each.mean()))
    return [round(100 * float(share), 1) for share in best]


def measure(path: str, train: Sequence[Sample], test: Sequence[Sample]) -> dict[str, object]:
    """The line of a backbone."""
    backbone = load_backbone(path).eval()
    fitted, asked = regions_of(backbone, train, seed=0), regions_of(backbone, test, seed=1)
    line: dict[str, object] = {"backbone": path, "regions": len(asked.offsets)}
    for name in ("means", "grids"):
        known, other = getattr(fitted, name), getattr(asked, name)
        line[name] = explained(known, fitted.offsets, other, asked.offsets)
    return line


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backbones", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", nargs=2, default=["train", "test"])
    parser.add_argument("--images", nargs=2, type=int, default=[600, 300])
    given = parser.parse_args()
    splits = samples_of(given.data, given.splits, given.images)
    for path in given.backbones:
        print(json.dumps(measure(path, *splits)), flush=True)


if __name__ == "__main__":
    main()
