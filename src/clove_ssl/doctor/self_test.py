"""A two-second trial of what a run needs: network, decoder, disk.

Torch is imported late, so that a broken installation can still be reported.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.doctor.machine import Check
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.config import ProjectorConfig

if TYPE_CHECKING:
    import torch

    from clove_ssl.views.batch import View, ViewBatch

IMAGES, SIDE = 4, 96
COLOR = (200, 60, 30)


def self_tests() -> Iterator[Check]:
    """Try everything; a failure is an answer, not an exception."""
    yield attempt("try: network", train_one_step)
    yield attempt("try: decoding", decode_a_jpeg)
    yield attempt("try: files", write_and_read)


def attempt(name: str, trial: Callable[[], str]) -> Check:
    """The outcome of a trial that says what it did."""
    try:
        return Check(name, "ok", trial())
    except Exception as error:
        return Check(name, "problem", f"{type(error).__name__}: {error}")


def train_one_step() -> str:
    """One tiny forward and backward pass of CLoVE on random pixels."""
    import torch

    from clove_ssl.backbones.build import build_backbone
    from clove_ssl.methods.base import Progress

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    views = ViewsConfig(global_size=SIDE, local_count=0)
    config = CLoVEConfig(views=views, projector=ProjectorConfig(hidden=64, out=32))
    with torch.random.fork_rng():
        method = config.build(build_backbone(BackboneConfig(name="resnet18"))).to(device)
        loss = method(_random_batch(device), Progress(step=0, total_steps=1)).loss
        loss.backward()
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    if not gradients or not all(g.isfinite().all() for g in (loss, *gradients)):
        raise ArithmeticError(f"the loss ({loss.item()}) or its gradient is not a finite number")
    return f"one step of CLoVE with a resnet18 on {device.type}"


def decode_a_jpeg() -> str:
    """Make a JPEG of one colour and read it back."""
    from PIL import Image

    from clove_ssl.data.decode import decode

    file = io.BytesIO()
    Image.new("RGB", (32, 24), COLOR).save(file, "JPEG")
    pixels = decode(file.getvalue(), max_pixels=1000)  # (3, 24, 32)
    means = pixels.float().mean((1, 2)).tolist()
    if max(abs(mean - color) for mean, color in zip(means, COLOR, strict=True)) > 5:
        raise ValueError(f"the colour {COLOR} was decoded as {means}")
    return "a JPEG made and read back"


def write_and_read() -> str:
    """Write a file and read it back."""
    with tempfile.TemporaryDirectory(prefix="clove-") as folder:
        file = Path(folder) / "trial"
        file.write_bytes(bytes(range(256)))
        if file.read_bytes() != bytes(range(256)):
            raise OSError(f"{file} does not hold what was written to it")
    return f"written and read back in {tempfile.gettempdir()}"


def _random_batch(device: torch.device) -> ViewBatch:
    """Two overlapping crops of images that are noise."""
    import torch

    from clove_ssl.views.batch import ViewBatch

    views = (_random_view((0.0, 0.0, 80.0, 80.0)), _random_view((20.0, 20.0, 100.0, 100.0)))
    return ViewBatch(views, torch.arange(IMAGES)).to(device)


def _random_view(box: tuple[float, float, float, float]) -> View:
    import torch

    from clove_ssl.views.batch import View
    from clove_ssl.views.geometry import CropGeometry

    unflipped = torch.zeros(IMAGES, dtype=torch.bool)
    geometry = CropGeometry(
        boxes=torch.tensor([box] * IMAGES),
        flipped=unflipped,
        flipped_vertically=unflipped,
        image_size=torch.full((IMAGES, 2), 100),
    )
    return View(torch.randn(IMAGES, 3, SIDE, SIDE), geometry, "global")
