"""The surface of the body: formulas of the figures, files of the mesh, and what can be wrong."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from builders.files.surface_files import write_matlab, write_surface_files

from clove_ssl.errors import UserError
from clove_ssl.tasks.densepose.matlab_files import read_matlab
from clove_ssl.tasks.densepose.surface_files import open_mirror, open_surface
from clove_ssl.tasks.densepose.surfaces import (
    KAPPA,
    MIRROR_PARTS,
    PART_COUNT,
    FigureSurface,
    Places,
)

PART_NAMES = (
    *("torso back", "torso front", "right hand", "left hand", "left foot", "right foot"),
    *("right thigh back", "left thigh back", "right thigh front", "left thigh front"),
    *("right shin back", "left shin back", "right shin front", "left shin front"),
    *("left upper arm back", "right upper arm back"),
    *("left upper arm front", "right upper arm front"),
    *("left forearm back", "right forearm back", "left forearm front", "right forearm front"),
    *("head right", "head left"),
)
"""Names of parts 1 to 24."""


def all_parts(count: int = 200) -> Places:
    draws = np.random.default_rng(1)
    return Places(draws.integers(1, PART_COUNT + 1, count), draws.random((count, 2)))


def test_every_part_has_a_name_a_tolerance_and_a_partner() -> None:
    assert len(PART_NAMES) == PART_COUNT
    assert len(KAPPA) == len(MIRROR_PARTS) == PART_COUNT + 1
    for part, name in enumerate(PART_NAMES, start=1):
        partner = PART_NAMES[MIRROR_PARTS[part] - 1]
        swapped = name.replace("left", "?").replace("right", "left").replace("?", "right")
        assert partner == swapped
        assert KAPPA[part] == KAPPA[MIRROR_PARTS[part]]


def test_a_figure_in_a_mirror_keeps_all_distances() -> None:
    body, one = FigureSurface(), all_parts()
    other = Places(one.parts, one.surface[::-1])
    distances = body.distances(one, other)
    assert np.isfinite(distances).all()
    assert distances.max() > 0.3
    mirrored = body.distances(body.mirrored(one), body.mirrored(other))
    np.testing.assert_allclose(mirrored, distances)
    twice = body.mirrored(body.mirrored(one))
    np.testing.assert_array_equal(twice.parts, one.parts)
    np.testing.assert_allclose(twice.surface, one.surface)


def test_nothing_is_near_a_place_off_the_body() -> None:
    off = Places(np.zeros(3, np.int64), np.full((3, 2), 0.5))
    on = Places(np.array([1, 2, 0]), np.full((3, 2), 0.5))
    assert np.isinf(FigureSurface().distances(on, off)).all()


@pytest.mark.parametrize("compress", [True, False])
def test_the_mesh_of_the_files_measures_from_vertex_to_vertex(
    tmp_path: Path, compress: bool
) -> None:
    numbers = write_surface_files(tmp_path, compress=compress)
    surface = open_surface(tmp_path)
    parts = numbers["Part_ID_subdiv"].ravel().astype(np.int64)
    places = Places(parts, np.hstack([numbers["U_subdiv"], numbers["V_subdiv"]]))
    others = Places(parts[::-1], places.surface[::-1])
    rows = numbers["index"].ravel().astype(int) - 1
    table = np.zeros((len(parts), len(parts)))
    table[np.tril_indices(len(parts), -1)] = numbers["pairs"].ravel()
    table += table.T
    np.testing.assert_allclose(surface.distances(places, others), table[rows, rows[::-1]])
    near = Places(parts, np.clip(places.surface + 1e-6, 0, 1))
    np.testing.assert_array_equal(surface.distances(places, near), 0)


def test_the_mirror_of_the_files_looks_places_up(tmp_path: Path) -> None:
    tables = write_surface_files(tmp_path)["tables"]
    places = Places(np.array([3, 24]), np.array([[0.2, 1.0], [0.0, 0.5]]))
    mirrored = open_mirror(tmp_path).mirrored(places)
    assert mirrored.parts.tolist() == [4, 23]
    np.testing.assert_allclose(mirrored.surface[0], tables[:, 2, 255, 51])
    np.testing.assert_allclose(mirrored.surface[1], tables[:, 23, 127, 0])


def replaced(folder: Path, file: str, **arrays: np.ndarray | list) -> None:
    content = {
        name: list(value.ravel()) if value.dtype == object else value
        for name, value in read_matlab(folder / file).items()
    }
    write_matlab(folder / file, content | arrays, compress=True)


def lose_rows(folder: Path) -> None:
    replaced(folder, "SMPL_SUBDIV_TRANSFORM.mat", index=np.ones((7, 1), np.int32))


def lose_parts(folder: Path) -> None:
    replaced(folder, "SMPL_subdiv.mat", Part_ID_subdiv=np.ones((1, 96), np.uint8))


def lose_vertices(folder: Path) -> None:
    replaced(folder, "SMPL_subdiv.mat", U_subdiv=np.zeros((95, 1)))


def leave_the_surface(folder: Path) -> None:
    replaced(folder, "SMPL_subdiv.mat", V_subdiv=np.full((96, 1), 1.5))


def rename_an_array(folder: Path) -> None:
    write_matlab(folder / "SMPL_subdiv.mat", {"other": np.zeros((2, 2))}, compress=False)


def cut_the_mesh(folder: Path) -> None:
    path = folder / "SMPL_subdiv.mat"
    path.write_bytes(path.read_bytes()[:300])


def write_text_instead(folder: Path) -> None:
    (folder / "SMPL_subdiv.mat").write_text("<html>not found</html>" * 20)


def save_as_hdf5(folder: Path) -> None:
    (folder / "SMPL_subdiv.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(600))


def lose_some_rows(folder: Path) -> None:
    replaced(folder, "SMPL_SUBDIV_TRANSFORM.mat", index=np.full((96, 1), np.nan))


def cut_the_rows(folder: Path) -> None:
    path = folder / "SMPL_SUBDIV_TRANSFORM.mat"
    path.write_bytes(path.read_bytes()[:-1])


def cut_the_distances(folder: Path) -> None:
    path = folder / "Pdist_matrix.pkl"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_rows, "index of .* has 7 values from 1 to 1; expected a row from 1 to 96"),
        (lose_parts, "parts 1 to 1; expected all of 1 to 24"),
        (lose_vertices, "96 parts, 95 values of U and 96 of V"),
        (leave_the_surface, "leaves 0 to 1"),
        (rename_an_array, "has no Part_ID_subdiv; it has other"),
        (cut_the_mesh, "no MATLAB file of version 5"),
        (write_text_instead, "its header is another one"),
        (save_as_hdf5, "save with -v7, not -v7.3"),
        (lose_some_rows, "96 values from nan to nan; expected a row"),
        (cut_the_rows, "it ends in the middle of an array"),
        (cut_the_distances, "Pdist_matrix.pkl cannot be read as one array"),
    ],
)
def test_wrong_files_are_named_before_anything_is_scored(
    tmp_path: Path, damage, message: str
) -> None:
    write_surface_files(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        open_surface(tmp_path)


@pytest.mark.parametrize(
    "name", ["SMPL_subdiv.mat", "SMPL_SUBDIV_TRANSFORM.mat", "Pdist_matrix.pkl"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_surface_files(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=f"has no {name}. .* --task.scores segm"):
        open_surface(tmp_path)


def test_missing_or_wrong_symmetries_are_named(tmp_path: Path) -> None:
    write_surface_files(tmp_path)
    path = tmp_path / "UV_symmetry_transforms.mat"
    replaced(tmp_path, path.name, U_transforms=[np.zeros((256, 255))] * 24)
    with pytest.raises(UserError, match=r"24 tables of shape \[\(256, 255\)\]; expected 24 of 256"):
        open_mirror(tmp_path)
    replaced(tmp_path, path.name, U_transforms=[np.full((256, 256), 200.0)] * 24)
    with pytest.raises(UserError, match="of U_transforms of .* only 0% lie between 0 and 1"):
        open_mirror(tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match="no MATLAB file of version 5"):
        open_mirror(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=f"has no {path.name}. .* --task.no-mirror"):
        open_mirror(tmp_path)


class Trap:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Trap(), "which no array needs"),
        (np.full(4560, np.nan, np.float32), "negative or not finite"),
        (np.zeros(4560, np.int32), "array of int32 of shape (4560,); expected 4,560 distances"),
        (np.zeros(10, np.float32), "array of float32 of shape (10,); expected 4,560 distances"),
        ({"other": np.zeros(4560)}, "holds other, but no Pdist_matrix; expected 4,560 distances"),
        ([0.0] * 4560, "holds a list; expected 4,560 distances"),
    ],
)
def test_distances_are_checked_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_surface_files(tmp_path)
    (tmp_path / "Pdist_matrix.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=re.escape(message)):
        open_surface(tmp_path)
    assert not (tmp_path / "trapped").exists()


def growing_type() -> bytes:
    """An array whose type is enlarged afterwards: NumPy would write past its memory."""
    kind = b"cnumpy\ndtype\nU\x02V4K\x00K\x01\x87Rq\x00"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87Rq\x01"
    array += b"(K\1K\4\x85" + kind + b"\x89U\x10" + bytes(16) + b"tb0"
    return b"\x80\2" + array + b"h\0(K\3U\1|NNNM\0\4K\1K\0tb0h\1."


def test_a_pickle_cannot_change_an_array_that_it_made(tmp_path: Path) -> None:
    write_surface_files(tmp_path)
    (tmp_path / "Pdist_matrix.pkl").write_bytes(growing_type())
    with pytest.raises(UserError, match="arrays of type 'V4' are not numbers"):
        open_surface(tmp_path)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_distances_of_every_pickle_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    pairs = write_surface_files(tmp_path)["pairs"]
    (tmp_path / "Pdist_matrix.pkl").write_bytes(pickle.dumps(pairs, protocol=protocol))
    surface = open_surface(tmp_path)
    a, b = (Places(np.array([part]), np.array([[0.5, 0.5]])) for part in (1, 2))
    assert 0 < surface.distances(a, b)[0] < 1
