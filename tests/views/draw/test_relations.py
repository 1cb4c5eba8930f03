"""Views that depend on each other: drawn again, cut from a frame, pasted, flipped alike."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import view_relations as reference

from clove_ssl.config.views import OverlapSpec, PasteSpec, PatchSpec, ViewsConfig, ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.detco.config import DetCoConfig, JigsawConfig
from clove_ssl.methods.slotcon.config import SlotConConfig
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.draw.relations import rows_of_numbers

PLAIN = ViewsConfig(local_count=0, global_scale=(0.08, 1.0), vertical_flip_probability=0.5).specs()
JIGSAW = DetCoConfig().view_specs()
FLIP = 22  # place in a row of numbers
LOOKS = ("factors", "order", "grey", "sigma", "solarize")


def numbers(images: int, specs: tuple[ViewSpec, ...], seed: int = 0) -> np.ndarray:
    shape = (images, rows_of_numbers(specs), UNIFORMS_PER_VIEW)
    return np.random.default_rng(seed).random(shape)


def draw(images: int, specs: tuple[ViewSpec, ...], height: int = 90, width: int = 400):
    uniforms = numbers(images, specs)
    return uniforms, draw_views(uniforms, np.full(images, height), np.full(images, width), specs)


def tied(share: float = 0.3, redraws: int = 10) -> tuple[ViewSpec, ...]:
    return PLAIN[0], replace(PLAIN[1], overlap=OverlapSpec(view=0, share=share, redraws=redraws))


def pasted() -> tuple[ViewSpec, ...]:
    return PLAIN[0], replace(PLAIN[1], paste=PasteSpec())


# --- rows of numbers


def test_views_that_stand_alone_take_one_row_each() -> None:
    assert rows_of_numbers(PLAIN) == 2
    assert rows_of_numbers(tied(redraws=7)) == 2 + 7
    assert rows_of_numbers(pasted()) == 2 + 1
    assert rows_of_numbers(JIGSAW) == 2 + 18 + 2


@pytest.mark.parametrize("specs", [tied(), pasted()])
def test_further_rows_change_nothing_else(specs: tuple[ViewSpec, ...]) -> None:
    uniforms, related = draw(50, specs)
    plain = draw_views(uniforms[:, :2], np.full(50, 90), np.full(50, 400), PLAIN)
    for each in fields(ViewParameters):
        if each.name not in ("crop", "paste"):
            np.testing.assert_array_equal(getattr(related, each.name), getattr(plain, each.name))
    np.testing.assert_array_equal(related.crop[:, 0], plain.crop[:, 0])


@pytest.mark.parametrize("specs", [tied(), pasted(), JIGSAW])
def test_an_image_depends_on_its_own_rows_only(specs: tuple[ViewSpec, ...]) -> None:
    uniforms = numbers(4, specs)
    heights, widths = np.array([375, 90, 20, 1]), np.array([500, 400, 300, 1])
    together = draw_views(uniforms, heights, widths, specs)
    for image in range(4):
        alone = draw_views(uniforms[image], heights[image], widths[image], specs)
        for each in fields(ViewParameters):
            expected = getattr(together.image(image), each.name)
            np.testing.assert_array_equal(getattr(alone, each.name), expected)


def test_missing_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="12 rows for 2 views"):
        draw_views(np.zeros((3, 2, UNIFORMS_PER_VIEW)), [9] * 3, [9] * 3, tied())


def test_a_view_has_one_relation_at_most() -> None:
    with pytest.raises(ValueError, match="not several"):
        replace(tied()[1], paste=PasteSpec())


# --- crops that are drawn again


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_redrawn_crops_are_those_of_the_loop(share: float) -> None:
    specs = tied(share=share, redraws=3)
    uniforms, drawn = draw(60, specs)
    again = 0
    for image, rows in enumerate(uniforms.tolist()):
        first, second = (
            [reference.crop_of(row, 90, 400, spec.scale, spec.ratio) for row in chosen]
            for spec, chosen in zip(specs, (rows[:1], rows[1:]), strict=True)
        )
        expected = reference.first_sharing(second, first[0], share)
        assert drawn.crop[image].tolist() == [list(first[0]), list(expected)]
        again += expected != second[0]
    assert again > 5


def test_with_ten_draws_hardly_any_pair_of_slotcon_is_left_apart() -> None:
    config = SlotConConfig()
    apart = []
    for each in (replace(config, redraws=0), config):
        _, drawn = draw(3000, each.view_specs(), height=300, width=800)
        first, second = drawn.crop[:, 0], drawn.crop[:, 1]
        start = np.maximum(first[:, :2], second[:, :2])
        end = np.minimum(first[:, :2] + first[:, 2:], second[:, :2] + second[:, 2:])
        common = (end - start).clip(0).prod(1)
        apart.append((common < 0.01 * second[:, 2:].prod(1)).mean())
    assert apart[0] > 0.02
    assert apart[1] < apart[0] / 20


# --- flips


def test_a_view_can_be_flipped_like_another() -> None:
    _, drawn = draw(200, (PLAIN[0], replace(PLAIN[1], flips_like=0)))
    np.testing.assert_array_equal(drawn.flip[:, 0], drawn.flip[:, 1])
    np.testing.assert_array_equal(drawn.vertical_flip[:, 0], drawn.vertical_flip[:, 1])
    assert not np.array_equal(drawn.sigma[:, 0], drawn.sigma[:, 1])
    _, alone = draw(200, PLAIN)
    assert not np.array_equal(alone.flip[:, 0], alone.flip[:, 1])


def test_all_views_of_an_image_can_be_flipped_alike() -> None:
    views = ViewsConfig(local_count=2, vertical_flip_probability=0.3)
    _, apart = draw(200, views.specs())
    _, alike = draw(200, replace(views, shared_flip=True).specs())
    for name in ("flip", "vertical_flip"):
        drawn, other = getattr(alike, name), getattr(apart, name)
        np.testing.assert_array_equal(drawn, np.tile(other[:, :1], 4))
        assert not np.array_equal(drawn, other)
    np.testing.assert_array_equal(alike.crop, apart.crop)
    np.testing.assert_array_equal(alike.factors, apart.factors)


@given(st.floats(0, 0.5), st.integers(0, 1000))
def test_a_view_can_be_mirrored_against_the_others_now_and_then(chance, seed) -> None:
    views = ViewsConfig(local_count=2, vertical_flip_probability=0.3, shared_flip=True)
    specs = replace(views, flips_apart=chance).specs()
    own = numbers(50, specs, seed)[..., FLIP]
    apart, alike = (
        draw_views(numbers(50, specs, seed), 90, 120, each) for each in (specs, views.specs())
    )
    mirrored = own < chance
    mirrored[:, 0] = False
    np.testing.assert_array_equal(apart.flip, alike.flip ^ mirrored)
    for name in ("crop", "vertical_flip", "factors", "sigma", "solarize"):
        np.testing.assert_array_equal(getattr(apart, name), getattr(alike, name))


def test_patches_of_a_frame_are_mirrored_together() -> None:
    views = replace(DetCoConfig().views, shared_flip=True, flips_apart=0.5)
    _, drawn = draw(50, DetCoConfig(views=views).view_specs())
    for start in (2, 11):
        frames = drawn.flip[:, start : start + 9]
        np.testing.assert_array_equal(frames, np.tile(frames[:, :1], 9))
    assert not np.array_equal(drawn.flip[:, 2], drawn.flip[:, 11])


def test_views_with_a_flip_of_their_own_are_not_mirrored_against_the_first() -> None:
    with pytest.raises(UserError, match="--method.views.shared-flip"):
        ViewsConfig(flips_apart=0.1)


# --- jigsaws


def test_patches_are_cut_as_the_loop_cuts_them() -> None:
    uniforms = numbers(20, JIGSAW)
    spec = replace(JIGSAW[2], scale=(1.0, 1.0), ratio=(1.0, 1.0))  # frames of twice their scale
    whole = (
        *JIGSAW[:2],
        *[replace(each, scale=spec.scale, ratio=spec.ratio) for each in JIGSAW[2:]],
    )
    drawn = draw_views(uniforms, np.full(20, 510), np.full(20, 510), whole)
    for image, rows in enumerate(uniforms.tolist()):
        for start in (2, 11):
            corners = reference.jigsaw(rows[start : start + 9], grid=3, frame=255, patch=64)
            expected = [[2 * top, 2 * left, 128, 128] for top, left in corners]
            assert drawn.crop[image, start : start + 9].tolist() == expected


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 4), st.integers(0, 1000))
def test_patches_lie_in_the_image_one_per_cell(height, width, grid, seed) -> None:
    config = DetCoConfig(jigsaw=JigsawConfig(grid=grid, frame=60, patch=12))
    specs = config.view_specs()
    drawn = draw_views(numbers(1, specs, seed), height, width, specs)
    patches = drawn.crop[0, 2 : 2 + grid**2]
    top, left, tall, wide = patches.T
    assert (patches[:, 2:] >= 1).all()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    if min(height, width) >= 120:  # large enough for cells to be apart after rounding
        assert len(set(zip(top.tolist(), left.tolist(), strict=True))) == grid**2


def test_patches_of_a_frame_share_its_flip_and_colours() -> None:
    _, drawn = draw(300, JIGSAW)
    for name in ("flip", *LOOKS):
        values = getattr(drawn, name)
        for start in (2, 11):
            first = values[:, start, None]
            np.testing.assert_array_equal(values[:, start : start + 9], first.repeat(9, axis=1))
        assert not np.array_equal(values[:, 2], values[:, 11]) or name == "solarize"


def test_frames_cover_as_much_of_the_image_as_other_crops_of_their_scale() -> None:
    _, drawn = draw(2000, JIGSAW, height=600, width=600)
    sides = drawn.crop[:, 2:11, 2:].mean(1) * 255 / 64  # of the frames, back from the patches
    areas = sides.prod(1) / 600**2
    _, plain = draw(2000, (replace(JIGSAW[2], patch=None),), height=600, width=600)
    expected = plain.crop[:, 0, 2:].prod(1) / 600**2
    assert areas.min() == pytest.approx(0.6, abs=0.01)
    assert areas.max() == pytest.approx(1.0, abs=0.03)
    assert areas.mean() == pytest.approx(expected.mean(), abs=0.01)


def test_every_cell_comes_first_equally_often() -> None:
    spec = tuple(replace(each, scale=(1.0, 1.0)) for each in JIGSAW)
    _, drawn = draw(9000, spec, height=255, width=255)
    cells = drawn.crop[:, 2, 0] // 85 * 3 + drawn.crop[:, 2, 1] // 85
    counts = np.bincount(cells, minlength=9)
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(1000)


def test_patches_without_room_are_refused() -> None:
    with pytest.raises(UserError, match="no room"):
        JigsawConfig(patch=86)
    assert PatchSpec(first=0).cell == 85


# --- pasted rectangles


def test_pasted_rectangles_are_those_of_the_loop() -> None:
    uniforms, drawn = draw(100, pasted())
    for image, rows in enumerate(uniforms.tolist()):
        expected = reference.crop_of(rows[2], 224, 224, (0.5, 0.8), (0.8, 1.25))
        assert drawn.paste[image].tolist() == [[0, 0, 224, 224], list(expected)]


def test_pasted_rectangles_cover_half_to_four_fifths() -> None:
    _, drawn = draw(4000, pasted())
    areas = drawn.paste[:, 1, 2:].prod(1) / 224**2
    assert areas.min() > 0.495
    assert areas.max() < 0.805
    assert areas.mean() == pytest.approx(0.65, abs=0.01)


@pytest.mark.parametrize("specs", [tied(), pasted(), JIGSAW])
def test_related_views_survive_a_log_line(specs: tuple[ViewSpec, ...]) -> None:
    _, drawn = draw(3, specs)
    line = json.dumps([drawn.describe(1, view) for view in range(len(specs))])
    again = ViewParameters.from_descriptions(json.loads(line))
    for each in fields(ViewParameters):
        expected = getattr(drawn.image(1), each.name)
        np.testing.assert_array_equal(getattr(again, each.name), expected)
