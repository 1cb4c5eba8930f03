"""Layer-wise adaptive rate scaling, and the optimizer a config asks for.

LARS scales every layer's gradient to a fixed share of its weights' norm, which
keeps large batches stable. This is the variant of CLoVE's and PixPro's code:
weight decay enters the gradient before the trust ratio is taken, and the
learning rate multiplies the momentum buffer instead of entering it.

On a GPU a step is a handful of kernels of ours, where they can take its tensors; torch's operations
on lists compute the same everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from clove_ssl.config.pretraining import OptimizerConfig
from clove_ssl.layers.fused_norm.activation import has_triton

if TYPE_CHECKING:
    from clove_ssl.lars_kernels import TensorList

_SETTINGS = ("lr", "momentum", "weight_decay", "trust", "eps")  # of a group


class LARS(Optimizer):
    """SGD with momentum whose gradients are rescaled layer by layer.

    Parameters of at most one dimension (biases, norms, a temperature) get
    neither weight decay nor rescaling. Gradients must be unscaled before
    :meth:`step` and are left untouched by it; nothing is read back from the
    device.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate; schedules change ``param_groups[i]["lr"]``.
        momentum: Share of the last update that is kept.
        weight_decay: Share of a weight that is added to its gradient.
        trust: Norm of a rescaled gradient as a share of its weights' norm.
        eps: Guards the division by the gradient's norm.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        *,
        eps: float = 1e-8,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "eps": eps,
        }
        for name, value in defaults.items():
            if not value >= 0:
                raise ValueError(f"{name}={value} must not be negative")
        super().__init__(params, defaults)
        self._lists: dict[Tensor, TensorList] = {}  # each by its first tensor

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameters in _alike(group["params"]):
                self._update(parameters, group)
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Neither copies nor checkpoints say where tensors lie: each process finds them itself.
        self._lists = {}

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [_dense_gradient(parameter) for parameter in parameters]
        buffers = []
        if group["momentum"]:
            buffers = [self._buffer(parameter) for parameter in parameters]
        if not self._update_by_kernels(parameters, gradients, buffers, group):
            _update_by_torch(parameters, gradients, buffers, group)

    def _update_by_kernels(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        buffers: list[Tensor],
        group: dict[str, Any],
    ) -> bool:
        """Whether kernels of ours could take these tensors, and have."""
        if not _has_kernels(parameters[0].device):
            return False
        # Here, since importing the kernels needs Triton, which a CPU installation does not have.
        from clove_ssl.lars_kernels import TensorList, fits

        if not fits(parameters, gradients, buffers):
            return False
        tensors = self._lists.setdefault(parameters[0], TensorList())
        tensors.update(
            parameters,
            gradients,
            buffers,
            layerwise=parameters[0].ndim > 1,
            **{name: group[name] for name in _SETTINGS},
        )
        return True

    def _buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def build_optimizer(config: OptimizerConfig, module: nn.Module, peak_lr: float) -> Optimizer:
    """The optimizer for the trainable parameters of ``module``.

    Parameters that do not decay form a group of their own.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # By dimensions and not by names, as the released code does: this holds for any network.
    least = 2 if config.decay == "weights" else 0  # dimensions of what decays
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= least], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < least], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "lars":
        return LARS(groups, peak_lr, config.momentum, trust=config.trust)
    if config.name == "sgd":
        return torch.optim.SGD(groups, peak_lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, peak_lr)


def _alike(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters with a gradient, in lists that can be updated together."""
    lists: dict[tuple[torch.device, torch.dtype, bool], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            key = (parameter.device, parameter.dtype, parameter.ndim > 1)
            lists.setdefault(key, []).append(parameter)
    yield from lists.values()


def _dense_gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None  # _alike leaves the others out
    if parameter.grad.is_sparse:
        raise RuntimeError("LARS does not support sparse gradients")
    return parameter.grad


def _has_kernels(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and device.index == torch.cuda.current_device()  # which is where kernels are started
        # A graph would copy addresses from the host's memory again whenever it runs.
        and not torch.cuda.is_current_stream_capturing()
        and has_triton()
    )


def _update_by_torch(
    parameters: list[Tensor],
    updates: list[Tensor],
    buffers: list[Tensor],  # none without momentum
    group: dict[str, Any],
) -> None:
    """One step of parameters that are alike; ``updates`` are their gradients."""
    # As in the released code: parameters of one dimension run plain SGD, at the full learning rate.
    if parameters[0].ndim > 1:
        # Before the ratio, so that the decayed gradient as a whole has the trusted size.
        if group["weight_decay"]:
            updates = _tensors(torch._foreach_add(updates, parameters, alpha=group["weight_decay"]))
        ratios = _trust_ratios(parameters, updates, trust=group["trust"], eps=group["eps"])
        updates = _tensors(torch._foreach_mul(updates, ratios))
    if buffers:
        # The learning rate is not in the buffer: a warm-up then scales old gradients as well, and
        # the schedule decides alone how far a step goes.
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        updates = buffers
    # Lists at once: a ResNet-50 has about 160 tensors, and a kernel for each would keep a GPU
    # waiting.
    torch._foreach_add_(parameters, updates, alpha=-group["lr"])


def _trust_ratios(
    parameters: list[Tensor], gradients: list[Tensor], *, trust: float, eps: float
) -> list[Tensor]:
    """One factor per parameter, 1 where a weight or gradient is all zero."""
    weight_norms = torch.stack(_tensors(torch._foreach_norm(parameters)))
    gradient_norms = torch.stack(_tensors(torch._foreach_norm(gradients)))
    ratios = trust * weight_norms / (gradient_norms + eps)
    # A factor of 0 would freeze weights that start at zero for good. Decided on the device, or the
    # host would wait for every norm.
    usable = (weight_norms > 0) & (gradient_norms > 0)
    return list(torch.where(usable, ratios, torch.ones_like(ratios)).unbind())


def _tensors(result: Any) -> list[Tensor]:
    """What a foreach operation returns, as a list: torch types it loosely."""
    return list(result)
