"""The arithmetic of the communication model, on numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders.runs.tiny_runs import tiny_method
from torch import nn

from benchmarks import scaling_model as model
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.methods.base import Method, Progress
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

ROOT = Path(__file__).parents[2]
# Round numbers: 100 bytes/s inside a node of 4, 2 cards of 20 bytes/s between nodes.
FABRIC = model.Fabric(
    node=4,
    nvlink=100.0,
    network=20.0,
    rails=2,
    usable=0.5,
    launch=1.0,
    nvlink_hop=0.25,
    network_hop=0.5,
    host_wait=2.0,
)
TRAFFIC = model.Traffic(parameters=100, norm_channels=(2, 4), bucket_bytes=200)
STEP = model.Step(backward_share=0.5, rate=2.0, images=10, fixed=1.0)


def test_what_travels_is_counted_in_bytes() -> None:
    assert TRAFFIC.gradient_bytes == 400
    assert TRAFFIC.buckets == 2
    assert TRAFFIC.forward_bytes == 3 * (4 * 5 + 4 * 9)
    assert TRAFFIC.backward_bytes == 2 * (8 * 2 + 8 * 4)
    assert model.Traffic(parameters=101, norm_channels=(), bucket_bytes=200).buckets == 3


def test_the_slowest_link_of_a_ring_counts() -> None:
    assert FABRIC.bandwidth(4) == 50.0
    assert FABRIC.bandwidth(8) == 20.0  # two cards of 20, half of it usable
    assert model.Fabric(nvlink=10.0, network=50.0, usable=1.0).bandwidth(16) == 10.0


def test_latency_grows_with_the_height_of_a_tree() -> None:
    assert FABRIC.latency(2) == 1 + 2 * 0.25
    assert FABRIC.latency(4) == 1 + 2 * 2 * 0.25
    assert FABRIC.latency(16) == 1 + 2 * (2 * 0.25 + 2 * 0.5)


def test_rings_cost_what_the_formula_says() -> None:
    assert FABRIC.all_reduce(400, 4) == 2 * 3 / 4 * 400 / 50 + 2.0  # 14 s
    assert FABRIC.all_gather(20, 8) == 7 * 20 / 20 + 3.0  # 10 s
    assert FABRIC.all_reduce(400, 1) == FABRIC.all_gather(20, 1) == 0.0


def test_norms_wait_for_each_other_layer_by_layer() -> None:
    forward = (3 * 20 / 50 + 2 + 2) + (3 * 36 / 50 + 2 + 2)  # 5.2 + 6.16
    backward = (1.5 * 16 / 50 + 2) + (1.5 * 32 / 50 + 2)  # 2.48 + 2.96
    expected = 3 * forward + 2 * backward
    assert model.norm_seconds(TRAFFIC, FABRIC, 4) == pytest.approx(expected)
    assert expected == pytest.approx(44.96)
    assert model.norm_seconds(TRAFFIC, FABRIC, 1) == 0.0


def test_compute_has_a_part_that_does_not_shrink() -> None:
    assert STEP.compute(10) == 5.0
    assert STEP.compute(5) == 3.0
    assert STEP.compute(0) == 1.0


def test_gradients_show_where_the_backward_pass_is_too_short() -> None:
    # Buckets of 200 bytes take 1.5 * 200 / 50 + 2 = 8 s each; 2.5 s of backward hide part of 16.
    short = model.estimate(TRAFFIC, FABRIC, STEP, n=4, images=10, sync=False)
    assert (short.compute, short.norms, short.gradients) == (5.0, 0.0, 16.0)
    assert short.exposed == 13.5
    assert short.seconds == 18.5
    assert short.rate == pytest.approx(40 / 18.5)
    # 50 s of backward hide all but the last bucket.
    patient = model.estimate(TRAFFIC, FABRIC, STEP, n=4, images=248, sync=True)
    assert patient.compute == pytest.approx(100.2)
    assert patient.exposed == 8.0
    assert patient.seconds == pytest.approx(100.2 + 44.96 + 8.0)


def test_one_gpu_is_as_fast_as_measured() -> None:
    alone = model.estimate(TRAFFIC, FABRIC, STEP, n=1, images=10)
    assert alone.rate == pytest.approx(STEP.rate)


def test_the_published_model_is_counted() -> None:
    traffic, step = model.count()
    backbone, projector, attention = 23_508_032, 2048 * 4096 + 4096 * 256 + 2 * 4096, 4 * 256**2
    assert traffic.parameters == backbone + projector + attention + 256
    assert len(traffic.norm_channels) == 53 + 2
    assert sum(traffic.norm_channels) == 26_560 + 4096 + 256
    student, teacher = 2 * 224**2 + 6 * 96**2, 2 * 224**2
    assert step.backward_share == pytest.approx(2 * student / (3 * student + teacher))


def test_the_student_normalises_in_three_passes_and_goes_back_through_two() -> None:
    method = tiny_method().build(build_backbone(BackboneConfig(name="resnet18", stage="c4")))
    passes: list[bool] = []
    norms = [m for m in method.modules() if isinstance(m, nn.BatchNorm2d) and m.num_features == 32]
    for norm in norms:  # the projectors of student and teacher
        norm.register_forward_hook(lambda _m, _in, out: passes.append(out.requires_grad))
    method(*two_images(method))
    assert len(passes) == model.Traffic.forward_passes
    assert sum(passes) == model.Traffic.backward_passes


def two_images(method: Method) -> tuple[ViewBatch, Progress]:
    """Two images with random pixels, all views of the whole image."""
    whole = CropGeometry(
        boxes=torch.tensor([[0.0, 0.0, 64.0, 64.0]] * 2),
        flipped=torch.zeros(2, dtype=torch.bool),
        flipped_vertically=torch.zeros(2, dtype=torch.bool),
        image_size=torch.full((2, 2), 64),
    )
    views = [
        View(torch.randn(2, 3, spec.size, spec.size), whole, spec.role) for spec in method.views()
    ]
    return ViewBatch(tuple(views), torch.arange(2)), Progress(0, 10)


def test_tables_are_markdown() -> None:
    lines = model.imagenet_table(TRAFFIC, STEP, batch=80).splitlines()
    assert lines[0].startswith("| H200s |")
    assert {line.count("|") for line in lines} == {6}
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 1", "| 8", "| 64"]
    hours = 200 * model.IMAGENET / 2.0 / 3600
    assert f"{hours:.1f} h, {hours:,.0f} GPU-hours" in lines[2]


def test_the_page_shows_what_the_model_gives() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    traffic, step = model.count()
    for table in (
        model.traffic_table(traffic),
        model.efficiency_table(traffic, step, batch=None),
        model.efficiency_table(traffic, step, batch=2048),
        model.imagenet_table(traffic, step, batch=2048),
        model.reading_table(step, wait=0.03),
    ):
        assert table in page
