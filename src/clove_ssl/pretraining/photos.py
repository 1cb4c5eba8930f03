"""The photos of a batch on the device that renders them: decoded there, or kept from before.

Dimensions: B photos of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.cache.store import PhotoStore
from clove_ssl.data.reading import EncodedBatch, EncodedImages
from clove_ssl.views.draw.crops import Integers
from clove_ssl.views.render.packing import PackedImages

Decode = Callable[[list[Tensor]], list[Tensor]]
"""JPEG files as uint8 (bytes,) to pictures as uint8 (3, H, W) on the device."""


class DevicePhotos:
    """Brings the photos of encoded batches to a device, and keeps them if there is a store.

    Args:
        reader: Reads a batch again if the device cannot decode a file of it.
        device: Where views are rendered.
        decode: Decodes JPEG files on the device; without it, batches must not have any.
        store: Keeps photos on the device or in memory of the host.
    """

    def __init__(
        self,
        reader: EncodedImages,
        device: torch.device,
        *,
        decode: Decode | None,
        store: PhotoStore | None = None,
    ) -> None:
        self._reader = reader
        self._device = device
        self._decode = decode
        self._store = store

    def of(self, batch: EncodedBatch) -> tuple[EncodedBatch, PackedImages]:
        """The photos on the device; the batch is another one if a file turned out to be bad."""
        if batch.is_kept.all():
            return batch, self._kept(batch.draws.indices)
        batch, packed = self._read(batch)
        if self._store is None:
            return batch, packed
        read = np.flatnonzero(~batch.is_kept)
        images = [packed.image(number) for number in range(len(packed))]
        self._store.keep(batch.draws.indices[read], images, batch.positions[read])
        if len(images) == len(batch.is_kept):
            return batch, packed
        return batch, self._together(batch, images)

    def _kept(self, indices: Integers) -> PackedImages:
        """Photos of the store: where they are, or copied from the host in one piece."""
        assert self._store is not None  # or nothing would be kept
        packed = self._store.packed(indices)
        if packed.buffer.device.type == self._device.type:
            return packed
        return packed.gathered(pin_memory=True).to(self._device, non_blocking=True)

    def _together(self, batch: EncodedBatch, read: list[Tensor]) -> PackedImages:
        """The photos that were just read and those that were kept before, in order."""
        kept = self._kept(batch.draws.indices[batch.is_kept])
        arrived, stayed = iter(read), (kept.image(number) for number in range(len(kept)))
        return PackedImages.from_images(
            [next(stayed) if is_kept else next(arrived) for is_kept in batch.is_kept]
        )

    def _read(self, batch: EncodedBatch) -> tuple[EncodedBatch, PackedImages]:
        """The photos of a batch that are not kept."""
        jpegs = np.flatnonzero(batch.is_jpeg).tolist()
        if not jpegs:
            read = np.flatnonzero(~batch.is_kept)
            heights, widths = batch.parameters.image_size[read].T
            packed = PackedImages(batch.payload, batch.offsets[read], heights, widths)
            return batch, packed.to(self._device, non_blocking=True)
        pictures = self._pictures(batch, jpegs)
        if pictures is None:
            pictures = {}
            for number in jpegs:
                pictures.update(self._pictures(batch, [number]) or {})
            # The others stay as they are: what a photo looks like must not depend on its batch.
            refused = [number for number in jpegs if number not in pictures]
            batch = self._reader.batch(batch.draws, refused=refused)
        read = np.flatnonzero(~batch.is_kept)
        images = [
            pictures[number] if number in pictures else self._copied(batch, number)
            for number in read.tolist()
        ]
        return batch, PackedImages.from_images(images)

    def _pictures(self, batch: EncodedBatch, numbers: list[int]) -> dict[int, Tensor] | None:
        """Decoded JPEG files, or None if there is one among them that the device refuses."""
        assert self._decode is not None  # without it, nothing is left encoded
        try:
            decoded = self._decode([batch.image(number) for number in numbers])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # nvJPEG does not say which file it was
            if "out of memory" in str(error):
                raise
            return None
        return dict(zip(numbers, decoded, strict=True))

    def _copied(self, batch: EncodedBatch, number: int) -> Tensor:
        height, width = batch.parameters.image_size[number].tolist()
        pixels = batch.image(number).to(self._device, non_blocking=True)
        return pixels.view(3, height, width)
