"""What can be known about the data of a run before its first step, and should give pause."""

from __future__ import annotations

from collections.abc import Iterator

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import last_start

FEW_IMAGES = 100
SHORTER_SIDE = "shorter_side"
"""The name under which a start of a run keeps the typical shorter side of its images."""


def recorded_side(run: RunDirectory) -> int | None:
    """The typical shorter side of the images of a run; runs of earlier versions do not know it."""
    side = last_start(run).get("choices", {}).get(SHORTER_SIDE, {}).get("value")
    return side if isinstance(side, int) else None


def data_warnings(
    config: PretrainConfig, *, images: int | None, shorter_side: int | None
) -> Iterator[str]:
    """Sentences about few images, batches that are larger than the data, and small images."""
    if not config.method.trains:
        return
    if images is not None and images < FEW_IMAGES:
        yield (
            f"Only {_counted(images)}: what is learned will hold for these and hardly for others. "
            "Give a few hundred images at least, thousands if you have them."
        )
    if images is not None and images < config.batch_size:
        times = config.batch_size / images
        yield (
            f"A batch of {config.batch_size:,} is larger than the data: every step sees each of "
            f"the {_counted(images)} {times:.3g} times. Try --batch-size {max(2, images // 2)}."
        )
    yield from _small_images(config, shorter_side)


def _small_images(config: PretrainConfig, shorter_side: int | None) -> Iterator[str]:
    largest = max((spec.size for spec in config.method.view_specs()), default=0)
    if shorter_side is not None and shorter_side < largest:
        yield (
            f"The images are about {shorter_side} pixels on their shorter side, smaller than the "
            f"views of {largest} pixels, which therefore enlarge them: slower, without more to "
            "see. Use smaller views, or the images in their full size."
        )


def _counted(images: int) -> str:
    return "1 image" if images == 1 else f"{images:,} images"
