"""The body's surface from the files of the DensePose project.

They may not be handed on, so a user puts them into a folder:

    SMPL_subdiv.mat             part, U and V of every vertex of the mesh
    SMPL_SUBDIV_TRANSFORM.mat   in which row of the distances a vertex is
    Pdist_matrix.pkl            ways along the surface between all pairs of vertices
    UV_symmetry_transforms.mat  U and V on the other side of the body (to mirror training images)

All of them are read and checked at once. The distances, more than a gigabyte, are then let go, and
read again when something is scored.

Dimensions: N vertices, P places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.errors import UserError
from clove_ssl.tasks.densepose.matlab_files import Array, read_matlab
from clove_ssl.tasks.densepose.surfaces import MIRROR_PARTS, PART_COUNT, Floats, Ints, Places
from clove_ssl.weights.array_pickles import PickledArray, mapped, read_array_pickle

MESH = "SMPL_subdiv.mat"
ROWS = "SMPL_SUBDIV_TRANSFORM.mat"
PAIRS = "Pdist_matrix.pkl"
SYMMETRIES = "UV_symmetry_transforms.mat"

_PAIRS_KEY = "Pdist_matrix"  # the distances, in the dictionary that the published file is

Pairs = NDArray[np.floating[Any]]  # (N (N - 1) / 2,) lower triangle, row by row

_SIDE = 256  # steps of U and V in tables
_LAST = _SIDE - 1
_POINTS = 1024  # places that are compared with the vertices of a part at once


class MeshSurface:
    """A mesh whose vertices have a part, U, V and known distances.

    A place on the body counts as the vertex of its part that is nearest in U and V.

    Args:
        parts: Part of every vertex, 1 to 24: (N,).
        surface: U and V of every vertex: (N, 2).
        rows: Row of every vertex in the distances, from 0: (N,).
        load_pairs: Gives the distances of all pairs.
    """

    def __init__(
        self, parts: Ints, surface: Floats, rows: Ints, *, load_pairs: Callable[[], Pairs]
    ) -> None:
        self._rows = rows
        self._vertices = [np.flatnonzero(parts == part) for part in range(PART_COUNT + 1)]
        self._surface = surface
        self._load_pairs = load_pairs
        self._known: Ints = np.full((PART_COUNT + 1) * _SIDE**2, -1)

    def distances(self, a: Places, b: Places) -> Floats:
        """The way along the surface between the nearest vertices, in metres."""
        first, second = np.broadcast_arrays(self._nearest_rows(a), self._nearest_rows(b))
        low, high = np.minimum(first, second), np.maximum(first, second)
        result = np.where(low < 0, np.inf, 0.0)
        apart = (low >= 0) & (low < high)
        high, low = high[apart], low[apart]
        result[apart] = self._pairs[high * (high - 1) // 2 + low]
        return result

    @cached_property
    def _pairs(self) -> Pairs:
        return self._load_pairs()

    def _nearest_rows(self, places: Places) -> Ints:
        """Rows of the nearest vertices, -1 for places off the body."""
        parts, surface = places.parts.reshape(-1), places.surface.reshape(-1, 2)
        rows = np.full(parts.shape, -1)
        steps = np.rint(surface * _LAST).astype(np.int64)
        # Predictions come in steps of 1/255, and the same ones again and again.
        stepped = (parts > 0) & (steps / _LAST == surface).all(axis=1)
        rows[stepped] = self._look_up(parts[stepped], steps[stepped])
        others = (parts > 0) & ~stepped
        rows[others] = self._search(parts[others], surface[others])
        return rows.reshape(places.parts.shape)

    def _look_up(self, parts: Ints, steps: Ints) -> Ints:
        keys = (parts * _SIDE + steps[:, 0]) * _SIDE + steps[:, 1]
        new = np.unique(keys[self._known[keys] < 0])
        places = np.stack([new // _SIDE % _SIDE, new % _SIDE], axis=1) / _LAST
        self._known[new] = self._search(new // _SIDE**2, places)
        rows: Ints = self._known[keys]
        return rows

    def _search(self, parts: Ints, surface: Floats) -> Ints:
        """Compare places (P,), (P, 2) with all vertices of their parts."""
        rows = np.zeros(len(parts), np.int64)
        for part in np.unique(parts).tolist():
            vertices = self._vertices[part]
            u, v = self._surface[vertices].T
            (here,) = np.nonzero(parts == part)
            for some in np.array_split(here, -(-len(here) // _POINTS)):
                across, down = surface[some, :1] - u, surface[some, 1:] - v  # (P, n)
                # Roots, because squares tell apart what distances do not; the first one wins.
                apart = np.sqrt(across * across + down * down)
                rows[some] = self._rows[vertices[apart.argmin(axis=1)]]
        return rows


@dataclass(frozen=True)
class MeshMirror:
    """Tables of the places on the other side of the body."""

    tables: NDArray[np.float32]  # (25, 256, 256, 2) by part, V and U in steps of 1/255: U, V

    def mirrored(self, places: Places) -> Places:
        """The places that a mirror shows instead."""
        u, v = np.clip(places.surface * _LAST, 0, _LAST).astype(np.int64).T
        surface = self.tables[places.parts, v, u].astype(np.float64)
        return Places(MIRROR_PARTS[places.parts], surface)


def open_surface(folder: Path) -> MeshSurface:
    """Read and check the files that scores need."""
    _check_present(folder, (MESH, ROWS, PAIRS), hint="score masks only: --task.scores segm")
    parts, surface = _read_mesh(folder / MESH)
    rows = _read_rows(folder / ROWS, len(parts))
    pairs = folder / PAIRS
    _read_pairs(pairs, len(parts))  # a bad file is worth a message now, not after days of training
    return MeshSurface(parts, surface, rows, load_pairs=lambda: _read_pairs(pairs, len(parts)))


def open_mirror(folder: Path) -> MeshMirror:
    """Read and check the file that mirrored training images need."""
    _check_present(folder, (SYMMETRIES,), hint="train without mirrored images: --task.no-mirror")
    return MeshMirror(_read_symmetries(folder / SYMMETRIES))


def _check_present(folder: Path, names: Sequence[str], *, hint: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} has no {', '.join(missing)}. Expected the surface files of the DensePose "
            f"project there: {', '.join(names)}. Put them there, or {hint}."
        )


def _read_mesh(path: Path) -> tuple[Ints, Floats]:
    arrays = read_matlab(path)
    parts, u, v = (
        _vector(arrays, name, path) for name in ("Part_ID_subdiv", "U_subdiv", "V_subdiv")
    )
    if not len(parts) == len(u) == len(v):
        raise UserError(
            f"{path} has {len(parts)} parts, {len(u)} values of U and {len(v)} of V; expected one "
            "of each for every vertex. Copy or download it again."
        )
    if set(np.unique(parts).tolist()) != set(range(1, PART_COUNT + 1)):
        raise UserError(
            f"Part_ID_subdiv of {path} has parts {parts.min():g} to {parts.max():g}; expected all "
            f"of 1 to {PART_COUNT}. Copy or download it again."
        )
    surface = np.stack([u, v], axis=1).astype(np.float64)
    if not (np.isfinite(surface).all() and surface.min() >= 0 and surface.max() <= 1):
        raise UserError(f"U_subdiv or V_subdiv of {path} leaves 0 to 1. Copy or download it again.")
    return parts.astype(np.int64), surface


def _read_rows(path: Path, vertices: int) -> Ints:
    index = _vector(read_matlab(path), "index", path)
    whole = np.array_equal(index, np.rint(index))  # which NaN is not
    if len(index) != vertices or not whole or index.min() < 1 or index.max() > vertices:
        raise UserError(
            f"index of {path} has {len(index)} values from {index.min():g} to "
            f"{index.max():g}; expected a row from 1 to {vertices} for each of the "
            f"{vertices} vertices of {MESH}. Take both files from the same release."
        )
    return index.astype(np.int64) - 1


def _read_symmetries(path: Path) -> NDArray[np.float32]:
    arrays = read_matlab(path)
    tables = np.zeros((PART_COUNT + 1, _SIDE, _SIDE, 2), np.float32)
    for axis, name in enumerate(("U_transforms", "V_transforms")):
        cells = _named(arrays, name, path).reshape(-1)
        shapes = {np.shape(cell) for cell in cells}
        if len(cells) != PART_COUNT or shapes != {(_SIDE, _SIDE)}:
            raise UserError(
                f"{name} of {path} has {len(cells)} tables of shape {sorted(shapes)}; expected "
                f"{PART_COUNT} of {_SIDE} x {_SIDE}. Copy or download it again."
            )
        tables[1:, ..., axis] = np.stack(list(cells))
        _check_range(tables[1:, ..., axis], name, path)
    return np.clip(tables, 0, 1)


def _check_range(values: NDArray[np.float32], name: str, path: Path) -> None:
    """Tables may have odd values where no part of the body lies, but not nearly everywhere."""
    share = ((values >= 0) & (values <= 1)).mean()
    if share < 0.5:
        raise UserError(
            f"Of the values of {name} of {path} only {share:.0%} lie between 0 and 1, as U and V "
            "do. Copy or download it again."
        )


def _vector(arrays: dict[str, Array], name: str, path: Path) -> Array:
    values = _named(arrays, name, path).reshape(-1)
    if values.dtype == object or len(values) == 0:
        raise UserError(f"{name} of {path} holds no numbers. Copy or download the file again.")
    return values


def _named(arrays: dict[str, Array], name: str, path: Path) -> Array:
    if name not in arrays:
        raise UserError(
            f"{path} has no {name}; it has {', '.join(sorted(arrays)) or 'nothing'}. Give the file "
            "of the DensePose project, under its own name."
        )
    return arrays[name]


def _read_pairs(path: Path, vertices: int) -> Pairs:
    content = _unpickled(path)
    count = vertices * (vertices - 1) // 2
    if not isinstance(content, np.ndarray) or content.dtype.kind != "f" or content.size != count:
        raise UserError(
            f"{path} holds {_described(content)}; expected {count:,} distances, one for every pair "
            f"of the {vertices:,} vertices of {MESH}. Take all surface files from the same release."
        )
    pairs: Pairs = content.reshape(-1)
    if not (np.isfinite(pairs.max(initial=0)) and pairs.min(initial=0) >= 0):
        raise UserError(f"{path} has distances that are negative or not finite. Download it again.")
    return pairs


def _unpickled(path: Path) -> Any:
    """The distances, or whatever else the file holds."""
    try:
        content = read_array_pickle(mapped(path))
        if isinstance(content, dict):
            content = content.get(_PAIRS_KEY, content)
        return content.resolve() if isinstance(content, PickledArray) else content
    except OSError as error:
        reason = error.strerror
    # Damaged pickles fail in many ways; none of them runs code.
    except Exception as error:
        reason = str(error) or type(error).__name__
    raise UserError(f"{path} cannot be read as one array: {reason}. Download it again.")


def _described(content: object) -> str:
    if isinstance(content, np.ndarray):
        return f"an array of {content.dtype} of shape {content.shape}"
    if isinstance(content, dict):
        names = ", ".join(sorted(map(str, content))) or "nothing"
        return f"{names}, but no {_PAIRS_KEY}"
    return f"a {type(content).__name__}"
