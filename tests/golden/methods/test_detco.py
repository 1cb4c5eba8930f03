"""Four DetCo steps, jigsaw cuts and the join of patches against a recording of DetCo.pytorch.

The recorded encoder is eight linear heads on one vector, which serves as the
whole view and as its only patch; its student never moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from builders.batches.vector_batches import batch_of_maps, fitting_groups
from torch import Tensor, nn

from clove_ssl.backbones.build import STAGES
from clove_ssl.config.views import PatchSpec
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import HeadConfig, TeacherConfig
from clove_ssl.methods.detco.config import DetCoConfig, JigsawConfig
from clove_ssl.methods.detco.method import DetCo, join_patches
from clove_ssl.methods.heads import MLPHead
from clove_ssl.views.draw.crops import LEFT, TOP, UNIFORMS_PER_VIEW
from clove_ssl.views.draw.relations import patch_corners

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
STEPS = 4


class SameAtAllLevels(nn.Module):
    """Stands in for a backbone whose stages all give the pixels themselves."""

    stage = STAGES[-1]

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = dict.fromkeys(STAGES, channels)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return dict.fromkeys(STAGES, images)


def build(arrays: Arrays) -> DetCo:
    out, channels = arrays["encoder_q.heads_0_weight"].shape
    momentum = float(arrays["m"])
    config = DetCoConfig(
        head=HeadConfig(hidden=0, out=out),
        jigsaw=JigsawConfig(grid=1),
        temperature=float(arrays["T"]),
        queue_size=int(arrays["K"]),
        level_weights=tuple(arrays["level_weights"].tolist()),
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
        shuffle_groups=fitting_groups(len(arrays["step0.x_q"])),
    )
    method = DetCo(config, SameAtAllLevels(channels)).double()  # type: ignore[arg-type]
    for number, entries in enumerate(arrays["queue_before"]):
        queue(method, number).copy_(torch.from_numpy(entries).T)
    for name, encoder in (("q", method.encoder), ("k", method.teacher.module)):
        for level in range(len(STAGES)):
            encoder.whole_heads[level] = linear(arrays, f"encoder_{name}.heads_{level}_")
            encoder.patch_heads[level] = linear(arrays, f"encoder_{name}.heads_{level + 4}_")
    method.teacher.requires_grad_(False)
    return method


def linear(arrays: Arrays, name: str) -> nn.Linear:
    layer = nn.Linear(*reversed(arrays[name + "weight"].shape)).double()
    state = {kind: torch.from_numpy(arrays[name + kind]) for kind in ("weight", "bias")}
    layer.load_state_dict(state)
    return layer


def queue(method: DetCo, number: int) -> Tensor:
    queues = method.whole_queues if number < 4 else method.patch_queues
    return queues.entries()[number % 4]


def assert_recorded(actual: Tensor | None, expected: np.ndarray) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=1e-9)


def test_four_steps_follow_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/detco.npz")
    method, weights = build(arrays), arrays["level_weights"]
    for step in range(STEPS):
        now, progress = f"step{step}.", Progress(step, STEPS)
        here = torch.from_numpy(arrays[now + "x_q"]).requires_grad_()
        there = torch.from_numpy(arrays[now + "x_k"])
        output = method(batch_of_maps(here, there, here, there), progress)
        output.loss.backward()
        assert_recorded(output.loss, arrays[now + "total"])
        assert_recorded(here.grad, arrays[now + "grad_x_q"])
        terms = arrays[now + "terms"].reshape(3, 4)
        for name, term in zip(("global", "local", "local_to_global"), terms, strict=True):
            assert_recorded(output.metrics[f"loss_{name}"], (weights * term).sum())
        check_figures(output.metrics, arrays[now + "logits"] * float(arrays["T"]))
        method.after_step(progress)
        for number, entries in enumerate(arrays[now + "queue"]):
            assert_recorded(queue(method, number).T, entries)
        for bank in (*method.whole_queues.banks, *method.patch_queues.banks):
            assert bank.pointer == arrays[now + "ptr"].item()


def check_figures(metrics: Mapping[str, Tensor], cosines: np.ndarray) -> None:
    """Figures are those of the deepest level; the first of the recorded columns is the positive."""
    for term, suffix in ((3, ""), (7, "_patches")):
        positive, negative = cosines[:, term, 0], cosines[:, term, 1:]
        assert metrics[f"cos_positive{suffix}"].item() == pytest.approx(positive.mean())
        assert metrics[f"cos_negative{suffix}"].item() == pytest.approx(negative.mean())
        found = (cosines[:, term].argmax(1) == 0).mean()
        assert metrics[f"accuracy{suffix}"].item() == pytest.approx(found)


def test_every_recorded_jigsaw_can_be_drawn(golden: Callable[[str], Arrays]) -> None:
    """From numbers in the middle of what stands for a corner, exactly that corner comes out."""
    arrays = golden("methods/detco.npz")
    cell, patch = int(arrays["jigsaw.cell"]), int(arrays["jigsaw.patch"])
    spec = PatchSpec(first=0, grid=3, frame=int(arrays["jigsaw.image"]))
    assert spec.cell == cell
    for draw in arrays["jigsaw.corners"]:
        corners = draw.swapaxes(0, 1)  # (images, patches, 2)
        place, offset = np.divmod(corners, cell)
        cells = 3 * place[..., 0] + place[..., 1]
        rows = np.zeros((*cells.shape, UNIFORMS_PER_VIEW))
        rows[..., 0] = (cells.argsort(axis=1) + 0.5) / 9
        rows[..., [TOP, LEFT]] = (offset + 0.5) / (cell - patch + 1)
        np.testing.assert_array_equal(patch_corners(rows, spec, patch), corners)


def test_patches_are_joined_as_recorded(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/detco.npz")
    out, width = arrays["join.head.mlp_2_weight"].shape
    head = MLPHead(width, width, out).double()
    names = {"fc1": "mlp_0", "fc2": "mlp_2"}
    head.load_state_dict(
        {
            f"{mine}.{kind}": torch.from_numpy(arrays[f"join.head.{theirs}_{kind}"])
            for mine, theirs in names.items()
            for kind in ("weight", "bias")
        }
    )
    joined = join_patches(torch.from_numpy(arrays["join.x"]), 9)
    assert_recorded(head(joined), arrays["join.out"])
