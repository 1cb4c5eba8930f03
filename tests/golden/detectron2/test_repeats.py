"""How often images come in an epoch, against Detectron2 0.6."""

from __future__ import annotations

import numpy as np
import pytest

from clove_ssl.tasks.lvis.task import repeat_factors

pytestmark = pytest.mark.golden


def test_repeat_factors_are_the_recorded_ones(golden) -> None:
    recorded = golden("detectron2/14_repeat_factors.npz")
    classes = [np.flatnonzero(row).tolist() for row in recorded["image_has_category"]]
    thresholds = [name for name in recorded if name.startswith("factors_t")]
    assert thresholds
    for name in thresholds:
        factors = repeat_factors(classes, threshold=float(name.removeprefix("factors_t")))
        np.testing.assert_allclose(factors, recorded[name], rtol=0, atol=1e-6)
