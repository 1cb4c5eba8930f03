"""Training images per second of fine-tuning, what the host and the GPU do in a step, and the floor.

Run:  python -m benchmarks.bench_finetuning [--cases coco-fpn-small voc-c4-small ...]
      [--batches 40 --batch 16 --workers 16 --precision bf16 --photos 64]
      [--ways all captured captured-trials no-ladder no-pooling trials]

Photos with polygons are written as JPEG files in the sizes that photos of COCO and VOC have, read
by the loader of the task, and trained on as ``clove finetune`` does: transfers, autocast, losses,
backward, the check of the loss, SGD. Cases are a detector and a size:

- coco-fpn-small, voc-c4-small: ResNet-18, short sides of 256 to 352 pixels
- coco-fpn-full, voc-c4-full: ResNet-50, the short sides of the protocol

and ways leave out a part: convolutions with sizes from a ladder, the kernel that pools regions;
``trials`` lets cuDNN try its kernels out; ``captured`` replays the first stage and the choice of
regions as CUDA graphs, which ``all`` does not; ``captured-trials`` does both. One JSON line per
case and way:

- first_images_per_s: over ``--batches`` different batches after three others, when most sizes are
  new to the GPU; images_per_s: over the same ones once more, when what is captured has been
  recorded; files_images_per_s: the same read from files by workers
- ms: of a step, the second time; slowest_ms of the first time
- host_ms: of these the host works, wait_ms it waits for the GPU, waits times; gpu_ms the GPU works
- kernels: of a step; launches: calls of the host that start them, one for all of a graph;
  sizes: of canvases that are replayed
- floor_ms: forward and backward pass of backbone and pyramid alone, on the most frequent canvas
- memory_gib: the most that tensors took, reserved_gib with what graphs and torch keep;
  top_kernels: milliseconds of a step by kernel

An older version is measured by its sources, PYTHONPATH=OLDER/src, with this program as it was when
their names were in use. Numbers of a CPU only show that everything runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clove_ssl.backbones import build
from clove_ssl.config.detection import DetectorConfig, c4_detector, fpn_detector
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.finetuning.learner import TaskLearner
from clove_ssl.methods.base import Progress
from clove_ssl.tasks.base import Reading, TaskData
from clove_ssl.tasks.detection.config import COCO_SIDES, VOC_SIDES, COCOPyramidConfig
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import DetectionTask
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.tasks.rcnn.pixels import stack_images
from clove_ssl.training.loop import StepSignals, StopRequest
from clove_ssl.training.numerics import Precision, choose_precision, start_repeatably
from clove_ssl.training.processes import Process

# Heights and widths of photos, roughly as often as COCO and VOC have them.
SIZES = (
    *((480, 640), (427, 640), (480, 640), (426, 640), (640, 480), (640, 427), (375, 500)),
    *((333, 500), (500, 375), (500, 333), (425, 640), (612, 612), (360, 480), (640, 512)),
)
OBJECTS, CORNERS = 7, 24
WARM_UPS, PROFILED, FLOOR_ROUNDS = 3, 8, 10
ROUNDS_UNTIL_RECORDED = 4  # a size may come only once in a round
# What the host calls to wait; a plain copy waits as well.
WAITING = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
LAUNCHING = (
    *("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"),
    *("cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync"),
)
NEWER = "clove_ssl.layers.ladder"  # versions without this module have one way only
CAPTURING = "clove_ssl.layers.captured"  # nor can those without this one be captured
WAYS = {
    "no-ladder": f"{NEWER}.plans_by_size",
    "no-pooling": "clove_ssl.tasks.rcnn.regions.pooling.has_kernel",
}
CAPTURED = ("captured", "captured-trials")
SHOWN_KERNELS = 16


@dataclass(frozen=True)
class Case:
    """A detector, its network and the sizes of its images."""

    detector: DetectorConfig
    network: str
    sides: tuple[int, ...]
    longest: int
    classes: int


SMALL_SIDES = (256, 288, 320, 352)
CASES = {
    "coco-fpn-small": Case(fpn_detector(), "resnet18", SMALL_SIDES, 640, 80),
    "voc-c4-small": Case(c4_detector(masks=False), "resnet18", SMALL_SIDES, 640, 20),
    "coco-fpn-full": Case(fpn_detector(), "resnet50", COCO_SIDES, 1333, 80),
    "voc-c4-full": Case(c4_detector(masks=False), "resnet50", VOC_SIDES, 1333, 20),
}


def write_photos(folder: Path, count: int, classes: int) -> LabelledDataConfig:
    """Soft noise with polygons, in COCO's format."""
    rng = np.random.default_rng(0)
    photos: list[Any] = []
    things: list[Any] = []
    for number in range(count):
        height, width = SIZES[number % len(SIZES)]
        soft = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        name = f"{number:06d}.jpg"
        soft.resize((width, height), Image.Resampling.BICUBIC).save(folder / name, quality=90)
        photos.append({"id": number, "file_name": name, "height": height, "width": width})
        for outline in made_up_outlines(rng, height, width):
            low, high = outline.min(0), outline.max(0)
            things.append(
                {
                    "id": len(things) + 1,
                    "image_id": number,
                    "category_id": int(rng.integers(classes)) + 1,
                    "segmentation": [outline.reshape(-1).round(2).tolist()],
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "area": float(np.prod(high - low)),
                    "iscrowd": 0,
                }
            )
    kinds = [{"id": number + 1, "name": f"kind-{number}"} for number in range(classes)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": photos, "annotations": things, "categories": kinds}))
    return LabelledDataConfig(
        train_annotations=path, train_images=folder, test_annotations=path, test_images=folder
    )


def made_up_outlines(rng: np.random.Generator, height: int, width: int) -> Iterator[Any]:
    """Polygons (corners, 2) around random places."""
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    round_trip = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for _ in range(OBJECTS):
        middle = rng.uniform(0.2, 0.8, 2) * (width, height)
        yield middle + rng.uniform(0.03, 0.19, 2) * (width, height) * round_trip


class Trainer:
    """Makes steps as the training loop does."""

    def __init__(
        self,
        case: Case,
        data: TaskData,
        task: DetectionTask,
        device: torch.device,
        *,
        captures: bool = False,
    ) -> None:
        torch.manual_seed(0)
        backbone = build.build_backbone(task.backbone_config(case.network))
        model = task.build_model(backbone, data, seed=0)
        if device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)
            if hasattr(build, "fuse_norms"):
                build.fuse_norms(model)
        self.model: DetectionNetwork = model.to(device).train()
        groups = self.model.parameter_groups(1e-4)
        newer = device.type == "cuda" and find_spec(NEWER) is not None
        fused = True if newer else None  # as a run has it
        self.optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9, fused=fused)
        self.learner = TaskLearner(self.model)
        self.signals = StepSignals(Process(0, 1, 0, 1, device), StopRequest())
        self.device = device
        self.number = 0
        self.recorder: Any = None
        if captures and device.type == "cuda":
            from clove_ssl.layers.captured import Recorder  # not in older versions

            self.recorder = Recorder(device)
            self.model.capture(self.recorder, accumulates=False, warn=warnings.warn)

    def stream(self) -> AbstractContextManager[None]:
        """Where the work of a run belongs."""
        return nullcontext() if self.recorder is None else self.recorder.own_stream()

    @property
    def sizes(self) -> int:
        """Canvases that are replayed."""
        if self.recorder is None:
            return 0
        captured = self.model.detector.captured
        assert captured is not None
        return captured.kinds

    def step(self, batch: DetectionBatch, precision: Precision) -> None:
        """One step, from the host's memory to new weights."""
        here = batch.to(self.device, non_blocking=self.device.type == "cuda")
        with precision.autocast():
            output = self.learner(here, Progress(self.number, 1000))
        self.signals.send(output.loss)
        output.loss.backward()
        if self.signals.verdict().non_finite:
            raise FloatingPointError("the loss is not finite")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1


def timed(trainer: Trainer, batches: Iterable[DetectionBatch], precision: Precision) -> list[float]:
    """Seconds between the ends of steps on the clock of the host, which no step waits for."""
    moments = [time.perf_counter()]
    for batch in batches:
        trainer.step(batch, precision)
        moments.append(time.perf_counter())
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)
    moments[-1] = time.perf_counter()
    return [after - before for before, after in zip(moments, moments[1:], strict=False)]


def profiled(
    trainer: Trainer, batches: Sequence[DetectionBatch], precision: Precision
) -> dict[str, object]:
    """What host and GPU do in a step."""
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU] + ([activity.CUDA] if trainer.device.type == "cuda" else [])
    start = time.process_time()
    for batch in batches:
        trainer.step(batch, precision)
    busy = time.process_time() - start
    with torch.profiler.profile(activities=kinds) as profile:
        for batch in batches:
            trainer.step(batch, precision)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
    events = profile.events() or []
    waits = [e for e in events if e.name in WAITING]
    on_gpu = [e for e in events if _is_kernel(e)]
    spans = [(e.time_range.start, e.time_range.end) for e in on_gpu]
    steps = len(batches)
    wait = sum(e.time_range.elapsed_us() for e in waits) / steps / 1e3
    return {
        "host_ms": round(max(1e3 * busy / steps - wait, 0), 1),
        "wait_ms": round(wait, 1),
        "waits": round(len(waits) / steps, 1),
        "gpu_ms": round(_covered(spans) / steps / 1e3, 1),
        "kernels": round(len(on_gpu) / steps),
        "launches": round(sum(e.name in LAUNCHING for e in events) / steps),
        "top_kernels": _longest(on_gpu, steps),
    }


def _is_kernel(event: Any) -> bool:
    """Whether an event is work of the GPU, and no mark around some."""
    is_mark = getattr(event, "is_user_annotation", False) or event.name.startswith("Optimizer.")
    return event.device_type.name == "CUDA" and not is_mark


def _longest(events: Sequence[Any], steps: int) -> dict[str, float]:
    """Milliseconds of a step by kernel, the longest."""
    total: Counter[str] = Counter()
    for event in events:
        total[event.name[:70]] += event.time_range.elapsed_us()
    return {name: round(t / steps / 1e3, 2) for name, t in total.most_common(SHOWN_KERNELS)}


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of a union of intervals."""
    total, end = 0.0, -1.0
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0)
        end = max(end, stop)
    return total


def floor_ms(trainer: Trainer, batches: Sequence[DetectionBatch], precision: Precision) -> float:
    """Forward and backward pass of backbone and pyramid, the median of some."""
    detector = trainer.model.detector
    shapes = Counter(tuple(map(max, zip(*batch.sizes, strict=True))) for batch in batches)
    (height, width), _ = shapes.most_common(1)[0]
    image = torch.zeros(3, height, width, dtype=torch.uint8, device=trainer.device)
    multiple = detector.config.size_multiple
    pixels = stack_images([image] * len(batches[0]), multiple=multiple)
    seconds = []
    for _ in range(FLOOR_ROUNDS):
        _wait(trainer.device)
        start = time.perf_counter()
        with precision.autocast():
            levels: list[Tensor] = detector.features(pixels)
        torch.stack([level.float().mean() for level in levels]).sum().backward()
        _wait(trainer.device)
        seconds.append(time.perf_counter() - start)
        trainer.optimizer.zero_grad(set_to_none=True)
    return round(1e3 * statistics.median(seconds), 1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(name: str, folder: Path, args: argparse.Namespace, way: str) -> dict[str, object]:
    """The figures of a case."""
    case, device = CASES[name], torch.device(args.device)
    _forget_others(device)
    # The first process-wide choice; the way comes after it, since it may change one of them.
    start_repeatably(0, device, deterministic=False, sizes_vary=True)
    precision = choose_precision(args.precision if device.type == "cuda" else "fp32", device)
    precision.prepare()
    config = COCOPyramidConfig(detector=case.detector, train_sides=case.sides, longest=case.longest)
    task = DetectionTask(config)
    data = task.read(write_photos(folder, args.photos, case.classes))
    reading = _reading(args, device)
    count = WARM_UPS + args.batches
    batches = list(islice(task.training_batches(data, reading), count))
    trainer = Trainer(case, data, task, device, captures=way in CAPTURED)
    with choose_way(way), trainer.stream():
        timed(trainer, batches[:WARM_UPS], precision)
        first = timed(trainer, batches[WARM_UPS:], precision)
        for _ in range(ROUNDS_UNTIL_RECORDED if way in CAPTURED else 0):
            timed(trainer, batches[WARM_UPS:], precision)
        second = timed(trainer, batches[WARM_UPS:], precision)
        figures: dict[str, object] = {
            "first_images_per_s": _rate(args.batch, first),
            "images_per_s": _rate(args.batch, second),
            "files_images_per_s": _rate(args.batch, _from_files(trainer, task, data, args)),
            "ms": round(1e3 * statistics.mean(second), 1),
            "slowest_ms": round(1e3 * max(first), 1),
            **_memory(device),  # of training, and so before the floor
            **profiled(trainer, batches[-PROFILED:], precision),
            "floor_ms": floor_ms(trainer, batches, precision),
            "sizes": trainer.sizes,
        }
    return figures


def _memory(device: torch.device) -> dict[str, float]:
    """GiB until now: the most that tensors took, and that was taken from the GPU."""
    if device.type != "cuda":
        return {}
    taken = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return dict(
        zip(("memory_gib", "reserved_gib"), (round(n / 2**30, 2) for n in taken), strict=True)
    )


def _forget_others(device: torch.device) -> None:
    """Free the memory of the case before, whose model and graphs refer to each other."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _from_files(
    trainer: Trainer, task: DetectionTask, data: TaskData, args: argparse.Namespace
) -> list[float]:
    precision = choose_precision(
        args.precision if trainer.device.type == "cuda" else "fp32", trainer.device
    )
    stream = iter(task.training_batches(data, _reading(args, trainer.device)))
    for batch in islice(stream, WARM_UPS):
        trainer.step(batch, precision)
    return timed(trainer, islice(stream, args.batches), precision)


def _reading(args: argparse.Namespace, device: torch.device) -> Reading:
    return Reading.alone(
        batch=args.batch,
        steps=WARM_UPS + args.batches,
        workers=args.workers,
        pin_memory=device.type == "cuda",
    )


def _rate(batch: int, seconds: Sequence[float]) -> float:
    return round(batch * len(seconds) / sum(seconds), 1)


def choose_way(name: str) -> AbstractContextManager[Any]:
    """A way of working, where this version of the library knows it."""
    if name.endswith("trials"):
        return torch.backends.cudnn.flags(enabled=True, benchmark=True)
    if name in WAYS:
        return mock.patch(WAYS[name], return_value=False)
    return nullcontext()


def is_known(way: str) -> bool:
    """Whether this version of the library can be asked for a way."""
    if way in CAPTURED:
        return find_spec(CAPTURING) is not None
    return way not in WAYS or find_spec(NEWER) is not None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the lines."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--batch", type=int, default=16 if on_gpu else 2)
    parser.add_argument("--batches", type=int, default=40 if on_gpu else 2)
    parser.add_argument("--photos", type=int, default=64)
    parser.add_argument("--workers", type=int, default=16 if on_gpu else 0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    ways = ["all", *CAPTURED, *WAYS, "trials"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways[:2])
    args = parser.parse_args(arguments)
    machine = torch.cuda.get_device_name() if args.device != "cpu" else "cpu"
    about = {"batch": args.batch, "precision": args.precision, "device": machine}
    for name in args.cases:
        for way in filter(is_known, args.ways):
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(name, Path(folder), args, way)
            line = {"case": name, "way": way} | figures | about | {"torch": torch.__version__}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
