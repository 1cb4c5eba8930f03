"""Three whole training steps against a recording of the released code.

The encoder is a tiny stand-in: a 4x4 convolution of stride 4, batch norm, ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.methods.base import Progress
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.clove.method import CLoVE
from clove_ssl.methods.config import MatchingConfig, ProjectorConfig
from clove_ssl.optimizers import LARS
from clove_ssl.views.batch import View, ViewBatch

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
STEPS = range(3)


class StandIn(nn.Module):
    """The recorded encoder, in the place of a backbone."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.conv = nn.Conv2d(3, out_channels, 4, stride=4, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(images)))


@dataclass(frozen=True)
class RecordedGeometry:
    """Boxes as recorded, already normalised and signed."""

    boxes: Tensor

    def signed_boxes(self, coordinates: str) -> Tensor:
        return self.boxes


class RecordedCLoVE(CLoVE):
    """CLoVE with the recording's teacher momentum, which follows no cosine."""

    momenta: list[float]

    def teacher_momentum(self, progress: Progress) -> float:
        return self.momenta[progress.step]


def recorded_name(key: str) -> str:
    """Name of a recorded array for a key of the method's state dict."""
    suffix = ""
    if key.startswith("teacher.module."):
        key, suffix = "encoder." + key.removeprefix("teacher.module."), "_k"
    pairs = {
        "encoder.backbone.": f"encoder{suffix}.",
        "encoder.projector.": f"projector{suffix}.",
        "attention.qkv.": "self_attn.in_proj.",
        "attention.out.": "self_attn.out_proj.",
        "conv1": "linear1",
        "norm1": "bn1",
        "conv2": "linear2",
        "norm2": "bn2",
    }
    for mine, theirs in pairs.items():
        key = key.replace(mine, theirs)
    return key.replace(".", "_")


def build(arrays: Arrays) -> RecordedCLoVE:
    hidden, out = (len(arrays[f"before.projector_linear{i}_weight"]) for i in (1, 2))
    config = CLoVEConfig(
        projector=ProjectorConfig(hidden=hidden, out=out),
        attention=AttentionConfig(kind="plain", heads=int(arrays["heads"])),
        matching=MatchingConfig(threshold=float(arrays["ratio"])),
        loss=LossConfig(positive_weight=float(arrays["gamma"]), margin=float(arrays["margin"])),
    )
    stand_in = StandIn(len(arrays["before.encoder_conv_weight"]))
    method = RecordedCLoVE(config, stand_in).double()  # type: ignore[arg-type]
    method.momenta = arrays["teacher_momentum"].tolist()
    state = method.state_dict()
    for key, value in state.items():
        if "num_batches" not in key:
            value.copy_(torch.from_numpy(arrays[f"before.{recorded_name(key)}"]))
    return method


def batch_of(arrays: Arrays, step: int) -> ViewBatch:
    coords = torch.from_numpy(arrays[f"step{step}.coords"])
    large = torch.from_numpy(arrays[f"step{step}.global_images"])
    small = torch.from_numpy(arrays[f"step{step}.local_images"])
    roles = ["global"] * len(large) + ["local"] * len(small)
    views = tuple(
        View(pixels, RecordedGeometry(boxes), role)  # type: ignore[arg-type]
        for pixels, boxes, role in zip([*large, *small], coords, roles, strict=True)
    )
    return ViewBatch(views, torch.arange(coords.shape[1]))


def assert_recorded(actual: Tensor, arrays: Arrays, name: str) -> None:
    np.testing.assert_allclose(actual.detach(), arrays[name], rtol=0, atol=1e-7, err_msg=name)


def test_three_steps_follow_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/clove_step.npz")
    method = build(arrays)
    trained = [p for p in method.parameters() if p.requires_grad]
    settings = {k: float(arrays[k]) for k in ("momentum", "weight_decay", "trust")}
    optimizer = LARS(trained, lr=1.0, eps=float(arrays["lars_eps"]), **settings)
    for step in STEPS:
        optimizer.param_groups[0]["lr"] = float(arrays["lr"][step])
        progress = Progress(step, len(STEPS))
        output = method(batch_of(arrays, step), progress)
        optimizer.zero_grad()
        output.loss.backward()
        assert_recorded(output.loss, arrays, f"step{step}.loss")
        for key, parameter in method.named_parameters():
            if parameter.requires_grad:
                assert_recorded(parameter.grad, arrays, f"step{step}.grad_{recorded_name(key)}")
        optimizer.step()
        method.after_step(progress)
        for key, value in method.state_dict().items():
            if "num_batches" not in key:
                assert_recorded(value, arrays, f"step{step}.after_{recorded_name(key)}")


def test_the_first_steps_embeddings_are_the_recorded_ones(
    golden: Callable[[str], Arrays],
) -> None:
    arrays = golden("methods/clove_step.npz")
    method = build(arrays)
    seen: list[tuple[Tensor, Tensor]] = []
    method.cell_loss.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[:2]))
    method(batch_of(arrays, 0), Progress(0, len(STEPS)))
    (large, targets), (small, _) = seen  # each view once per teacher view it is compared with
    recorded_small = arrays["step0.local_student"]
    np.testing.assert_allclose(
        small[: len(recorded_small)].detach(), recorded_small, rtol=0, atol=1e-9
    )
    images = len(large) // 2
    swapped = torch.cat([large[images:], large[:images]]).detach()
    np.testing.assert_allclose(swapped, arrays["step0.global_student"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(targets, arrays["step0.global_teacher"], rtol=0, atol=1e-9)
