"""VICRegL and VICReg against numbers recorded from the released programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.methods.variance import (
    VarianceWeights,
    covariance_penalty,
    feature_distances,
    global_terms,
    local_terms,
    location_distances,
    nearest_cells,
    variance_hinge,
)
from clove_ssl.methods.vicregl.method import pairs_of
from clove_ssl.views.geometry import CropGeometry, cell_centers

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
FILES = ["methods/vicregl.npz", "methods/vicregl_multicrop.npz"]


def close(actual: Tensor | None, expected: np.ndarray, atol: float = 1e-9) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=atol)


def by_view(arrays: Arrays, kind: str) -> list[Tensor]:
    count = sum(name.endswith(".map") for name in arrays)
    return [torch.from_numpy(arrays[f"view{view}.{kind}"]) for view in range(count)]


def places_of(arrays: Arrays) -> list[Tensor]:
    return [each.double().flatten(1, 2) for each in by_view(arrays, "location")]


def weights_of(arrays: Arrays) -> VarianceWeights:
    return VarianceWeights(
        invariance=float(arrays["inv_coeff"]),
        variance=float(arrays["var_coeff"]),
        covariance=float(arrays["cov_coeff"]),
    )


@pytest.mark.parametrize("file", FILES)
def test_matches_are_the_recorded_ones(golden: Callable[[str], Arrays], file: str) -> None:
    arrays = golden(file)
    maps, places = by_view(arrays, "map"), places_of(arrays)
    for number, (i, j) in enumerate(arrays["pair_order"]):
        feature = feature_distances(maps[i], maps[j])
        place = location_distances(places[i], places[j])
        first, second = arrays["num_matches"].tolist()
        for name, found in {
            "feature_12": nearest_cells(feature),
            "feature_21": nearest_cells(feature.mT),
            "location_12": nearest_cells(place, first),
            "location_21": nearest_cells(place.mT, second),
        }.items():
            prefix = f"pair{number}.{name}"
            assert np.array_equal(found.here, arrays[f"{prefix}_input_index"])
            assert np.array_equal(found.there, arrays[f"{prefix}_candidate_index"])


@pytest.mark.parametrize("file", FILES)
def test_terms_loss_and_gradients_are_the_recorded_ones(
    golden: Callable[[str], Arrays], file: str
) -> None:
    arrays = golden(file)
    maps = [each.requires_grad_() for each in by_view(arrays, "map")]
    vectors = [each.requires_grad_() for each in by_view(arrays, "vector")]
    pairs = [(int(i), int(j)) for i, j in arrays["pair_order"]]
    assert pairs == pairs_of(len(maps))
    first, second = arrays["num_matches"].tolist()
    weights = weights_of(arrays)
    whole = global_terms(vectors, pairs, weights=weights, gather=lambda rows: rows)
    local = local_terms(
        maps,
        places_of(arrays),
        pairs,
        matches=(first, second),
        weights=weights,
        gather=lambda rows: rows,
    )
    for name, terms in (("global", whole), ("local", local)):
        close(terms.invariance, arrays[f"{name}_inv"], 1e-6)  # recorded in float32
        close(terms.variance, arrays[f"{name}_var"])
        close(terms.covariance, arrays[f"{name}_cov"])
    alpha = float(arrays["alpha"])
    loss = alpha * whole.total() + (1 - alpha) * local.total()
    loss.backward()
    close(loss, arrays["loss_without_classifier"], 1e-6)
    for view in range(len(maps)):
        close(maps[view].grad, arrays[f"view{view}.grad_map"])
        close(vectors[view].grad, arrays[f"view{view}.grad_vector"])


@pytest.mark.parametrize("grid", [7, 3])
def test_places_of_mirrored_views_are_the_recorded_ones(
    golden: Callable[[str], Arrays], grid: int
) -> None:
    arrays = golden("methods/vicregl_rest.npz")
    top, left, height, width, tall, wide, flip = torch.from_numpy(arrays["grid7.crop_flip"]).unbind(
        -1
    )
    geometry = CropGeometry(
        boxes=torch.stack([left, top, left + width, top + height], dim=-1).double(),
        flipped=flip.bool(),
        flipped_vertically=torch.zeros(len(flip), dtype=torch.bool),
        image_size=torch.stack([tall, wide], dim=-1),
    )
    assert geometry.flipped.any()
    places = cell_centers(geometry.signed_boxes("pixel"), (grid, grid)).flip(-1)  # row, column
    close(places, arrays[f"grid{grid}.location"].reshape(len(flip), -1, 2), 1e-3)


def test_vicreg_sums_its_covariances(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/vicreg.npz")
    x, y = (torch.from_numpy(arrays[name]).requires_grad_() for name in ("x", "y"))
    loss = 25 * F.mse_loss(x, y) + 25 * (variance_hinge(x) + variance_hinge(y)) / 2
    loss = loss + covariance_penalty(x) + covariance_penalty(y)
    loss.backward()
    close(loss, arrays["loss"])
    close(x.grad, arrays["grad_x"])
    close(y.grad, arrays["grad_y"])
