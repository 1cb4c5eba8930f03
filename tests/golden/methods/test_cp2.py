"""Three CP2 steps against a recording of the released code, from whole photos to the queue.

The recorded encoder averages 16 x 16 pixels and has one 1x1 convolution; its
student never moves. All is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders.batches.pasted_views import pasted_batch
from torch import Tensor, nn

from clove_ssl.config.views import PasteSpec, ViewsConfig
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import HeadConfig, TeacherConfig
from clove_ssl.methods.cp2.config import CP2Config
from clove_ssl.methods.cp2.method import CP2
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.pasting import foreground_boxes, foreground_mask, paste_views

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
STEPS = 3


class Averaged(nn.Module):
    """Stands in for a backbone: the mean of square blocks of pixels."""

    out_channels = 3

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def features(self, images: Tensor) -> Tensor:
        return F.avg_pool2d(images, self.stride)


def build(arrays: Arrays) -> CP2:
    momentum, width = float(arrays["m"]), len(arrays["conv_q_bias"])
    config = CP2Config(
        head=HeadConfig(hidden=4, out=width),
        temperature=float(arrays["T"]),
        queue_size=int(arrays["K"]),
        dense_weight=float(arrays["dense_weight"]),
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
        shuffle_groups=len(arrays["step0.fg_q"]),  # no batch norm: each image may be alone
    )
    method = CP2(config, Averaged(int(arrays["stride"])))  # type: ignore[arg-type]
    method.queue.entries.copy_(torch.from_numpy(arrays["queue_before"]).T)
    for name, encoder in (("q", method.encoder), ("k", method.teacher.module)):
        encoder.pyramid = nn.Identity()  # type: ignore[assignment]
        encoder.head = nn.Conv2d(3, width, 1)  # type: ignore[assignment]
        encoder.head.requires_grad_(name == "q")
        with torch.no_grad():
            for kind in ("weight", "bias"):
                recorded = torch.from_numpy(arrays[f"conv_{name}_{kind}"])
                encoder.head.get_parameter(kind).copy_(recorded)
    return method


def pasted(arrays: Arrays, now: str, view: int) -> tuple[Tensor, Tensor]:
    """Photos of one view pasted by our machinery, and where: each meets its own background."""
    name, shown, boxes = "qk"[view], [], []
    spec = replace(ViewsConfig(local_count=0).specs()[0], paste=PasteSpec())
    drawn = draw_views(np.zeros((2, 2, 37)), [9, 9], [9, 9], (spec,))
    photos = zip(arrays[f"{now}fg_{name}"], arrays[f"{now}bg_{name}"], strict=True)
    for (front, back), rectangle in zip(photos, arrays[now + "rect"][view], strict=True):
        parameters: ViewParameters = replace(drawn, paste=np.stack([rectangle] * 2)[:, None])
        pair = torch.from_numpy(np.stack([front, back]))
        shown.append(paste_views([pair], parameters, (spec,))[0][0])
        found = foreground_boxes(parameters, 0, spec)
        assert found is not None
        boxes.append(found[0])
    return torch.stack(shown), torch.stack(boxes)


def assert_recorded(actual: Tensor | None, expected: np.ndarray, name: str = "") -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_three_steps_follow_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/cp2.npz")
    method = build(arrays)
    for step in range(STEPS):
        now, progress = f"step{step}.", Progress(step, STEPS)
        views = [pasted(arrays, now, view) for view in (0, 1)]
        for (pixels, boxes), name in zip(views, "qk", strict=True):
            recorded = arrays[f"{now}mask_{name}"]
            mask = foreground_mask(boxes, pixels.shape[-1], recorded.shape[1:])  # type: ignore[arg-type]
            np.testing.assert_array_equal(mask, recorded.astype(bool))
        assert_recorded(method.encoder(views[0][0]), arrays[now + "feature_q"])
        method.zero_grad()
        output = method(pasted_batch(*views), progress)
        output.loss.backward()
        metrics = output.metrics
        assert_recorded(metrics["loss_global"], arrays[now + "loss_instance"])
        assert_recorded(metrics["loss_dense"], arrays[now + "loss_dense"])
        assert_recorded(output.loss, arrays[now + "loss_total"])
        cosines = arrays[now + "logits"] * float(arrays["T"])
        assert_recorded(metrics["cos_positive"], cosines[:, 0].mean())
        assert_recorded(metrics["cos_negative"], cosines[:, 1:].mean())
        gradient = method.encoder.head.get_parameter("weight").grad
        assert_recorded(gradient, arrays[now + "grad_conv_q_weight"])
        method.after_step(progress)
        assert_recorded(method.queue.entries.T, arrays[now + "queue"], "queue")
        assert method.queue.pointer == arrays[now + "ptr"].item()
        teacher = method.teacher.module.head.get_parameter("weight")
        assert_recorded(teacher, arrays[now + "conv_k_weight"], "teacher")


def test_the_gradient_of_the_features_is_the_recorded_one(
    golden: Callable[[str], Arrays],
) -> None:
    arrays = golden("methods/cp2.npz")
    for step in range(STEPS):
        now = f"step{step}."
        negatives = arrays["queue_before"] if step == 0 else arrays[f"step{step - 1}.queue"]
        method = build(arrays)
        method.queue.entries.copy_(torch.from_numpy(negatives).T)
        for encoder in (method.encoder, method.teacher.module):
            encoder.head = nn.Identity()  # type: ignore[assignment]
            encoder.backbone = Averaged(1)  # type: ignore[assignment]
        method.double().eval()
        features = [torch.from_numpy(arrays[f"{now}feature_{name}"]).double() for name in "qk"]
        features[0].requires_grad_()
        cell = int(arrays["stride"])
        boxes = [torch.from_numpy(arrays[now + "rect"][view]) / cell for view in (0, 1)]
        edges = [
            torch.stack([b[:, 1], b[:, 0], b[:, 1] + b[:, 3], b[:, 0] + b[:, 2]], 1) for b in boxes
        ]
        output = method(pasted_batch(*zip(features, edges, strict=True)), Progress(0, 1))
        output.loss.backward()
        recorded = arrays[now + "grad_feature_q"]
        assert features[0].grad is not None
        np.testing.assert_allclose(features[0].grad, recorded, rtol=1e-5, atol=1e-7)
