"""Fine feature maps and their colours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.pictures.maps import cell_at, fitted, principal_colours, similarity_maps, sliding_map
from clove_ssl.views.batch import normalize

STRIDE = 8


def mean_of_cells(pixels: Tensor) -> Tensor:
    return F.avg_pool2d(pixels, STRIDE)


def ramp(height: int, width: int) -> Tensor:
    """An image whose brightness is its column: 0, 2, 4, ..."""
    return (2 * torch.arange(width, dtype=torch.uint8)).expand(3, height, width).contiguous()


def test_an_image_is_fitted_in_whole_cells_and_keeps_its_shape() -> None:
    image = torch.zeros(3, 100, 150, dtype=torch.uint8)
    assert fitted(image, 64, STRIDE).shape == (3, 64, 96)
    assert fitted(image[:, :, :3], 64, STRIDE).shape == (3, 2136, 64)
    strip = torch.zeros(3, 1, 100_000, dtype=torch.uint8)
    assert fitted(strip, 64, STRIDE).shape == (3, STRIDE, 3200)
    assert fitted(torch.zeros(3, 1, 1, dtype=torch.uint8), 2, STRIDE).shape == (3, 8, 8)


def test_without_sliding_the_map_is_the_network_s_own() -> None:
    image = torch.randint(0, 256, (3, 32, 48), generator=torch.Generator().manual_seed(0)).byte()
    plain = mean_of_cells(normalize(image[None], torch.float32, channels_last=False))[0]
    torch.testing.assert_close(sliding_map(mean_of_cells, image, stride=STRIDE, slide=1), plain)


@pytest.mark.parametrize("slide", [2, 4])
def test_sliding_lays_finer_cells_evenly_over_the_same_area(slide: int) -> None:
    fine = sliding_map(mean_of_cells, ramp(32, 96), stride=STRIDE, slide=slide)
    assert fine.shape == (3, 4 * slide, 12 * slide)
    scale = normalize(ramp(1, 96)[None], torch.float32, channels_last=False)[0, 0, 0]  # (96,)
    step = (scale[1] - scale[0]) * STRIDE / slide
    inner = fine[0, 0, slide:-slide]  # at the edges the image is repeated
    torch.testing.assert_close(inner.diff(), step.expand(len(inner) - 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(inner.mean(), scale.mean(), atol=1e-5, rtol=0)


def test_one_feature_has_one_colour_in_all_maps() -> None:
    generator = torch.Generator().manual_seed(1)
    maps = [torch.randn(8, 5, 6, generator=generator) for _ in range(2)]
    maps[1][:, 2, 3] = maps[0][:, 1, 1]
    ((first, second),) = principal_colours([maps])
    assert first.shape == second.shape == (5, 6, 3)
    torch.testing.assert_close(first[1, 1], second[2, 3])
    assert first.min() >= 0
    assert first.max() <= 1


def test_the_main_direction_is_red_and_uses_its_whole_range() -> None:
    position = torch.linspace(-1, 1, 400).reshape(20, 20)
    axis = torch.stack([torch.cos(position), torch.sin(position)])  # directions on a circle
    feature_map = torch.cat([axis, torch.zeros(4, 20, 20)])
    red = principal_colours([[feature_map]])[0][0][..., 0].flatten()
    assert (red.diff() >= 0).all() or (red.diff() <= 0).all()
    assert (red.min(), red.max()) == (0, 1)


def test_a_length_that_differs_between_networks_takes_up_no_colour() -> None:
    maps = torch.rand(8, 4, 4, generator=torch.Generator().manual_seed(2))
    (first,), (second,) = principal_colours([[maps], [3 * maps]])
    torch.testing.assert_close(first, second)


def test_features_of_two_channels_and_constant_ones_have_colours() -> None:
    for feature_map in (torch.randn(2, 3, 3), torch.ones(8, 3, 3)):
        colours = principal_colours([[feature_map]])[0][0]
        assert colours.shape == (3, 3, 3)
        assert colours.isfinite().all()


@pytest.mark.parametrize(
    ("place", "cell"), [((0.5, 0.5), (2, 3)), ((0, 0), (0, 0)), ((1, 1), (3, 6)), ((1, 0), (0, 6))]
)
def test_a_place_leads_to_its_cell(place: tuple[float, float], cell: tuple[int, int]) -> None:
    assert cell_at(place, (4, 7)) == cell


def test_a_cell_is_most_similar_to_itself() -> None:
    maps = [torch.randn(16, 5, 5, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    own, other = similarity_maps(5 * maps[0][:, 3, 1], maps)
    assert int(own.argmax()) == 3 * 5 + 1
    assert own.max().item() == pytest.approx(1.0, abs=1e-5)
    assert other.max() < 0.99
