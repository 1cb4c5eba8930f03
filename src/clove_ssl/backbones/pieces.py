"""The pieces of a backbone that are compiled, each on its own.

Pieces of one shape share a compiled graph, so compiling them takes a fraction of the
time that compiling the whole network takes. Where a network is cut decides what that
costs. A block of a ResNet ends with a sum and a ReLU; a cut right there would make the
backward pass keep a mask of the ReLU beside its result, and write the gradient of the
sum once more. So a piece of a ResNet reaches from the last convolution of one block to
the last convolution of the next: what crosses the cut is in memory anyway.

Dimensions: B images, H x W pixels, D channels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby, pairwise
from typing import Any, TypeAlias, TypeGuard

from torch import Tensor, nn
from torch.compiler import is_compiling
from torchvision.models.resnet import BasicBlock, Bottleneck

from clove_ssl.backbones.stem import (
    convolve_by_depth,
    convolve_normalize_pool,
    is_stem_convolution,
)
from clove_ssl.layers.fused_norm.activation import (
    normalize,
    normalize_add_relu,
    normalize_relu,
    normalize_relu_pool,
)
from clove_ssl.layers.ladder import (
    LadderConv2d,
    in_half_precision,
    is_product,
    multiply_cells,
)

Block: TypeAlias = Any  # BasicBlock or Bottleneck; torchvision has no types


class Chain(nn.Module):
    """Modules one after the other, which belong to another module as well."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.chain = nn.ModuleList(modules)

    def forward(self, images: Tensor) -> Tensor:
        """What the last module makes of ``images``."""
        running = images
        modules = list(self.chain)
        while modules:
            first = modules[0]
            if _goes_by_depth(first, running) and _is_norm_relu_pool(modules[1:4]):
                running = convolve_normalize_pool(running, first.weight, modules[1])
                del modules[:4]
            elif _is_norm_relu_pool(modules[:3]):
                running = normalize_relu_pool(first, running)
                del modules[:3]
            elif _goes_by_depth(first, running):
                running = convolve_by_depth(running, first.weight)
                del modules[0]
            else:
                running = first(running)
                del modules[0]
        return running


class Start(nn.Module):
    """From pixels to the last convolution of the first block."""

    def __init__(self, stem: list[nn.Module], block: Block) -> None:
        super().__init__()
        self.stem = Chain(stem)
        self.block = block

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> what the block adds up, before its norms."""
        feature_map = self.stem(images)
        return open_block(self.block, feature_map, feature_map)


class Joint(nn.Module):
    """From the last convolution of one block to the last one of the next."""

    def __init__(self, before: Block, after: Block) -> None:
        super().__init__()
        self.before = before
        self.after = after

    def forward(self, main: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        """What the one block adds up -> what the next one does, both before their norms."""
        return open_block(self.after, *close_block(self.before, main, side))


class Opening(nn.Module):
    """From the map of one stage to the last convolution of the first block of the next."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, h, w) -> what the block adds up, before its norms."""
        return open_block(self.block, feature_map, feature_map)


class End(nn.Module):
    """From the last convolution of the last block to its map."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, main: Tensor, side: Tensor) -> Tensor:
        """What the block adds up -> (B, D, h, w)."""
        # All users take the same one: who asks for the gradients of a map wants them whole.
        feature_map, _ = close_block(self.block, main, side)
        return feature_map


class Stretch:
    """Blocks that run piece by piece up to a map that is wanted."""

    def __init__(self, first: Start | Opening, blocks: list[Block]) -> None:
        self.first = first
        self.joints = [Joint(before, after) for before, after in pairwise(blocks)]
        self.end = End(blocks[-1])

    def __call__(self, inputs: Tensor) -> Tensor:
        main, side = self.first(inputs)
        for joint in self.joints:
            main, side = joint(main, side)
        result: Tensor = self.end(main, side)
        return result

    @property
    def pieces(self) -> list[nn.Module]:
        """All pieces, in running order."""
        return [self.first, *self.joints, self.end]


class RecutResNet:
    """A ResNet of torchvision that runs piece by piece, and gives its last map, or some more.

    Every map that is handed out besides costs a cut behind the sum of its block.
    """

    def __init__(
        self, stem: list[nn.Module], blocks: list[Block], ends: Collection[Block] = ()
    ) -> None:
        rows: list[list[Block]] = [[]]
        for block in blocks:
            rows[-1].append(block)
            if any(block is end for end in ends) and block is not blocks[-1]:
                rows.append([])
        firsts: list[Start | Opening] = [
            Start(stem, rows[0][0]),
            *(Opening(row[0]) for row in rows[1:]),
        ]
        self.stretches = [Stretch(first, row) for first, row in zip(firsts, rows, strict=True)]

    def __call__(self, images: Tensor) -> Tensor:
        return self.maps(images)[-1]

    def maps(self, images: Tensor) -> list[Tensor]:
        """The map behind each of the blocks that were named, and the last one."""
        found = [images]
        for stretch in self.stretches:
            found.append(stretch(found[-1]))
        return found[1:]

    @property
    def pieces(self) -> list[nn.Module]:
        """All pieces, in running order."""
        return [piece for stretch in self.stretches for piece in stretch.pieces]


def recut(modules: Iterable[nn.Module], wanted: Iterable[nn.Module] = ()) -> RecutResNet | None:
    """The modules of a ResNet in running order, cut anew; nothing for other networks.

    Args:
        modules: The stem, then rows of blocks.
        wanted: Rows whose maps are handed out besides the last one.
    """
    stem: list[nn.Module] = []
    blocks: list[Block] = []
    for module in modules:
        if _is_row_of_blocks(module):
            blocks += module.children()
        # Something behind the blocks, such as a norm: a cut before the last one would leave it out.
        elif blocks:
            return None
        else:
            stem.append(module)
    fits = blocks and all(isinstance(block, BasicBlock | Bottleneck) for block in blocks)
    ends = [list(row.children())[-1] for row in wanted]
    return RecutResNet(stem, blocks, ends) if fits else None


def open_block(block: Block, inputs: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """A block up to its last convolution, and its shortcut up to where that has a norm.

    Args:
        block: The block.
        inputs: What its convolutions see.
        same: The same map for its shortcut; maybe with gradients of its own.
    """
    running = normalize_relu(block.bn1, block.conv1(inputs))
    running = block.conv2(running)
    if isinstance(block, Bottleneck):
        running = block.conv3(normalize_relu(block.bn2, running))
    # Without its norm yet: what crosses the cut are maps that a backward pass keeps anyway.
    side = same if block.downsample is None else _project(block.downsample[0], same)
    return running, side


def _project(convolution: nn.Conv2d, inputs: Tensor) -> Tensor:
    """What a shortcut makes of its inputs, before its norm."""
    # For a stride and few channels cuDNN has a kernel that leaves the matrix units empty; it took
    # longer than a 3 x 3 convolution of the same maps.
    skips_cells = max(convolution.stride) > 1 and is_product(convolution)
    if skips_cells and inputs.is_cuda and in_half_precision(inputs) and not is_compiling():
        return multiply_cells(convolution, inputs)
    projected: Tensor = convolution(inputs)
    return projected


def close_block(block: Block, main: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """The rest of a block: norms, sum and ReLU. Twice, as the next block has two uses for it."""
    norm = block.bn3 if isinstance(block, Bottleneck) else block.bn2
    if block.downsample is not None:
        side = normalize(block.downsample[1], side)
    return normalize_add_relu(norm, main, side)


def _goes_by_depth(module: nn.Module, images: Tensor) -> TypeGuard[nn.Conv2d]:
    """Whether a module is a stem's convolution that can be done in another form."""
    # By depth, the seven by seven convolution of three channels fills the matrix units of a GPU,
    # which it leaves empty as it is; odd sides cannot be folded by two. One on the ladder is left
    # alone, since it knows sizes that are planned already.
    return (
        is_stem_convolution(module)
        and not isinstance(module, LadderConv2d)
        and images.shape[2] % 2 == images.shape[3] % 2 == 0
    )


def _is_norm_relu_pool(modules: list[nn.Module]) -> bool:
    """Whether these are what a ResNet has behind its first convolution."""
    kinds = [type(module) for module in modules]
    if kinds != [nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]:
        return False
    pool: Any = modules[2]
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
    return sizes == (3, 2, 1, 1, False)


def cut_in_blocks(modules: list[nn.Module]) -> tuple[list[nn.Module], list[nn.Module]]:
    """What to run instead of ``modules``, and its pieces: blocks, and all between rows of them."""
    steps: list[nn.Module] = []
    pieces: list[nn.Module] = []
    for is_row, group in groupby(modules, _is_row_of_blocks):
        members = list(group)
        steps += members if is_row else [Chain(members)]
        pieces += [block for row in members for block in row.children()] if is_row else steps[-1:]
    return steps, pieces


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Whether a module runs blocks, which have layers of their own, one after the other."""
    blocks = list(module.children())
    return isinstance(module, nn.Sequential) and all(any(b.children()) for b in blocks)
