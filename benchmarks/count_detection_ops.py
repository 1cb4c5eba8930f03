"""What a training step of a detector asks of the host: operations, waits, copies.

Run:  python -m benchmarks.count_detection_ops [--batch 4 --short-side 128 --regions 64]
Prints one JSON line per model, counted over a forward and a backward pass on the CPU:

- ops: operations that torch dispatches; each costs the host some microseconds
- waits: operations whose result has a size or a value that the host must know, so that it waits
  for the GPU: non-zero places, boolean indices, repetitions, suppression, ``item`` and ``tolist``
- copies: tensors made of Python numbers, which travel to the GPU by themselves
- beside_graphs: of the operations of our detectors those that are left to the host where backbone,
  pyramid, proposals, the losses of the first stage, the choice of regions and the box head with
  its losses are replayed as CUDA graphs

What a GPU has kernels of ours for (suppression, stacked images, masks of regions) is counted by the
operations around each kernel. The optimizer is left out: it is the same for all.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torchvision.ops.boxes as suppression
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torchvision.models.detection import maskrcnn_resnet50_fpn_v2

from benchmarks.bench_detection import made_up_batch, our_loss, torchvision_loss
from benchmarks.waiting_operations import waits
from clove_ssl.config.detection import (
    BoxHeadConfig,
    DetectorConfig,
    c4_detector,
    fpn_detector,
)
from clove_ssl.tasks.labels.polygons import PendingMasks
from clove_ssl.tasks.rcnn import detector
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.tasks.rcnn.proposals import choose as proposals
from clove_ssl.tasks.rcnn.regions import targets

COPYING = frozenset({"lift_fresh", "lift_fresh_copy"})


class Counting(TorchDispatchMode):
    """Counts dispatched operations by name, and those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count one operation and run it."""
        name = func._schema.name.split("::")[1]
        self.ops[name] += 1
        if waits(name, args, kwargs or {}):
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))

    def count_lists(self, host: Tensor) -> Any:
        """Also count ``tolist``, which is no operation, but for a tensor that stays on the host."""
        plain = Tensor.tolist

        def tolist(tensor: Tensor) -> Any:
            if tensor is not host:
                self.waits["tolist"] += 1
            return plain(tensor)

        return mock.patch.object(Tensor, "tolist", tolist)

    @contextmanager
    def count_kernels(self) -> Iterator[None]:
        """Count what a GPU has kernels of ours for by the operations around each of them."""
        with (
            self._counted_as(4, proposals, "survivors"),
            self._counted_as(4, detector, "stack_images"),
            self._counted_as(6, targets, "begin_masks"),
            mock.patch.object(PendingMasks, "read", self._uncounted(PendingMasks.read)),
        ):
            yield

    def _counted_as(self, operations: int, module: ModuleType, name: str) -> Any:
        uncounted = self._uncounted(getattr(module, name))

        def counted(*args: Any, **options: Any) -> Any:
            self.ops[name] += operations
            return uncounted(*args, **options)

        return mock.patch.object(module, name, counted)

    def _uncounted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def uncounted(*args: Any, **options: Any) -> Any:
            waits = self.waits.copy()
            with _disable_current_modes():
                result = function(*args, **options)
            self.waits = waits
            return result

        return uncounted

    def counts(self) -> dict[str, object]:
        """The line of a model."""
        return {
            "ops": sum(self.ops.values()),
            "waits": sum(self.waits.values()),
            "copies": sum(self.ops[name] for name in COPYING),
            "waits_by_name": dict(self.waits.most_common()),
        }


def count(name: str, loss: Any, batch: DetectionBatch) -> dict[str, object]:
    """The counts of a model, and the seconds of one step that is not counted."""
    loss(0).backward()
    start = time.process_time()
    loss(1).backward()
    seconds = time.process_time() - start
    counting = Counting()
    with counting, counting.count_lists(batch.keys), counting.count_kernels():
        loss(2).backward()
    return {"case": name} | counting.counts() | {"seconds": round(seconds, 2)}


@contextmanager
def replayed(model: Detector, batch: DetectionBatch) -> Iterator[None]:
    """What the first stage and the box head give is there already."""
    inputs = model.first_inputs(batch, step=2, roomy=True)
    first = model.stage_of(_leaves(model.first_stage(inputs).flat()))
    boxes = _leaves(model._box_part_of(first.levels, first.drawn.send().read(), batch))
    with (
        mock.patch.object(model, "first_stage", return_value=first),
        mock.patch.object(model, "box_part", return_value=boxes),
    ):
        yield


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same values, of which nobody knows where they come from."""
    return [each.detach().requires_grad_(each.requires_grad) for each in tensors]


def count_ours(name: str, config: DetectorConfig, batch: DetectionBatch) -> dict[str, object]:
    """The figures of a detector of ours."""
    model, loss = our_loss(config, batch, device=torch.device("cpu"))
    assert isinstance(model, Detector)
    figures = count(name, loss, batch)
    with replayed(model, batch):
        beside = count(name, loss, batch)
    return figures | {"beside_graphs": beside["ops"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--short-side", type=int, default=128)
    parser.add_argument("--regions", type=int, default=64, help="sampled of an image")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    batch = made_up_batch(args.batch, args.short_side)
    box = BoxHeadConfig(regions_per_image=args.regions)
    ours = {"coco-fpn": fpn_detector(), "voc-c4": c4_detector(masks=False)}
    other = torchvision_loss(
        maskrcnn_resnet50_fpn_v2, batch, device=torch.device("cpu"), regions=args.regions
    )[1]
    shape = {"batch": args.batch, "short_side": args.short_side, "regions": args.regions}
    # On a CPU torchvision suppresses level by level, on a GPU all levels of an image at once.
    as_on_gpu = suppression._batched_nms_coordinate_trick
    with mock.patch.object(suppression, "_batched_nms_vanilla", as_on_gpu):
        for name, config in ours.items():
            print(json.dumps(count_ours(name, replace(config, box=box), batch) | shape))
        print(json.dumps(count("torchvision-v2", other, batch) | shape))


if __name__ == "__main__":
    main()
