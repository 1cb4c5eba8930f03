"""ReSim's windows, pooling and one step against a recording of the released code.

The recording is in float32. Its encoder is a linear layer and two 1x1
convolutions on rows that hold a vector, a c4 map and a c3 map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from builders.batches.vector_batches import batch_of_maps, fitting_groups
from torch import Tensor, nn

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.config import HeadConfig, TeacherConfig
from clove_ssl.methods.resim.config import ReSimConfig
from clove_ssl.methods.resim.loss import averaged_cells, contrast_windows
from clove_ssl.methods.resim.method import ReSim
from clove_ssl.methods.resim.networks import precise_pool
from clove_ssl.methods.resim.windows import find_windows, sliding_windows
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
SIZE = 224
CELLS = {"c4": 14, "c3": 28}
STRIDES = {"c4": 16, "c3": 8}
WINDOWS = {"c4": (48, 32), "c3": (32, 24)}


class RowBackbone(nn.Module):
    """Takes the recorded rows apart."""

    stage = "c5"
    strides = STRIDES

    def __init__(self, vector: int, channels: int) -> None:
        super().__init__()
        self.out_channels = vector
        self.channels = {"c5": vector, "c4": channels, "c3": channels}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        rows = images[:, :, 0, 0]
        vector, channels = self.channels["c5"], self.channels["c4"]
        middle = vector + channels * CELLS["c4"] ** 2
        return {
            "c5": rows[:, :vector, None, None],
            "c4": rows[:, vector:middle].unflatten(1, (channels, CELLS["c4"], CELLS["c4"])),
            "c3": rows[:, middle:].unflatten(1, (channels, CELLS["c3"], CELLS["c3"])),
        }


class NoPyramid(nn.Module):
    """A convolution per level, without sums."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.c4, self.c3 = (nn.Conv2d(channels, channels, 1) for _ in CELLS)

    def forward(self, maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"c4": self.c4(maps["c4"]), "c3": self.c3(maps["c3"])}


def close(actual: Tensor | None, arrays: Arrays, name: str, atol: float = 1e-5) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), arrays[name], rtol=0, atol=atol, err_msg=name)


def boxes_of(crops: np.ndarray) -> Tensor:
    """Top, left, height, width -> x0, y0, x1, y1."""
    top, left, height, width = torch.from_numpy(crops).T
    return torch.stack([left, top, left + width, top + height], dim=1)


@pytest.mark.parametrize("level", list(WINDOWS))
def test_windows_are_found_where_the_release_finds_them(
    golden: Callable[[str], Arrays], level: str
) -> None:
    arrays = golden("methods/resim.npz")
    windows = sliding_windows(SIZE, *WINDOWS[level])
    assert np.array_equal(windows, arrays[f"windows.{level}_q"])
    first, second = (boxes_of(crops) for crops in arrays["windows.crops"].swapaxes(0, 1))
    found = find_windows(windows, first, second, size=SIZE)
    assert np.array_equal(found.inside, arrays[f"windows.{level}_label"] == 0)
    close(found.boxes, arrays, f"windows.{level}_k", 1e-9)
    assert 0 < found.inside.sum() < found.inside.numel()


def test_pooling_is_the_exact_integral_with_the_recorded_gradient(
    golden: Callable[[str], Arrays],
) -> None:
    arrays = golden("methods/resim.npz")
    maps = torch.from_numpy(arrays["pool.x"]).double().requires_grad_()
    images, boxes = np.split(arrays["pool.rois"].astype(np.float64), [1], axis=1)
    picked = maps[torch.from_numpy(images[:, 0]).long()]  # a map for every box
    pooled = precise_pool(picked, torch.from_numpy(boxes)[:, None], stride=16).squeeze(1)
    (pooled * torch.from_numpy(arrays["pool.probe"])).sum().backward()
    close(pooled, arrays, "pool.integral_float64", 1e-12)
    close(pooled, arrays, "pool.out")
    close(maps.grad, arrays, "pool.grad_x")


def build(arrays: Arrays) -> ReSim:
    out, vector = arrays["encoder_q.fc_weight"].shape
    channels, momentum = len(arrays["encoder_q.c4_bias"]), float(arrays["m"])
    config = ReSimConfig(
        head=HeadConfig(hidden=4, out=out),
        queue_size=arrays["queue_before"].shape[1],
        temperature=float(arrays["T"]),
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
        shuffle_groups=fitting_groups(len(arrays["x_q"])),
    )
    method = ReSim(config, RowBackbone(vector, channels))  # type: ignore[arg-type]
    for name, encoder in (("encoder_q", method.encoder), ("encoder_k", method.teacher.module)):
        encoder.head = nn.Linear(vector, out)  # type: ignore[assignment]
        encoder.pyramid = NoPyramid(channels)  # type: ignore[assignment]
        parts = {"fc": encoder.head, "c4": encoder.pyramid.c4, "c3": encoder.pyramid.c3}
        for part, layer in parts.items():
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            layer.load_state_dict(
                {
                    kind: torch.from_numpy(arrays[f"{name}.{part}_{kind}"])
                    for kind in ("weight", "bias")
                }
            )
    method.teacher.requires_grad_(False)
    method.queue.entries.copy_(torch.from_numpy(arrays["queue_before"]).T)
    return method.double()


def batch_of(arrays: Arrays) -> tuple[ViewBatch, Tensor]:
    """The recorded rows as a batch, and those of the first view, which want a gradient."""
    rows = [torch.from_numpy(arrays[name]).double() for name in ("x_q", "x_k")]
    rows[0].requires_grad_()
    unflipped = torch.zeros(len(rows[0]), dtype=torch.bool)
    views = []
    for view, crops in zip(batch_of_maps(*rows).views, arrays["crops"].swapaxes(0, 1), strict=True):
        size = view.geometry.image_size
        geometry = CropGeometry(boxes_of(crops), unflipped, unflipped, size)
        views.append(View(view.pixels, geometry, "global"))
    return ViewBatch(tuple(views), torch.arange(len(rows[0]))), rows[0]


def test_a_step_with_its_queue_is_the_recorded_one(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/resim.npz")
    method, (batch, rows) = build(arrays), batch_of(arrays)
    output: StepOutput = method(batch, Progress(0, 1))
    output.loss.backward()
    for name in ("global", "c4", "c3"):
        close(output.metrics[f"loss_{name}"], arrays, f"loss_{name}", 5e-5)
    close(output.loss, arrays, "loss_total", 5e-5)
    close(rows.grad, arrays, "grad_x_q")
    method.after_step(Progress(0, 1))
    close(method.queue.entries.T, arrays, "queue_after")
    assert method.queue.pointer == arrays["ptr_after"].item()


@pytest.mark.parametrize("level", list(WINDOWS))
def test_positives_and_logits_of_windows_are_the_recorded_ones(
    golden: Callable[[str], Arrays], level: str
) -> None:
    arrays = golden("methods/resim.npz")
    method, (batch, _) = build(arrays), batch_of(arrays)
    method(batch, Progress(0, 1))  # moves the teacher
    temperature = float(arrays["T"])
    query, key = (
        getattr(encoder(view.pixels), level)
        for encoder, view in zip((method.encoder, method.teacher.module), batch.views, strict=True)
    )
    here, there = (torch.from_numpy(arrays[f"{level}_{side}"]) for side in "qk")
    queries = unit_vectors(precise_pool(query, here, stride=STRIDES[level]))
    positives = unit_vectors(precise_pool(key, there, stride=STRIDES[level]))
    negatives = averaged_cells(key).flatten(0, 1)
    result = contrast_windows(queries, positives, negatives[None], temperature=temperature)
    close(result.positive_cosine.flatten() / temperature, arrays, f"positive_{level}")
    if level == "c4":
        logits = queries.flatten(0, 1) @ negatives.T / temperature
        np.testing.assert_allclose(logits.detach(), arrays["logits_c4"][:, 1:], rtol=0, atol=1e-5)
