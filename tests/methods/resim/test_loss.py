"""Windows, precise pooling, the pyramid and the loss between windows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references.methods.windows import slow_pool, slow_window_loss
from torch import Tensor, nn

from clove_ssl.methods.contrastive import contrast, mean_of_counted
from clove_ssl.methods.resim.loss import averaged_cells, contrast_windows
from clove_ssl.methods.resim.networks import PartialPyramid, forward_parts_shuffled, precise_pool
from clove_ssl.methods.resim.windows import find_windows, sliding_windows
from clove_ssl.methods.shuffling import BatchOrders, forward_shuffled


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def box(*edges: float) -> Tensor:
    return torch.tensor([edges], dtype=torch.float64)


def test_windows_stop_before_the_edge() -> None:
    # Starts 0 and 2; the window from 4 to 8 would end at the edge.
    assert sliding_windows(8, 4, 2).tolist() == [
        [0, 0, 4, 4],
        [2, 0, 6, 4],
        [0, 2, 4, 6],
        [2, 2, 6, 6],
    ]


@pytest.mark.parametrize(
    ("here", "there", "window", "expected"),
    [
        ((0, 0, 100, 100), (0, 0, 100, 100), (2, 3, 5, 6), (2, 3, 5, 6)),
        # One pixel of both views is 10 of the image; the second begins 5 view pixels later.
        ((0, 0, 100, 100), (50, 20, 150, 120), (6, 4, 8, 6), (1, 2, 3, 4)),
        # The second view shows twice as much, so the window is half as large in it.
        ((0, 0, 100, 100), (0, 0, 200, 200), (2, 4, 6, 8), (1, 2, 3, 4)),
        # Only the second view is mirrored: 1 to 3 from the left is 7 to 9 from the left.
        ((0, 0, 100, 100), (100, 0, 0, 100), (1, 1, 3, 3), (7, 1, 9, 3)),
        # Both are mirrored: nothing changes between them.
        ((100, 0, 0, 100), (100, 0, 0, 100), (1, 1, 3, 3), (1, 1, 3, 3)),
        # Upside down.
        ((0, 0, 100, 100), (0, 100, 100, 0), (1, 1, 3, 3), (1, 7, 3, 9)),
    ],
)
def test_a_window_is_found_where_the_image_says(
    here: tuple[float, ...],
    there: tuple[float, ...],
    window: tuple[float, ...],
    expected: tuple[float, ...],
) -> None:
    found = find_windows(box(*window), box(*here), box(*there), size=10)
    torch.testing.assert_close(found.boxes[0], box(*expected), rtol=0, atol=1e-12)
    assert found.inside.item()


@pytest.mark.parametrize(
    ("window", "inside"),
    [((5, 5, 9, 9), True), ((4, 5, 8, 9), False), ((5, 5, 10, 9), True), ((5, 9, 9, 15), False)],
)
def test_a_window_counts_only_when_all_of_it_is_inside(
    window: tuple[float, ...], inside: bool
) -> None:
    # In the second view a window lies 5 pixels nearer to the corner; from 0 up to 10 is inside.
    found = find_windows(box(*window), box(0, 0, 10, 10), box(5, 5, 15, 15), size=10)
    assert found.inside.item() is inside
    assert inside or found.boxes[0].tolist() == [[0, 0, 1, 1]]


def test_a_window_that_ends_exactly_at_the_edge_does_not_count() -> None:
    found = find_windows(box(4, 4, 8, 8), box(0, 0, 10, 10), box(-2, -2, 8, 8), size=10)
    assert not found.inside.item()


corner, side = st.floats(0, 40), st.floats(30, 90)


@given(st.tuples(corner, corner, side, side), st.tuples(corner, corner, side, side), st.booleans())
def test_a_counterpart_leads_back_to_its_window(
    a: tuple[float, ...], b: tuple[float, ...], mirrored: bool
) -> None:
    here, there = (box(x, y, x + w, y + h) for x, y, w, h in (a, b))
    there = there[:, [2, 1, 0, 3]] if mirrored else there
    windows = sliding_windows(64, 16, 8) + 4  # away from the edges, where rounding decides
    found = find_windows(windows, here, there, size=64)
    kept = found.inside[0]
    back = find_windows(found.boxes[0, kept], there, here, size=64)
    assert back.inside.all()
    torch.testing.assert_close(back.boxes[0], windows[kept], rtol=0, atol=1e-9)


def test_pooling_a_hand_worked_box() -> None:
    # Values 0, 1, 2, 3 along x: from 0.5 to 2.5 cells the mean is 1.5, whatever the rows.
    ramp = torch.arange(4.0, dtype=torch.float64).expand(1, 1, 4, 4)
    assert precise_pool(ramp, box(5, 0, 25, 30)[None], stride=10).item() == pytest.approx(1.5)
    # Half a cell beyond the first one the surface falls from 1 to 1/2: three quarters on average.
    ones = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    assert precise_pool(ones, box(-5, 0, 0, 30)[None], stride=10).item() == pytest.approx(0.75)


@given(st.integers(0, 1000))
def test_pooling_is_the_slow_integral(seed: int) -> None:
    maps = random(2, 3, 4, 5, seed=seed)
    uniforms = torch.rand(2, 6, 4, generator=torch.Generator().manual_seed(seed)).double()
    corners = 60 * uniforms[..., :2] - 10  # some boxes lie partly or wholly beside the map
    boxes = torch.cat([corners, corners + 0.5 + 30 * uniforms[..., 2:]], dim=2)
    pooled = precise_pool(maps, boxes, stride=8)
    for image in range(2):
        for number, each in enumerate(boxes[image].tolist()):
            expected = slow_pool(maps[image], each, 8)
            torch.testing.assert_close(pooled[image, number], expected, rtol=0, atol=1e-10)


def test_pooling_boxes_that_all_images_share() -> None:
    maps, boxes = random(3, 2, 4, 4), sliding_windows(32, 12, 8)
    shared = precise_pool(maps, boxes[None], stride=8)
    torch.testing.assert_close(shared, precise_pool(maps, boxes.expand(3, -1, -1), stride=8))


def test_a_box_without_area_gives_zeros_and_no_nan() -> None:
    maps = torch.ones(1, 1, 3, 3, requires_grad=True)
    pooled = precise_pool(maps, torch.tensor([[[4.0, 4, 4, 9], [0, 0, 0, 0]]]), stride=4)
    pooled.sum().backward()
    assert torch.equal(pooled, torch.zeros(1, 2, 1))
    assert torch.isfinite(maps.grad).all()  # type: ignore[arg-type]


def test_pooling_has_the_gradient_of_its_value() -> None:
    boxes = torch.tensor([[[-3.0, 2, 11, 9], [5, 5, 6, 7]]], dtype=torch.float64)
    maps = random(1, 2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: precise_pool(x, boxes, stride=4), maps)


def test_half_precision_maps_are_pooled_in_fp32() -> None:
    maps, boxes = random(1, 2, 4, 4).bfloat16(), box(3, 3, 17, 21)[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = precise_pool(maps, boxes, stride=8)
    assert pooled.dtype == torch.float32
    assert torch.equal(pooled, precise_pool(maps.float(), boxes, stride=8))


def identity_pyramid() -> PartialPyramid:
    """One channel; every convolution leaves its input as it is."""
    pyramid = PartialPyramid({"c3": 1, "c4": 1, "c5": 1}, 1, levels=("c4", "c3"))
    with torch.no_grad():
        for name, weight in pyramid.named_parameters():
            weight.zero_()
            if name.endswith("weight"):
                weight[..., weight.shape[2] // 2, weight.shape[3] // 2] = 1
    return pyramid


def test_the_pyramid_adds_coarse_maps_to_fine_ones() -> None:
    maps = {"c3": torch.zeros(1, 1, 4, 4), "c4": torch.tensor([[[[1.0, 2], [3, 4]]]])}
    maps["c5"] = torch.full((1, 1, 1, 1), 10.0)
    levels = identity_pyramid()(maps)
    assert levels["c4"].tolist() == [[[[11, 12], [13, 14]]]]
    rows = levels["c3"][0, 0].tolist()
    assert rows == [[11, 11, 12, 12], [11, 11, 12, 12], [13, 13, 14, 14], [13, 13, 14, 14]]
    assert set(levels) == {"c4", "c3"}


def test_the_pyramid_takes_maps_of_odd_sizes() -> None:
    maps = {"c3": torch.zeros(1, 1, 7, 7), "c4": torch.zeros(1, 1, 4, 4)}
    levels = identity_pyramid()({**maps, "c5": torch.ones(1, 1, 2, 2)})
    assert levels["c3"].shape == (1, 1, 7, 7)
    assert (levels["c3"] == 1).all()


def test_several_outputs_are_shuffled_like_one() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, track_running_stats=False).double()
    images = random(6, 3, 2, 2)

    def parts(group: Tensor) -> tuple[Tensor, Tensor]:
        maps = norm(group)
        return maps.mean((2, 3)), maps

    orders = BatchOrders()
    rows, maps = forward_parts_shuffled(parts, images, orders=orders, groups=2)
    expected = forward_shuffled(norm, images, orders=orders, groups=2)
    assert torch.equal(maps, expected)
    torch.testing.assert_close(rows, expected.mean((2, 3)))
    assert not torch.allclose(maps, norm(images))


def test_negatives_are_means_of_nine_cells() -> None:
    key_map = random(2, 3, 4, 5)
    cells = averaged_cells(key_map)
    assert cells.shape == (2, 2 * 3, 3)
    corner_mean = key_map[1, :, 1:4, 2:5].mean((1, 2))
    torch.testing.assert_close(cells[1, -1], corner_mean / corner_mean.norm())


@pytest.mark.parametrize("images", [1, 2, 4])
def test_the_loss_between_windows_is_the_formula(images: int) -> None:
    queries, positives = random(2, 4, 3, 5)
    key_map = random(4, 5, 4, 4, seed=1)
    inside = torch.rand(4, 3, generator=torch.Generator().manual_seed(2)) < 0.6
    negatives = averaged_cells(key_map).reshape(4 // images, -1, 5)
    result = contrast_windows(
        F.normalize(queries, dim=2), F.normalize(positives, dim=2), negatives, temperature=0.2
    )
    expected = slow_window_loss(queries, positives, inside, key_map, temperature=0.2, images=images)
    assert mean_of_counted(result.loss, inside).item() == pytest.approx(expected, rel=1e-12)
    figures = contrast(
        F.normalize(queries[:images], dim=2),
        F.normalize(positives[:images], dim=2),
        negatives[0],
        temperature=0.2,
    )
    for mine, theirs in zip(result, figures, strict=True):
        torch.testing.assert_close(mine[:images], theirs)


def test_the_loss_between_windows_has_the_gradient_of_its_value() -> None:
    positives, negatives = (F.normalize(random(*s, seed=1), dim=2) for s in ((4, 3, 5), (2, 6, 5)))
    inside = torch.rand(4, 3, generator=torch.Generator().manual_seed(2)) < 0.6

    def loss(queries: Tensor) -> Tensor:
        result = contrast_windows(queries, positives, negatives, temperature=0.2)
        return mean_of_counted(result.loss, inside)

    assert torch.autograd.gradcheck(loss, random(4, 3, 5).requires_grad_())


def test_images_that_cannot_be_shared_out_to_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="3 images"):
        contrast_windows(random(3, 2, 4), random(3, 2, 4), random(2, 5, 4), temperature=0.2)


def test_means_over_what_counts() -> None:
    values = torch.tensor([[1.0, 5.0], [3.0, 100.0]])
    counted = torch.tensor([[True, False], [True, False]])
    assert mean_of_counted(values, counted) == 2
    assert mean_of_counted(values, counted, count=torch.tensor(4.0)) == 1
    assert mean_of_counted(values, torch.zeros_like(counted)) == 0


def test_a_mean_of_nothing_has_no_gradient_under_the_scale_of_fp16() -> None:
    values = torch.ones(3, requires_grad=True)
    nothing = torch.zeros(3, dtype=torch.bool)
    (2.0**16 * mean_of_counted(values, nothing)).backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert (values.grad == 0).all()
