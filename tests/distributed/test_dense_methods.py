"""PixPro, SlotCon and VICRegL on two processes equal themselves on one with the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from references.tiny_backbone import TinyBackbone
from references.two_view_runs import IMAGES, two_views
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clove_ssl.config.methods.base import MethodConfig
from clove_ssl.config.methods.clove import ProjectorConfig
from clove_ssl.config.methods.pixpro import InstanceConfig, PixProConfig
from clove_ssl.config.methods.slotcon import SlotConConfig, SlotHeadConfig, SlotLossConfig
from clove_ssl.config.methods.vicregl import VICRegLConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.losses.slots import winners
from clove_ssl.methods.base import Method, Progress
from clove_ssl.methods.slotcon import SlotCon
from clove_ssl.modules.normalization import synchronize_norms
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

START = Progress(step=0, total_steps=10)
VIEWS = ViewsConfig(global_size=16, local_count=0)
METHODS: dict[str, MethodConfig] = {
    "pixpro": PixProConfig(
        views=VIEWS,
        projector=ProjectorConfig(hidden=10, out=8, bias=True, last_norm="none"),
        instance=InstanceConfig(weight=1.0, hidden=10, out=5),
    ),
    # Means over common slots differ between processes; they are compared in a test of their own.
    "slotcon": SlotConConfig(
        views=VIEWS,
        prototypes=7,
        head=SlotHeadConfig(hidden=10, out=8),
        loss=SlotLossConfig(group_weight=1.0),
    ),
    "vicregl": VICRegLConfig(views=VIEWS, global_width=9, local_width=5, matches=(6, 3)),
}


def build(name: str) -> Method:
    torch.manual_seed(0)
    method = METHODS[name].build(TinyBackbone()).double()  # type: ignore[arg-type]
    with torch.no_grad():  # heads that start small would hide mistakes
        for parameter in method.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return method


def share_of(batch: ViewBatch, rank: int, processes: int) -> ViewBatch:
    rows = slice(rank * IMAGES // processes, (rank + 1) * IMAGES // processes)

    def cut(geometry: CropGeometry) -> CropGeometry:
        return CropGeometry(**{name: value[rows] for name, value in vars(geometry).items()})

    views = tuple(View(v.pixels[rows], cut(v.geometry), v.role) for v in batch.views)
    return ViewBatch(views, batch.index[rows])


def slot_sum(method: SlotCon, batch: ViewBatch) -> Tensor:
    """The loss on slots of one direction, summed over this process's queries, and their number."""
    student = method.encoder(batch.views[0].pixels)
    teacher = method.teacher.module(batch.views[1].pixels)
    common = (winners(student.scores) & winners(teacher.scores)).sum()
    loss = method._slot_loss(student, teacher).loss.detach()
    return torch.stack([loss * common, common.double()])


def step(rank: int, processes: int, name: str) -> dict[str, Any]:
    """One forward and backward pass; everything worth comparing."""
    method = build(name)
    model: nn.Module = method
    if processes > 1:
        synchronize_norms(method, "cpu")
        model = DistributedDataParallel(method, broadcast_buffers=False)
    batch = share_of(two_views(METHODS[name]), rank, processes)
    output = model(batch, START)
    output.loss.backward()
    method.after_step(START)
    gradients = {n: p.grad.clone() for n, p in method.named_parameters() if p.grad is not None}
    state = {n: value.clone() for n, value in method.state_dict().items()}
    sums = slot_sum(method, batch) if isinstance(method, SlotCon) else torch.zeros(2)
    return {
        "loss": output.loss.detach() / processes,
        "gradients": gradients,
        "state": state,
        "slots": sums,
    }


def worker(rank: int, folder: str, name: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous-{name}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    torch.save(step(rank, 2, name), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def assert_all_close(together: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", list(METHODS))
def test_two_processes_equal_one(tmp_path: Path, name: str) -> None:
    alone = step(0, 1, name)
    mp.start_processes(worker, (str(tmp_path), name), nprocs=2, start_method="fork")
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    torch.testing.assert_close(ranks[0]["loss"] + ranks[1]["loss"], alone["loss"])
    torch.testing.assert_close(ranks[0]["slots"] + ranks[1]["slots"], alone["slots"])
    for together in ranks:
        assert_all_close(together["gradients"], alone["gradients"])
        assert_all_close(together["state"], alone["state"])


def test_both_processes_of_the_slot_test_have_queries() -> None:
    method = build("slotcon")
    assert isinstance(method, SlotCon)
    for rank in range(2):
        assert slot_sum(method, share_of(two_views(METHODS["slotcon"]), rank, 2))[1] > 1
