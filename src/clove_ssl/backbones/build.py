"""Build a backbone whose feature maps have the same names in every architecture.

Stages are called c2, c3, c4 and c5 and have strides 4, 8, 16 and 32 (c5 has 16
when it is dilated). Networks come from torchvision, or from timm as
``timm:NAME``; their classifiers are gone, the names of all other parameters are
those of the library, so that weights travel without renaming.

Dimensions: B images, H x W pixels, D channels, h x w cells of a feature map.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torchvision import models
from torchvision.models.resnet import Bottleneck

from clove_ssl.backbones.pieces import RecutResNet, cut_in_blocks, recut
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError, unknown_name

STAGES = ("c2", "c3", "c4", "c5")
TIMM_PREFIX = "timm:"
CAFFE_SUFFIX = "_caffe"
"""A ResNet as its authors built it: the first convolution of a block strides, not the second."""
_CAFFE_NAMES = ("resnet50_caffe", "resnet101_caffe", "resnet152_caffe")

Parts = Mapping[str, tuple[str, ...]]
"""For each stage the submodules of the body that lead to it from the stage before."""

RESNET_PARTS = {
    "c2": ("conv1", "bn1", "relu", "maxpool", "layer1"),
    "c3": ("layer2",),
    "c4": ("layer3",),
    "c5": ("layer4",),
}
_CONVNEXT_PARTS = {
    "c2": ("features.0", "features.1"),
    "c3": ("features.2", "features.3"),
    "c4": ("features.4", "features.5"),
    "c5": ("features.6", "features.7"),
}
_REGNET_PARTS = {
    "c2": ("stem", "trunk_output.block1"),
    "c3": ("trunk_output.block2",),
    "c4": ("trunk_output.block3",),
    "c5": ("trunk_output.block4",),
}
_PARTS_OF_FAMILY: dict[str, Parts] = {
    "resnet": RESNET_PARTS,
    "resnext": RESNET_PARTS,
    "wide_resnet": RESNET_PARTS,
    "convnext": _CONVNEXT_PARTS,
    "regnet": _REGNET_PARTS,
}


class Backbone(nn.Module):
    """A network without classifier that gives a feature map per stage.

    Args:
        body: The network; its state dict has the names of the library it is from.
        name: The name it was built by, as in ``clove list backbones``.
        parts: The submodules of ``body`` in running order, by the stage they end.
        stage: The stage that :meth:`features` stops at.
    """

    def __init__(self, body: nn.Module, *, name: str, parts: Parts, stage: str) -> None:
        super().__init__()
        self.body = body
        self.name = name
        self.parts = dict(parts)
        self.stage = stage
        self.last_norm: float | None = None  # see ``last_norm``
        self._wanted: tuple[str, ...] = ()
        # Lists and plain objects, which torch does not register: the names of parameters stay.
        self._steps: dict[str, list[nn.Module]] = {}
        self._recut: RecutResNet | None = None
        self._apart: dict[str, RecutResNet | None] = {}  # stages that run alone
        self.channels, self.strides = self._measure()

    @property
    def out_channels(self) -> int:
        """Channels of the map that :meth:`features` gives."""
        return self.channels[self.stage]

    @property
    def output_stride(self) -> Literal[16, 32]:
        """The config value it was built with: 16 when the last stage is dilated."""
        return 16 if self.strides.get(STAGES[-1]) == 16 else 32

    def forward(self, images: Tensor, last: str = STAGES[-1]) -> dict[str, Tensor]:
        """(B, 3, H, W) -> {stage: (B, D, h, w)} for all stages up to ``last``."""
        return self._run(images, last)

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, out_channels, h, w); stages after ``stage`` do not run."""
        if self._recut is not None:
            return self._recut(images)
        return self._run(images, self.stage)[self.stage]

    def maps(self, images: Tensor) -> dict[str, Tensor]:
        """The maps of the stages given to :meth:`hand_out` and of ``stage``, from one pass."""
        stages = (*self._wanted, self.stage)
        if self._recut is not None:
            return dict(zip(stages, self._recut.maps(images), strict=True))
        maps = self._run(images, self.stage)
        return {stage: maps[stage] for stage in stages}

    def run_stage(self, stage: str, feature_map: Tensor) -> Tensor:
        """Run one stage alone, on the map of the one before."""
        if self._recut is not None and stage not in self._apart:
            self._apart[stage] = recut(self._modules_of(stage))
        # Built when it is first asked for: only C4 detectors run a stage on its own.
        fused = self._apart.get(stage)
        if fused is not None:
            return fused(feature_map)
        for module in self._modules_of(stage):
            feature_map = module(feature_map)
        return feature_map

    def hand_out(self, stages: Iterable[str]) -> None:
        """Name the stages before ``stage`` whose maps :meth:`maps` gives, too."""
        last = STAGES.index(self.stage)
        self._wanted = tuple(stage for stage in STAGES[:last] if stage in set(stages))

    def freeze_unused(self) -> None:
        """Take the gradients from the stages that :meth:`features` does not run."""
        for stage in STAGES[STAGES.index(self.stage) + 1 :]:
            for path in self.parts.get(stage, ()):
                # DDP would otherwise wait for gradients that never come.
                self.body.get_submodule(path).requires_grad_(False)

    def cut(self) -> list[nn.Module]:
        """Run in pieces from now on, and hand them out to be compiled.

        For :meth:`features` and :meth:`maps` a ResNet is cut where it costs least; the maps of
        all stages come from whole blocks.
        """
        self._recut = self._recut_resnet()
        pieces = [] if self._recut is None else self._recut.pieces
        for stage in self.parts:
            self._steps[stage], blocks = cut_in_blocks(self._modules_of(stage))
            pieces += blocks
        return pieces

    @property
    def can_fuse(self) -> bool:
        """Whether :meth:`fuse` makes a difference."""
        return self._recut_resnet() is not None

    def fuse(self) -> None:
        """Let :meth:`features` and :meth:`maps` of a ResNet use kernels of ours from now on."""
        self._recut = self._recut_resnet()

    def join(self) -> None:
        """Run in one piece again, as before :meth:`cut`."""
        self._steps, self._recut, self._apart = {}, None, {}

    def _recut_resnet(self) -> RecutResNet | None:
        """The part that :meth:`features` runs in pieces, if it is that of a ResNet."""
        needed = STAGES[: STAGES.index(self.stage) + 1]
        return recut(
            (module for stage in needed for module in self._modules_of(stage)),
            wanted=[self._modules_of(stage)[-1] for stage in self._wanted],
        )

    def _modules_of(self, stage: str) -> list[nn.Module]:
        """The modules that lead to a stage from the one before."""
        # Looked up by path each time: a layer may have been replaced since, as synchronized norms
        # are.
        return [self.body.get_submodule(path) for path in self.parts[stage]]

    def _run(self, images: Tensor, last: str) -> dict[str, Tensor]:
        maps: dict[str, Tensor] = {}
        running = images
        for stage in self.parts:
            for step in self._steps.get(stage) or self._modules_of(stage):
                running = step(running)
            maps[stage] = running
            if stage == last:
                break
        return maps

    def _measure(self) -> tuple[dict[str, int], dict[str, int]]:
        """Channels and strides of the stages, read off a small blank image."""
        side = 64
        blank = next(self.body.parameters()).new_zeros(1, 3, side, side)
        training = self.body.training
        self.body.eval()  # a pass in train mode would move the batch-norm statistics
        with torch.no_grad():
            maps = self(blank)
        self.body.train(training)
        channels = {stage: feature_map.shape[1] for stage, feature_map in maps.items()}
        strides = {stage: side // feature_map.shape[3] for stage, feature_map in maps.items()}
        return channels, strides


class TimmBackbone(Backbone):
    """A timm network in its ``features_only`` form, cut behind the chosen stage.

    timm leaves out what the requested maps do not need, so later stages do not
    exist here, where a torchvision network merely does not run them.
    """

    def cut(self) -> list[nn.Module]:
        """The network as a whole: timm does not run it in parts.

        Or nothing, where maps besides the last are handed out: behind one graph none of them would
        depend on another, and no gradient of a later one could be asked for at an earlier one.
        """
        return [] if self._wanted else [self.body]

    @property
    def can_fuse(self) -> bool:
        """Never: timm runs its networks itself."""
        return False

    def fuse(self) -> None:
        """Nothing."""

    def _run(self, images: Tensor, last: str) -> dict[str, Tensor]:
        return dict(zip(self.parts, self.body(images), strict=True))


def backbone_names() -> list[str]:
    """The networks that can be built by name: torchvision's, and ResNets in their older form."""
    patterns = [f"{family}*" for family in _PARTS_OF_FAMILY]
    names: list[str] = models.list_models(module=models, include=patterns)
    return sorted([*names, *_CAFFE_NAMES])


def build_backbone(config: BackboneConfig) -> Backbone:
    """Build the network of ``config`` with random weights.

    ``config.weights`` is not looked at; ``weights.load_weights`` puts them in.
    Stages behind the chosen one are frozen, since nothing would train them.
    """
    stage = STAGES[-1] if config.stage == "last" else config.stage
    if config.name.startswith(TIMM_PREFIX):
        backbone = _build_timm(config, stage)
    else:
        backbone = _build_torchvision(config, stage)
    if config.stem_scale != 1:
        _enlarge_stem(backbone, config.stem_scale)
    backbone.last_norm = config.last_norm
    return backbone


def _build_torchvision(config: BackboneConfig, stage: str) -> Backbone:
    if config.name not in backbone_names():
        raise unknown_name("backbone", config.name, [*backbone_names(), f"{TIMM_PREFIX}NAME"])
    parts = _PARTS_OF_FAMILY[_family(config.name)]
    backbone = Backbone(torchvision_body(config), name=config.name, parts=parts, stage=stage)
    backbone.freeze_unused()
    return backbone


def _enlarge_stem(backbone: Backbone, factor: float) -> None:
    """Multiply the weights of the first convolution, whose batch norm divides by the factor again.

    A step of SGD turns weights w by lr * |gradient| / |w|, and the gradient in front of a norm goes
    with 1 / |w|. LARS leaves a stem nearly as small as it starts, where pre-training with SGD makes
    it grow; so fine-tuning with SGD would turn it many times as fast as the layers behind it.
    """
    first, second, *_ = (each for each in backbone.modules() if not any(each.children()))
    if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
        with torch.no_grad():
            first.weight.mul_(factor)


def can_fuse_norms(network: nn.Module) -> bool:
    """Whether all networks that see images are ResNets, whose norms :func:`fuse_norms` joins."""
    backbones = [module for module in network.modules() if isinstance(module, Backbone)]
    return all(backbone.can_fuse for backbone in backbones)


def fuse_norms(network: nn.Module) -> None:
    """Let every ResNet in ``network`` run batch norm, sums and ReLU together, on a GPU."""
    for module in network.modules():
        if isinstance(module, Backbone):
            module.fuse()


_FILLING = {Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_}


class _Unfilled(TorchFunctionMode):
    """Leave tensors as they are where a network would give them first values.

    They have none to give. Without memory torch still works out what it would do, for which it
    loads its compiler, and that takes longer than everything else.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        return args[0] if function in _FILLING else function(*args, **(kwargs or {}))


@contextmanager
def outlined() -> Iterator[None]:
    """Build networks inside: they take no memory and no random numbers, however large they are."""
    with torch.device("meta"), _Unfilled():
        yield


def _family(name: str) -> str:
    return next(family for family in _PARTS_OF_FAMILY if name.startswith(family))


def torchvision_body(config: BackboneConfig) -> nn.Module:
    """The torchvision network of ``config`` without its classifier."""
    options: dict[str, Any] = {}
    if _family(config.name) == "convnext":
        # The teacher runs in train mode too: dropped blocks would make its targets random.
        options["stochastic_depth_prob"] = 0.0
    if _PARTS_OF_FAMILY[_family(config.name)] is RESNET_PARTS:
        options["zero_init_residual"] = config.zero_init_last
    if config.output_stride == 16:
        _check_can_dilate(config.name)
        options["replace_stride_with_dilation"] = [False, False, True]
    body: nn.Module = models.get_model(
        config.name.removesuffix(CAFFE_SUFFIX), weights=None, **options
    )
    if config.name.endswith(CAFFE_SUFFIX):
        _stride_early(body)
    for head in ("avgpool", "fc", "classifier"):
        if hasattr(body, head):
            delattr(body, head)
    return body


def _stride_early(body: nn.Module) -> None:
    """Move the stride of every bottleneck to its first convolution; no name changes."""
    for block in body.modules():
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def dilatable_names() -> list[str]:
    """The networks whose last stage can be dilated: ResNets with bottleneck blocks."""
    basic = ("resnet18", "resnet34")
    return [name for name in backbone_names() if "resne" in name and name not in basic]


def _check_can_dilate(name: str) -> None:
    can = dilatable_names()
    if name not in can:
        raise UserError(
            f"backbone.output_stride is 16, but {name} cannot be dilated; only ResNets with "
            f"bottleneck blocks can: {', '.join(can)}. Leave out --backbone.output-stride, or try "
            "--backbone.name resnet50."
        )


def _build_timm(config: BackboneConfig, stage: str) -> Backbone:
    if config.output_stride == 16:
        _check_can_dilate(config.name)
    wanted = STAGES[: STAGES.index(stage) + 1]
    strides = [4 * 2**depth for depth in range(len(wanted))]
    network = config.name.removeprefix(TIMM_PREFIX)
    try:
        body = _timm_body(network, strides)
        parts = dict.fromkeys(wanted, ())
        backbone = TimmBackbone(body, name=config.name, parts=parts, stage=stage)
    # timm has no common way to say that a network has no pyramid of maps; transformers fail here.
    except (RuntimeError, ValueError, AttributeError, AssertionError):
        raise _no_pyramid(config.name, strides) from None
    if list(backbone.strides.values()) != strides:
        raise _no_pyramid(config.name, strides)
    return backbone


def _timm_body(network: str, strides: list[int]) -> nn.Module:
    timm = import_timm()
    if not timm.is_model(network):
        close = difflib.get_close_matches(network, timm.list_models(), n=5)
        hint = f"Near it are {', '.join(close)}." if close else "timm.list_models() lists them all."
        raise UserError(f"timm knows no network {network!r}. {hint}")
    full = timm.create_model(network, features_only=True)
    reductions: list[int] = full.feature_info.reduction()
    deepest = {stride: index for index, stride in enumerate(reductions)}
    indices = tuple(deepest.get(stride, -1) for stride in strides)
    if -1 in indices:
        raise ValueError(f"{network} has maps of strides {reductions} only")
    cut: nn.Module = timm.create_model(network, features_only=True, out_indices=indices)
    return cut


def _no_pyramid(name: str, strides: list[int]) -> UserError:
    return UserError(
        f"backbone.name {name} gives no feature maps (B, D, h, w) of strides "
        f"{', '.join(map(str, strides))}; only convolutional networks that do can be pre-trained. "
        f"Try --backbone.name {TIMM_PREFIX}resnet50d."
    )


def import_timm() -> Any:
    """The library, or an error that says how to get it."""
    try:
        import timm
    except ImportError:
        raise UserError(
            "backbone.name asks for a timm network, but timm is not installed. "
            'Type: pip install "clove-ssl[timm]"'
        ) from None
    return timm
