"""Sheets and what is drawn over images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clove_ssl.errors import UserError
from clove_ssl.painting.predictions import Things, paint_things
from clove_ssl.painting.sheets import (
    as_colours,
    captioned,
    crop_boxes,
    enlarged,
    framed,
    heat,
    joined_by_lines,
    ring,
    wrapped,
    write_titled_sheet,
)

RED, GREEN = (255, 0, 0), (0, 255, 0)


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), 128, np.uint8)


def has_colour(picture: Image.Image, colour: tuple[int, int, int]) -> bool:
    return bool((np.asarray(picture) == colour).all(-1).any())


def test_pictures_keep_their_proportions() -> None:
    assert enlarged(grey(30, 60), 200).size == (200, 100)
    assert enlarged(grey(1, 500), 200).size == (200, 1)


def test_a_column_of_pixels_does_not_become_a_tower() -> None:
    assert enlarged(grey(100_000, 1), 200).size == (200, 2000)


def test_a_caption_never_leaves_its_tile() -> None:
    tile = captioned(enlarged(grey(10, 10), 100), "a_very_long_file_name" * 5, note="x" * 80)
    assert tile.width == 100
    rows = np.asarray(tile)[: tile.height - 100]
    assert (rows[:, -1] == 255).all()  # nothing is cut off at the edge
    assert (rows < 100).any()


def test_letters_that_the_font_lacks_are_drawn_without_their_accents() -> None:
    tile = enlarged(grey(10, 10), 100)
    odd = captioned(tile, "Tür Straße café Łódź", note="5 µm – ça")
    plain = captioned(tile, "Tur Strasse cafe Lodz", note="5 um - ca")
    assert odd.tobytes() == plain.tobytes()
    boxes = np.array([[20.0, 40.0, 60.0, 80.0]])
    odd, plain = (
        paint_things(grey(100, 100), Things(boxes, (name,), (0,)), caption=name)
        for name in ("Tür", "Tur")
    )
    assert odd.tobytes() == plain.tobytes()


def test_rows_are_about_equally_long() -> None:
    tiles = [Image.new("RGB", (5, 5))] * 10
    assert [len(row) for row in wrapped(tiles, 6)] == [5, 5]
    assert [len(row) for row in wrapped(tiles[:7], 6)] == [4, 3]
    assert [len(row) for row in wrapped(tiles[:6], 6)] == [6]


def test_a_long_title_goes_on_in_the_next_line(tmp_path: Path) -> None:
    tile = enlarged(grey(10, 10))
    sizes = [
        Image.open(write_titled_sheet(tmp_path / "a.png", title, [[tile, tile]])).size
        for title in ("short", "word " * 40)
    ]
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > sizes[0][1] + 30


def test_a_sheet_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_titled_sheet(tmp_path / "file" / "a.png", "t", [[enlarged(grey(2, 2))]])


def test_heat_gets_brighter_with_the_value() -> None:
    values = np.array([[0.0, 0.25, 0.5, 0.75, 1.0]])
    shown = heat(grey(10, 100), values, low=0.0, high=1.0).astype(float).mean(-1)[5]
    assert shown[5] < shown[30] < shown[50] < shown[70] < shown[95]


def test_heat_of_a_constant_can_be_drawn() -> None:
    assert heat(grey(4, 4), np.ones((2, 2)), low=1.0, high=1.0).shape == (4, 4, 3)


def test_colours_are_the_shares_themselves() -> None:
    shares = np.zeros((1, 1, 3))
    shares[..., 0] = 2.0  # beyond what can be shown
    assert as_colours(shares, (3, 2)).getpixel((1, 1)) == RED


def test_a_ring_is_seen_on_black_and_on_white() -> None:
    for ground in (0, 255):
        picture = ring(Image.new("RGB", (50, 50), (ground,) * 3), (0.5, 0.5))
        assert has_colour(picture, (255 - ground,) * 3)
        assert picture.getpixel((25, 25)) == (ground,) * 3


def test_boxes_lie_where_the_crops_are() -> None:
    picture = Image.new("RGB", (100, 80))
    crop_boxes(picture, [(0.1, 0.25, 0.6, 1.0)], labels=["1"], colours=[RED])
    red = (np.asarray(picture) == RED).all(-1)
    rows, columns = red.any(1).nonzero()[0], red.any(0).nonzero()[0]
    assert (columns[0], columns[-1]) == (10, 59)
    assert (rows[0], rows[-1]) == (20, 79)


def test_labels_of_equal_crops_do_not_hide_each_other() -> None:
    picture = Image.new("RGB", (100, 100))
    crop_boxes(picture, [(0, 0, 1, 1)] * 2, labels=["1", "2"], colours=[RED, GREEN])
    assert has_colour(picture, RED)
    assert has_colour(picture, GREEN)


def test_a_frame_has_the_colour_of_its_crop() -> None:
    assert framed(Image.new("RGB", (20, 20)), GREEN).getpixel((0, 19)) == GREEN


def test_a_line_joins_its_two_places() -> None:
    left, right = Image.new("RGB", (40, 40)), Image.new("RGB", (60, 30))
    whole = joined_by_lines(left, right, [(0.5, 0.5, 0.0, 0.5)], [RED], gap=20)
    assert whole.size == (120, 40)
    assert whole.getpixel((20, 20)) == RED
    assert whole.getpixel((60, 15)) == RED
    assert has_colour(whole.crop((45, 0, 55, 40)), RED)  # on its way through the gap


def test_labels_stay_inside_the_picture_and_apart() -> None:
    picture = Image.new("RGB", (60, 40), (9, 9, 9))
    corner = (0.9, 0.9, 1.0, 1.0)
    crop_boxes(picture, [corner, (0, 0, 1, 1)], labels=["1", "2"], colours=[RED, GREEN])
    labels = np.asarray(picture)
    assert (labels[26:38, 44:58] == RED).all(-1).sum() > 80  # whole, not cut off at the edge
    crowd = Image.new("RGB", (60, 60))
    crop_boxes(crowd, [(0, 0, 1, 1)] * 5, labels=list("12345"), colours=[RED, GREEN] * 2 + [RED])
    # Three fit into the first row; the others follow below.
    assert [crowd.getpixel((x, y)) for x, y in ((2, 3), (20, 3), (38, 3))] == [RED, GREEN, RED]
    assert [crowd.getpixel((x, y)) for x, y in ((2, 18), (20, 18))] == [GREEN, RED]


def test_lines_along_one_row_stay_apart() -> None:
    left, right = (Image.new("RGB", (40, 40), (9, 9, 9)) for _ in range(2))
    lines = [(0.2, 0.5, 0.8, 0.5), (0.8, 0.5, 0.2, 0.5)]
    whole = joined_by_lines(left, right, lines, [RED, GREEN], gap=120)
    column = np.asarray(whole)[:, 100]
    rows = [int((column == colour).all(-1).argmax()) for colour in (RED, GREEN)]
    assert rows[0] > rows[1] > 20
