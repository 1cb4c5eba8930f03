"""Training images per second of our Mask R-CNN with a pyramid, against torchvision's.

Run:  python -m benchmarks.bench_detection [--device cuda --batch 16 --short-side 800]
Prints one JSON line per case. All models make whole training steps (forward, backward, SGD) on
the same images and objects, in one process and in turns; the median step counts. What differs is
named by the case:

- coco-fpn: ours as the protocol has it: four convolutions in the box head, batch norms everywhere
- coco-fpn-1203: the same for the number of classes of LVIS
- coco-fpn-two-fc: ours with the small box head and the norms of torchvision's model
- torchvision: its Mask R-CNN, two layers in the box head, no norms outside the backbone
- torchvision-v2: its second one, with the box head and the norms that coco-fpn has

The last line is the loader: one core from a JPEG file of 640 x 480 pixels to 800 x 1067. Numbers
of a CPU only show that everything runs.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models.detection import maskrcnn_resnet50_fpn, maskrcnn_resnet50_fpn_v2

from clove_ssl.backbones.build import build_backbone, fuse_norms
from clove_ssl.config.detection import BoxHeadConfig, DetectorConfig, fpn_detector
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.labels.polygons import fill_polygons
from clove_ssl.tasks.loading.geometry import Placement
from clove_ssl.tasks.loading.images import read_image
from clove_ssl.tasks.rcnn.detector import build_detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageTargets
from clove_ssl.tasks.rcnn.pixels import resized_shape
from clove_ssl.tasks.training_parts import parameter_groups
from clove_ssl.training.processes import placed

CLASSES = 80
LVIS_CLASSES = 1203
OBJECTS = 7  # of an image, as in COCO
CORNERS = 24  # of a polygon
WARM_UPS = 2  # steps that choose kernels and fill caches

Step = Callable[[int], None]
Loss = Callable[[int], Tensor]  # of a number of a step
TorchvisionTargets = list[dict[str, Tensor]]


def made_up_batch(images: int, short_side: int) -> DetectionBatch:
    """Noise with polygons around random boxes, in the two shapes most photos have."""
    rng = np.random.default_rng(0)
    pixels, targets, sizes = [], [], []
    for number in range(images):
        height, width = short_side, round(short_side * (4 / 3 if number % 2 else 1.5))
        pixels.append(torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8)))
        middle = rng.uniform(0.2, 0.8, (OBJECTS, 2)) * (width, height)
        reach = rng.uniform(0.03, 0.19, (OBJECTS, 2)) * (width, height)
        angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
        round_trip = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (corners, 2)
        outlines = middle[:, None] + reach[:, None] * round_trip  # (objects, corners, 2)
        boxes = np.concatenate([outlines.min(1), outlines.max(1)], axis=1)
        targets.append(
            ImageTargets(
                torch.from_numpy(boxes).float(),
                torch.from_numpy(rng.integers(0, CLASSES, OBJECTS)),
                polygons=tuple((outline.reshape(-1),) for outline in outlines),
            ).prepared()  # as it comes from a worker
        )
        sizes.append((height, width))
    return DetectionBatch(tuple(pixels), tuple(targets), tuple(sizes), torch.arange(images))


def torchvision_batch(
    batch: DetectionBatch, device: torch.device
) -> tuple[list[Tensor], TorchvisionTargets]:
    """The same images and objects as torchvision wants them: 0 to 1, masks as bitmaps."""
    targets = []
    for objects, (height, width) in zip(batch.targets, batch.original_sizes, strict=True):
        masks = [fill_polygons(o, height=height, width=width) for o in objects.polygons or ()]
        targets.append(
            {
                "boxes": objects.boxes.to(device),
                "labels": objects.classes.to(device) + 1,
                "masks": torch.from_numpy(np.stack(masks)).to(device, torch.uint8),
            }
        )
    return [image.to(device).float() / 255 for image in batch.images], targets


def our_loss(
    config: DetectorConfig, batch: DetectionBatch, *, device: torch.device, classes: int = CLASSES
) -> tuple[nn.Module, Loss]:
    """A model of ours, and its loss at a step."""
    model = build_detector(
        config, build_backbone(BackboneConfig(zero_init_last=False)), classes=classes
    )
    model = placed(model, device)
    if device.type == "cuda":
        fuse_norms(model)
    here = batch.to(device)
    return model.train(), lambda number: _sum(model.losses(here, step=number))


def torchvision_loss(
    build: Callable[..., nn.Module], batch: DetectionBatch, *, device: torch.device, regions: int
) -> tuple[nn.Module, Loss]:
    """A model of torchvision's, all of whose layers are trained too, and its loss."""
    short = min(batch.original_sizes[0])
    model = build(
        weights=None,
        weights_backbone=None,
        num_classes=CLASSES + 1,
        min_size=short,
        max_size=2 * short,
        box_batch_size_per_image=regions,
    )
    images, targets = torchvision_batch(batch, device)
    return model.to(device).train(), lambda number: _sum(model(images, targets))


def training_step(loss: Loss, optimizer: torch.optim.Optimizer, *, bf16: bool) -> Step:
    """Forward, backward and optimizer."""
    device_type = optimizer.param_groups[0]["params"][0].device.type

    def step(number: int) -> None:
        with torch.autocast(device_type, torch.bfloat16, enabled=bf16):
            total = loss(number)
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_step(
    config: DetectorConfig,
    batch: DetectionBatch,
    *,
    device: torch.device,
    bf16: bool,
    classes: int = CLASSES,
) -> Step:
    """A training step of ours."""
    model, loss = our_loss(config, batch, device=device, classes=classes)
    fused = True if device.type == "cuda" else None  # as a run has it
    groups = parameter_groups(model, 1e-4)
    optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9, fused=fused)
    return training_step(loss, optimizer, bf16=bf16)


def torchvision_step(
    build: Callable[..., nn.Module],
    batch: DetectionBatch,
    *,
    device: torch.device,
    bf16: bool,
    regions: int,
) -> Step:
    """A training step of torchvision's."""
    model, loss = torchvision_loss(build, batch, device=device, regions=regions)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
    return training_step(loss, optimizer, bf16=bf16)


def _sum(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def two_fc(config: DetectorConfig) -> DetectorConfig:
    """The box head and the norms of torchvision's first model."""
    small = BoxHeadConfig(convs=0, fcs=2, regions_per_image=config.box.regions_per_image)
    return replace(config, box=small, neck_norm="none", head_norm="none")


def medians(steps: dict[str, Step], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of a step of each model; models take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM_UPS + rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step(number)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number >= WARM_UPS:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def loader_milliseconds(short_side: int = 800, rounds: int = 20) -> dict[str, float]:
    """The fastest of some rounds on one core: reading with decoding, resizing with mirroring."""
    soft = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    photo = Image.fromarray(soft).resize((640, 480), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=90)
    size = (480, 640)
    new = resized_shape(*size, short_side=short_side, longest=1333)
    placement = Placement(size, new, mirrored=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photo.jpg"
        path.write_bytes(file.getvalue())
        pixels = read_image(path, size)
        return {
            "decode_ms": _fastest(lambda: read_image(path, size), rounds),
            "resize_ms": _fastest(lambda: placement.image(pixels), rounds),
        }


def _fastest(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        times.append(1e3 * (time.thread_time() - start))
    return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--short-side", type=int)
    parser.add_argument("--regions", type=int, help="sampled of an image for the box loss")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    defaults = (16, 800, 512, 20) if device.type == "cuda" else (1, 64, 16, 1)
    asked = (args.batch, args.short_side, args.regions, args.rounds)
    batch, side, regions, rounds = (a or d for a, d in zip(asked, defaults, strict=True))
    bf16 = args.precision == "bf16"
    torch.set_num_threads(1)  # of a CPU; the GPU does not care

    data = made_up_batch(batch, side)
    config = replace(fpn_detector(), box=BoxHeadConfig(regions_per_image=regions))
    theirs = {"device": device, "bf16": bf16, "regions": regions}
    many = our_step(config, data, device=device, bf16=bf16, classes=LVIS_CLASSES)
    steps = {
        "coco-fpn": our_step(config, data, device=device, bf16=bf16),
        "coco-fpn-1203": many,
        "coco-fpn-two-fc": our_step(two_fc(config), data, device=device, bf16=bf16),
        "torchvision": torchvision_step(maskrcnn_resnet50_fpn, data, **theirs),
        "torchvision-v2": torchvision_step(maskrcnn_resnet50_fpn_v2, data, **theirs),
    }
    shape = {"batch": batch, "short_side": side, "regions": regions, "precision": args.precision}
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    about = shape | {"device": machine, "torch": torch.__version__}
    for name, seconds in medians(steps, rounds, device).items():
        figures = {"images_per_s": round(batch / seconds, 2), "ms": round(1e3 * seconds, 1)}
        print(json.dumps({"case": name} | figures | about))
    loading = {name: round(value, 2) for name, value in loader_milliseconds().items()}
    print(json.dumps({"case": "loader", "short_side": 800} | loading))


if __name__ == "__main__":
    main()
