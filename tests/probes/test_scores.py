"""Figures of probes: equal to slow references, 1 for perfect features, chance for random ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import probe_figures as slow
from torch import Tensor

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.probes.classifiers import NEIGHBOURS, TEMPERATURE, Bank, knn, linear
from clove_ssl.probes.keypoints import count_transferred, describe_points
from clove_ssl.probes.scores import mean, resample_counts, share
from clove_ssl.probes.views import (
    THRESHOLD,
    PairFeatures,
    correspondence,
    count_found,
    spread_scores,
    uniformity,
)
from clove_ssl.views.geometry import cell_centers

GENERATOR_SEEDS = st.integers(0, 2**20)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestNeighbours:
    def test_votes_are_those_of_the_reference(self) -> None:
        known, queries = noise(30, 5), noise(7, 5, seed=1)
        labels = torch.arange(30) % 4
        votes = Bank.of(known, labels, classes=4).votes(queries)
        for query, vote in zip(queries, votes, strict=True):
            expected = slow.knn_votes(
                known, labels, query, classes=4, k=NEIGHBOURS, temperature=TEMPERATURE
            )
            assert vote.tolist() == pytest.approx(expected, rel=1e-9)

    def test_blocks_make_no_difference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bank, queries = Bank.of(noise(30, 5), torch.arange(30) % 3, classes=3), noise(11, 5, seed=1)
        whole = bank.votes(queries)
        monkeypatch.setattr("clove_ssl.probes.classifiers._LARGEST_BLOCK", 60)
        torch.testing.assert_close(bank.votes(queries), whole)

    @given(st.integers(2, 6), st.integers(1, 40), GENERATOR_SEEDS)
    def test_votes_are_shares(self, classes: int, known: int, seed: int) -> None:
        labels = torch.randint(classes, (known,), generator=torch.Generator().manual_seed(seed))
        votes = Bank.of(noise(known, 3, seed=seed), labels, classes=classes).votes(noise(5, 3))
        torch.testing.assert_close(votes.sum(1), torch.ones(5, dtype=torch.float64))
        assert (votes[:, ~torch.isin(torch.arange(classes), labels)] == 0).all()


class TestClasses:
    @pytest.mark.parametrize("probe", [knn, linear])
    def test_separate_classes_are_told_apart_and_noise_is_not(self, probe: object) -> None:
        labels = torch.arange(200) % 4
        features = 6 * torch.eye(4, 8, dtype=torch.float64)[labels] + noise(200, 8)
        parts = features[:120], labels[:120], features[120:], labels[120:]
        perfect = probe(*parts, classes=4, seed=0)  # type: ignore[operator]
        guess = probe(noise(120, 8), parts[1], noise(80, 8, seed=1), parts[3], classes=4, seed=0)  # type: ignore[operator]
        assert perfect.value == 1.0
        assert perfect.chance == pytest.approx(0.25)
        assert guess.interval[0] < 0.25 < guess.interval[1]


class TestCorrespondence:
    boxes = torch.tensor([[10.0, 20.0, 90.0, 100.0], [95.0, 0.0, 5.0, 80.0]], dtype=torch.float64)
    others = torch.tensor([[30.0, 0.0, 80.0, 70.0], [0.0, 10.0, 60.0, 90.0]], dtype=torch.float64)

    def test_counts_are_those_of_the_reference(self) -> None:
        a, b = noise(2, 6, 4, 5), noise(2, 6, 3, 4, seed=1)
        counted = count_found(a, b, self.boxes, self.others)
        for image in range(2):
            box, other = self.boxes[image].tolist(), self.others[image].tolist()
            there = slow.found_one_way(a[image], b[image], box, other, THRESHOLD)
            back = slow.found_one_way(b[image], a[image], other, box, THRESHOLD)
            expected = [one + two for one, two in zip(there, back, strict=True)]
            assert [part[image].item() for part in counted] == pytest.approx(expected, rel=1e-12)

    @given(
        st.floats(0, 40), st.floats(0, 40), st.floats(40, 100), st.floats(40, 100), st.booleans()
    )
    def test_features_that_are_places_find_every_place(
        self, x: float, y: float, width: float, height: float, mirrored: bool
    ) -> None:
        here = torch.tensor([[0.0, 0.0, 100.0, 100.0]], dtype=torch.float64)
        left, right = (x + width, x) if mirrored else (x, x + width)
        there = torch.tensor([[left, y, right, y + height]], dtype=torch.float64)
        maps = [place_map(boxes, (7, 7)) for boxes in (here, there)]
        right_cells, judged, lucky = count_found(maps[0], maps[1], here, there)
        assert judged.item() > 0
        assert right_cells.item() == judged.item()
        assert 0 < lucky.item() < judged.item()

    def test_random_features_score_the_chance_level(self) -> None:
        boxes = torch.tensor([[0.0, 0.0, 80.0, 80.0]]).expand(64, -1)
        others = torch.tensor([[20.0, 10.0, 100.0, 90.0]]).expand(64, -1)
        counts = count_found(noise(64, 32, 7, 7), noise(64, 32, 7, 7, seed=1), boxes, others)
        score = correspondence(PairFeatures(*counts, pooled=(noise(64, 2), noise(64, 2))), seed=0)
        assert score.chance is not None
        assert score.interval is not None
        assert score.interval[0] < score.chance < score.interval[1]

    def test_views_that_share_nothing_count_nothing(self) -> None:
        here, there = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[500.0, 500, 510, 510]])
        counts = count_found(noise(1, 4, 3, 3), noise(1, 4, 3, 3), here, there)
        assert [part.item() for part in counts] == [0, 0, 0]
        score = correspondence(PairFeatures(*counts, pooled=(noise(1, 2), noise(1, 2))), seed=0)
        assert score.value == 0


def place_map(boxes: Tensor, grid: tuple[int, int]) -> Tensor:
    """Features on a sphere whose most similar pair is the nearest one: (B, 3, h, w)."""
    x, y = (cell_centers(boxes, grid) / 400).unbind(-1)  # angles well below a right one
    rows = torch.stack([x.cos() * y.cos(), x.sin() * y.cos(), y.sin()], dim=1)  # (B, 3, L)
    return rows.unflatten(2, grid)


class TestSpread:
    def test_uniformity_is_that_of_the_reference(self) -> None:
        rows = noise(12, 4)
        assert uniformity(unit_vectors(rows), seed=0).value == pytest.approx(
            slow.uniformity(rows), rel=1e-9
        )

    def test_alignment_is_the_mean_squared_distance(self) -> None:
        first, second = noise(9, 5), noise(9, 5, seed=1)
        none = torch.zeros(9)
        scores = spread_scores(PairFeatures(none, none, none, (first, second)), seed=0)
        expected = (unit_vectors(first) - unit_vectors(second)).norm(dim=1).square().mean()
        assert scores["alignment"].value == pytest.approx(expected.item(), rel=1e-9)
        equal = spread_scores(PairFeatures(none, none, none, (first, first)), seed=0)
        assert equal["alignment"].value == 0

    def test_images_that_look_the_same_are_not_spread(self) -> None:
        same, even = torch.ones(50, 6).double() + 1e-3 * noise(50, 6), noise(50, 6)
        none = torch.zeros(50)
        narrow = spread_scores(PairFeatures(none, none, none, (same, same)), seed=0)
        wide = spread_scores(PairFeatures(none, none, none, (even, even)), seed=0)
        assert narrow["uniformity"].value == pytest.approx(0, abs=1e-3)
        assert wide["uniformity"].value < -1.5
        assert wide["effective_rank"].value == pytest.approx(6, abs=0.5)

    def test_the_rank_does_not_count_what_all_images_share(self) -> None:
        line = noise(40, 1) * noise(1, 8, seed=1)
        none = torch.zeros(40)
        shifted = PairFeatures(none, none, none, (line + 100 * noise(1, 8, seed=2), line))
        assert spread_scores(shifted, seed=0)["effective_rank"].value == pytest.approx(1, abs=1e-3)


class TestKeypoints:
    def test_counts_are_those_of_the_reference(self) -> None:
        maps, descriptors = noise(2, 5, 6, 4), unit_vectors(noise(2, 3, 4, 5, seed=1))
        points = 64 * torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(0)).double()
        judged = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) < 0.7
        radius = torch.tensor([9.0, 20.0], dtype=torch.float64)
        counted = count_transferred(
            descriptors, maps, points, judged=judged, radius=radius, size=64
        )
        for image in range(2):
            expected = slow.transferred(
                descriptors[image], maps[image], points[image], judged[image],
                radius[image].item(), 64,
            )  # fmt: skip
            assert [part[image].item() for part in counted] == pytest.approx(expected, rel=1e-12)

    def test_features_that_are_places_find_every_keypoint(self) -> None:
        boxes = torch.tensor([[0.0, 0.0, 64.0, 64.0]] * 3, dtype=torch.float64)
        maps = place_map(boxes, (16, 16))
        points = torch.tensor([[[10.0, 10.0], [33.0, 50.0]]] * 3, dtype=torch.float64)
        descriptors = describe_points(maps, points, size=64)[:, None]  # (3, 1, 2, 3)
        right, judged, _ = count_transferred(
            descriptors,
            maps,
            points,
            judged=torch.ones(3, 1, 2, dtype=torch.bool),
            radius=torch.full((3,), 4.0),
            size=64,
        )
        assert right.tolist() == judged.tolist() == [2, 2, 2]

    def test_random_features_score_the_chance_level(self) -> None:
        maps, descriptors = noise(80, 16, 8, 8), unit_vectors(noise(80, 5, 6, 16, seed=1))
        points = torch.full((80, 6, 2), 32.0)
        right, judged, lucky = count_transferred(
            descriptors,
            maps,
            points,
            judged=torch.ones(80, 5, 6, dtype=torch.bool),
            radius=torch.full((80,), 12.0),
            size=64,
        )
        score = share(right, judged, seed=0)
        assert score.interval is not None
        assert score.interval[0] < (lucky.sum() / judged.sum()).item() < score.interval[1]

    def test_a_feature_is_read_between_cells(self) -> None:
        maps = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])  # two cells, two channels
        found = describe_points(maps, torch.tensor([[[16.0, 32.0], [32.0, 32.0]]]), size=64)
        torch.testing.assert_close(found[0, 0], torch.tensor([1.0, 0.0]))
        torch.testing.assert_close(found[0, 1], torch.full((2,), 0.5**0.5))


class TestIntervals:
    def test_resamples_have_as_many_images(self) -> None:
        counts = resample_counts(13, seed=0)
        assert (counts.sum(1) == 13).all()
        assert counts.std(0).min() > 0

    def test_a_share_lies_in_its_interval_which_narrows_with_images(self) -> None:
        right = (torch.rand(800, generator=torch.Generator().manual_seed(0)) < 0.3).double()
        few, many = (share(right[:n], torch.ones(n), seed=0) for n in (50, 800))
        widths = []
        for score in (few, many):
            assert score.interval is not None
            assert score.interval[0] <= score.value <= score.interval[1]
            widths.append(score.interval[1] - score.interval[0])
        assert widths[1] < widths[0] / 2

    def test_images_weigh_by_what_is_judged_on_them(self) -> None:
        assert share(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 9.0]), seed=0).value == 0.1

    def test_a_seed_gives_one_interval(self) -> None:
        values = noise(40)
        assert mean(values, seed=1) == mean(values, seed=1)
        assert mean(values, seed=1).interval != mean(values, seed=2).interval
