"""The memory of decoded photos, from headers."""

from __future__ import annotations

from pathlib import Path

from builders.runs.cached_feeds import PHOTOS, write_photos

from clove_ssl.data.decode import DecodeError, image_size
from clove_ssl.data.kept_photos import estimate_decoded_size
from clove_ssl.data.sources import open_source


def test_the_estimate_is_near_the_truth_and_covers_it(tmp_path: Path) -> None:
    source = open_source(write_photos(tmp_path / "photos"))
    sizes = []
    for index in range(PHOTOS):
        try:
            sizes.append(image_size(source.read(index)))
        except DecodeError:
            continue
    whole = sum(3 * height * width for height, width in sizes)
    size = estimate_decoded_size(source, max_pixels=10**8, stays=lambda height, width: True)
    assert 0.5 * whole < size.bytes < 2 * whole
    assert size.with_margin > whole
    assert 4 <= size.samples < PHOTOS
    small = estimate_decoded_size(source, max_pixels=10**8, stays=lambda height, width: height < 64)
    assert small.left_out == sum(height >= 64 for height, _ in sizes) == 1
    assert small.bytes < size.bytes
