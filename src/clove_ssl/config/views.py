"""Which views of an image a method looks at.

``ViewsConfig`` is what a user sets; ``ViewSpec`` is one view of it, complete.
Random numbers are drawn from specs in ``views/draw/parameters.py``.

The order of operations is fixed: crop and resize, flip, colour jitter (its
four operations in random order), grey, blur, solarise, normalise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from clove_ssl.config.ranges import (
    Areas,
    Extent,
    Grid,
    ImageSide,
    Range,
    Ranged,
    Share,
    Shares,
    Steps,
    StepsFromZero,
)
from clove_ssl.errors import UserError

Role = Literal["global", "local"]
Interpolation = Literal["bicubic", "bilinear"]
BlurKernel = Literal["pil", "gaussian"]
RareFlips = Annotated[float, Range(0, 0.5)]
PixelValue = Annotated[int, Range(0, 256)]
Strength = Annotated[float, Range(0, 10)]


@dataclass(frozen=True, kw_only=True)
class PasteSpec(Ranged):
    """A rectangle of a view, pasted onto the same view of another image of the batch."""

    area: Areas = (0.5, 0.8)
    """Smallest and largest share of the view that the rectangle covers."""
    ratio: Extent = (0.8, 1.25)
    """Narrowest and widest rectangle, as width divided by height."""
    neighbour: Steps = 1
    """Which of the next images gives the background."""


@dataclass(frozen=True, kw_only=True)
class PatchSpec(Ranged):
    """One piece of a jigsaw: a frame is cut into cells, and a patch out of every cell.

    All patches of a frame follow each other among the specs. They share its
    flip and colours; which cell each comes from is drawn.
    """

    first: StepsFromZero
    """Place of the frame's first patch among the specs."""
    grid: Grid = 3
    """Cells along each side of a frame."""
    frame: ImageSide = 255
    """Side of the frame, on the scale on which patches have their size."""

    @property
    def cell(self) -> int:
        """Side of a cell, on the scale of the frame."""
        return self.frame // self.grid


@dataclass(frozen=True, kw_only=True)
class OverlapSpec(Ranged):
    """A crop that is drawn again until it shares enough with that of an earlier view."""

    view: StepsFromZero
    """Place of the earlier view among the specs."""
    share: Share
    """Smallest share of the view's own area that both cover."""
    redraws: StepsFromZero = 10
    """Most further draws; the last one is taken as it comes."""


@dataclass(frozen=True, kw_only=True)
class ViewSpec(Ranged):
    """One view: everything needed to draw its random parameters and render it."""

    role: Role
    size: ImageSide
    scale: Areas
    ratio: Extent
    interpolation: Interpolation
    flip_probability: Share
    vertical_flip_probability: Share
    jitter_probability: Share
    jitter_strength: tuple[Strength, Strength, Strength, Strength]
    grey_probability: Share
    blur_probability: Share
    blur_sigma: Extent
    blur_kernel: BlurKernel
    solarize_probability: Share
    solarize_threshold: PixelValue
    paste: PasteSpec | None = None
    patch: PatchSpec | None = None
    overlap: OverlapSpec | None = None
    flips_like: StepsFromZero | None = None
    """Place of the view that is flipped whenever this one is."""
    flips_apart: RareFlips = 0.0
    """Chance that this view is mirrored against that one nevertheless."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.paste, self.patch, self.overlap)) > 1:
            raise ValueError("a view is pasted, a patch, or tied to another; not several of these")


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(Ranged):
    """Multi-crop views with BYOL's photometric augmentation."""

    global_count: Annotated[int, Range(1, 64)] = 2
    """Large views per image; the teacher sees only these."""
    global_size: ImageSide = 224
    """Side of a large view in pixels."""
    global_scale: Areas = (0.2, 1.0)
    """Smallest and largest share of the image area that a large view covers."""
    local_count: Annotated[int, Range(0, 64)] = 6
    """Small views per image; 0 turns multi-crop off."""
    local_size: ImageSide = 96
    """Side of a small view in pixels."""
    local_scale: Areas = (0.08, 0.3)
    """Smallest and largest share of the image area that a small view covers."""
    ratio: Extent = (3 / 4, 4 / 3)
    """Narrowest and widest crop, as width divided by height."""
    interpolation: Interpolation = "bicubic"
    """Resampling of crops; always antialiased."""
    flip_probability: Share = 0.5
    """Chance of a left-right mirror image."""
    vertical_flip_probability: Share = 0.0
    """Chance of an upside-down image."""
    shared_flip: bool = False
    """Flip all views of an image the same way, so that features can distinguish left from right."""
    flips_apart: RareFlips = 0.0
    """With ``shared_flip``, the chance that a view is mirrored against the first one nevertheless,
    so that features also learn what mirror images have in common; with 0.5 all flips are
    independent."""
    jitter_probability: Share = 0.8
    """Chance that a view is colour-jittered."""
    jitter_strength: tuple[Strength, Strength, Strength, Strength] = (0.4, 0.4, 0.2, 0.1)
    """Strength of brightness, contrast, saturation and hue jitter."""
    grey_probability: Share = 0.2
    """Chance that a view is converted to grey."""
    global_blur: Shares = (1.0, 0.1)
    """Chance of blur for the first large view, the second, and so on in turn."""
    local_blur: Share = 0.5
    """Chance of blur for small views."""
    blur_sigma: Extent = (0.1, 2.0)
    """Smallest and largest blur radius in pixels of the view."""
    blur_kernel: BlurKernel = "pil"
    """``pil`` is Pillow's three box passes, as in the released code; or a true ``gaussian``."""
    global_solarize: Shares = (0.0, 0.2)
    """Chance of solarisation for the first large view, the second, and so on in turn."""
    local_solarize: Share = 0.0
    """Chance of solarisation for small views."""
    solarize_threshold: PixelValue = 128
    """Solarisation inverts pixel values from this one up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flips_apart and not self.shared_flip:
            raise UserError(
                f"method.views.flips_apart is {self.flips_apart:g}, but each view has its own "
                "flip. Give --method.views.shared-flip as well, or leave out "
                "--method.views.flips-apart."
            )

    def shown(self) -> str:
        """Numbers and sizes of the views in a few signs."""
        large = f"{self.global_count}x{self.global_size}"
        return f"{large} + {self.local_count}x{self.local_size}" if self.local_count else large

    def specs(self) -> tuple[ViewSpec, ...]:
        """The views in order: all large ones, then all small ones."""
        large = [self._global_spec(index) for index in range(self.global_count)]
        return (*large, *[self._local_spec()] * self.local_count)

    def _global_spec(self, index: int) -> ViewSpec:
        return self._spec(
            role="global",
            size=self.global_size,
            scale=self.global_scale,
            blur=self.global_blur[index % len(self.global_blur)],
            solarize=self.global_solarize[index % len(self.global_solarize)],
        )

    def _local_spec(self) -> ViewSpec:
        return self._spec(
            role="local",
            size=self.local_size,
            scale=self.local_scale,
            blur=self.local_blur,
            solarize=self.local_solarize,
        )

    def _spec(
        self, *, role: Role, size: int, scale: tuple[float, float], blur: float, solarize: float
    ) -> ViewSpec:
        return ViewSpec(
            role=role,
            size=size,
            scale=scale,
            ratio=self.ratio,
            interpolation=self.interpolation,
            flip_probability=self.flip_probability,
            vertical_flip_probability=self.vertical_flip_probability,
            jitter_probability=self.jitter_probability,
            jitter_strength=self.jitter_strength,
            grey_probability=self.grey_probability,
            blur_probability=blur,
            blur_sigma=self.blur_sigma,
            blur_kernel=self.blur_kernel,
            solarize_probability=solarize,
            solarize_threshold=self.solarize_threshold,
            flips_like=0 if self.shared_flip else None,
            flips_apart=self.flips_apart,
        )
