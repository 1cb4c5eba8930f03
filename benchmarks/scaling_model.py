"""What communication costs on 8 to 1,024 GPUs, worked out rather than measured.

Run:  python -m benchmarks.scaling_model
Prints the tables of docs/scaling.md. What travels is counted from the model
that the recipe builds; how fast it travels is assumed (``Fabric``), and the
step of one GPU is the one measured in docs/results/speed.md (``Step``).
Seconds and bytes everywhere; n is the number of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.backbones.build import build_backbone
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.clove.method import CLoVE
from clove_ssl.methods.recipes import recipe

RECIPE = "clove-r50-200ep"
FLOAT = 4  # bytes; gradients and statistics are fp32
IMAGENET = 1_281_167  # training images
JPEG_BYTES = 110_000  # of an ImageNet image, on average
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Traffic:
    """What one step hands from GPU to GPU."""

    parameters: int
    norm_channels: tuple[int, ...]  # of each synchronized batch norm
    forward_passes: int = 3  # student on large views, on small views, teacher on large views
    backward_passes: int = 2  # the student's
    flags: int = 2  # loss not finite, asked to stop
    bucket_bytes: int = 25 * 2**20  # gradients that DDP sends at once

    @property
    def gradient_bytes(self) -> int:
        """Gradients of the student."""
        return FLOAT * self.parameters

    @property
    def buckets(self) -> int:
        """All-reduces the gradients are cut into."""
        return math.ceil(self.gradient_bytes / self.bucket_bytes)

    @property
    def forward_bytes(self) -> int:
        """What a GPU adds to the gathers of means, deviations and counts."""
        return self.forward_passes * sum(FLOAT * (2 * c + 1) for c in self.norm_channels)

    @property
    def backward_bytes(self) -> int:
        """What a GPU adds to the sums over two kinds of gradients."""
        return self.backward_passes * sum(FLOAT * 2 * c for c in self.norm_channels)


@dataclass(frozen=True)
class Fabric:
    """Links between GPUs. All of it is assumed."""

    node: int = 8  # GPUs that NVLink joins
    nvlink: float = 450e9  # bytes/s of a GPU in one direction
    network: float = 50e9  # bytes/s of a GPU's own 400 Gb/s card in one direction
    rails: int = 8  # cards of a node that work for one collective
    usable: float = 0.8  # of either bandwidth
    launch: float = 15e-6  # of a collective
    nvlink_hop: float = 1e-6
    network_hop: float = 5e-6
    host_wait: float = 30e-6  # nn.SyncBatchNorm lets the host wait once per forward layer

    def bandwidth(self, n: int) -> float:
        """Bytes/s of a ring over ``n`` GPUs: its slowest link."""
        between = self.rails * self.network
        return self.usable * (self.nvlink if n <= self.node else min(self.nvlink, between))

    def latency(self, n: int) -> float:
        """Up and down a tree, however small the message."""
        inside, nodes = min(n, self.node), math.ceil(n / self.node)
        hops = math.ceil(math.log2(inside)) * self.nvlink_hop
        hops += math.ceil(math.log2(nodes)) * self.network_hop
        return self.launch + 2 * hops

    def all_reduce(self, size: float, n: int) -> float:
        """Sum ``size`` bytes over all GPUs."""
        return 2 * (n - 1) / n * size / self.bandwidth(n) + self.latency(n) if n > 1 else 0.0

    def all_gather(self, size: float, n: int) -> float:
        """Hand ``size`` bytes of each GPU to all others."""
        return (n - 1) * size / self.bandwidth(n) + self.latency(n) if n > 1 else 0.0


@dataclass(frozen=True)
class Step:
    """The step of one GPU; all measured but ``backward_share``, which follows from pixels."""

    backward_share: float
    rate: float = 1850.0  # images per second at ``images`` per step
    images: int = 256
    fixed: float = 0.0009  # seconds of LARS and teacher, whatever the batch

    def compute(self, images: int) -> float:
        """Time for ``images`` if it shrinks with them, which small batches do not quite do."""
        return self.fixed + (self.images / self.rate - self.fixed) * images / self.images


@dataclass(frozen=True)
class Estimate:
    """A step of ``n`` GPUs with ``images`` each."""

    n: int
    images: int
    compute: float
    norms: float  # on the way of the forward and the backward pass
    gradients: float  # beside the backward pass
    exposed: float  # what of the gradients the backward pass does not hide

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.norms + self.exposed

    @property
    def rate(self) -> float:
        """Images per second of all GPUs."""
        return self.n * self.images / self.seconds


def estimate(
    traffic: Traffic, fabric: Fabric, step: Step, *, n: int, images: int, sync: bool = True
) -> Estimate:
    """Add up a step; the last bucket of gradients has nothing left to hide behind."""
    compute = step.compute(images)
    bucket = fabric.all_reduce(traffic.gradient_bytes / traffic.buckets, n)
    gradients = traffic.buckets * bucket
    hidden = step.backward_share * compute
    norms = norm_seconds(traffic, fabric, n) if sync else 0.0
    exposed = max(bucket, gradients - hidden)
    return Estimate(n, images, compute, norms, gradients, exposed)


def norm_seconds(traffic: Traffic, fabric: Fabric, n: int) -> float:
    """Layer after layer, because each needs the statistics of the one before."""
    if n == 1:
        return 0.0
    forward = (
        fabric.all_gather(FLOAT * (2 * c + 1), n) + fabric.host_wait for c in traffic.norm_channels
    )
    backward = (fabric.all_reduce(FLOAT * 2 * c, n) for c in traffic.norm_channels)
    return traffic.forward_passes * sum(forward) + traffic.backward_passes * sum(backward)


def count() -> tuple[Traffic, Step]:
    """Traffic and shape of a step of the published recipe."""
    config = recipe(RECIPE, Path("unused"))
    method = config.method.build(build_backbone(config.backbone))
    assert isinstance(method, CLoVE)
    assert isinstance(config.method, CLoVEConfig)
    parameters = sum(p.numel() for p in method.parameters() if p.requires_grad)
    norms = [each for each in method.encoder.modules() if isinstance(each, _BatchNorm)]
    student = sum(view.size**2 for view in method.views())
    teacher = sum(view.size**2 for view in method.views() if view.role == "global")
    traffic = Traffic(parameters, tuple(norm.num_features for norm in norms))
    return traffic, Step(backward_share=2 * student / (3 * student + teacher))


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown."""
    head = list(columns)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def traffic_table(traffic: Traffic) -> str:
    """What a GPU puts on the wire, and how often."""
    layers = len(traffic.norm_channels)
    rows = [
        ("gradients", f"{traffic.gradient_bytes:,}", str(traffic.buckets)),
        ("batch norm, forward", f"{traffic.forward_bytes:,}", str(traffic.forward_passes * layers)),
        (
            "batch norm, backward",
            f"{traffic.backward_bytes:,}",
            str(traffic.backward_passes * layers),
        ),
        ("flags", str(FLOAT * traffic.flags), "1"),
    ]
    return table(("per step", "bytes of one GPU", "collectives"), rows)


def efficiency_table(traffic: Traffic, step: Step, *, batch: int | None) -> str:
    """Efficiency against one GPU at the measured rate, for a fixed ``batch`` or 256 per GPU."""
    fabric = Fabric()
    slow = replace(fabric, rails=1)
    rows = []
    for n in GPUS:
        images = batch // n if batch else step.images
        kinds = [(fabric, True), (fabric, False), (slow, True)]
        steps = [estimate(traffic, f, step, n=n, images=images, sync=s) for f, s in kinds]
        first, shares = steps[0], [f"{each.rate / n / step.rate:.0%}" for each in steps]
        parts = (first.compute, first.norms, first.gradients, first.exposed)
        times = [f"{1000 * seconds:.1f}" for seconds in parts]
        rows.append([str(n), str(images), *times, f"{first.rate:,.0f}", *shares])
    times_head = ("compute ms", "norms ms", "gradients ms", "exposed ms")
    shares_head = ("efficiency", "local norms", "one card per node")
    return table(("GPUs", "images each", *times_head, "images/s", *shares_head), rows)


def imagenet_table(traffic: Traffic, step: Step, *, batch: int) -> str:
    """Hours and GPU-hours of the published runs."""
    rows = []
    for n in (1, 8, 64):
        images = min(batch // n, step.images)
        rate = estimate(traffic, Fabric(), step, n=n, images=images).rate
        hours = [epochs * IMAGENET / rate / 3600 for epochs in (200, 400)]
        figures = [f"{h:.1f} h, {n * h:,.0f} GPU-hours" for h in hours]
        rows.append([str(n), str(images), f"{rate:,.0f}", *figures])
    return table(("H200s", "images each", "images/s", "200 epochs", "400 epochs"), rows)


def reading_table(step: Step, *, wait: float) -> str:
    """What GPUs at the measured rate read, and the requests in flight if each takes ``wait``."""
    rows = []
    for n in (1, 8, 64, 1024):
        rate = n * step.rate
        share = rate / math.ceil(n / Fabric.node)
        figures = (f"{rate:,.0f}", f"{rate * JPEG_BYTES / 1e9:.2f}", f"{share:,.0f}")
        rows.append([str(n), *figures, f"{share * JPEG_BYTES / 1e9:.2f}", f"{share * wait:.0f}"])
    per_node = ("images/s per node", "GB/s per node", "requests in flight per node")
    return table(("GPUs", "images/s", "GB/s", *per_node), rows)


if __name__ == "__main__":
    traffic, step = count()
    print(f"{traffic.parameters:,} parameters; {len(traffic.norm_channels)} batch norms with")
    print(f"{sum(traffic.norm_channels):,} channels; backward share {step.backward_share:.3f}\n")
    print(traffic_table(traffic))
    print(efficiency_table(traffic, step, batch=None))
    print(efficiency_table(traffic, step, batch=2048))
    print(imagenet_table(traffic, step, batch=2048))
    print(reading_table(step, wait=0.03))
