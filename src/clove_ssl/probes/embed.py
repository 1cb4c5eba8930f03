"""``clove embed``: the features of images, as arrays in a file.

Unlike probes, this uses the backbone as it was trained, batch-norm statistics
included. Images are scaled to a square, whatever their shape.

Dimensions: N images, B of them in a batch, D channels, h x w cells.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clove_ssl.atomic import cause, check_new_file, replacing
from clove_ssl.backbones.build import Backbone
from clove_ssl.config.pretraining import DataConfig
from clove_ssl.config.probing import EmbedConfig
from clove_ssl.console import Console
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.sources import ImageSource, open_source
from clove_ssl.errors import UserError, escaped
from clove_ssl.probes.features import FrozenFeatures, scale
from clove_ssl.training.processes import choose_device
from clove_ssl.weights.load import load_backbone

_BATCHES_AHEAD = 3
_MOST_THREADS = 16
_FORMATS = (".npz", ".parquet")


@dataclass(frozen=True)
class Embeddings:
    """Features of images, in the order of their source."""

    names: tuple[str, ...]  # N of them
    features: npt.NDArray[np.floating[Any]]  # (N, D), or (N, D, h, w) if dense
    stage: str
    unreadable: dict[str, str] = field(default_factory=dict)  # files left out, and why


def embed(
    backbone: Backbone | str | Path,
    data: str | Path,
    *,
    kind: Literal["global", "dense"] = "global",
    stage: str | None = None,
    size: int = 224,
    dtype: Literal["float32", "float16"] = "float32",
    batch_size: int = 64,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    console: Console | None = None,
) -> Embeddings:
    """The features of all images of a folder, list or set of shards.

    Args:
        backbone: A backbone, or the run or file it is loaded from; not changed.
        data: What ``--data`` of a run may be.
        kind: One feature per image (the mean over its cells), or the whole map.
        stage: The feature map; by default the one that was pre-trained.
        size: Side in pixels to which images are scaled.
        dtype: Number format of the result.
        batch_size: Images at a time.
        device: Where the network runs.
        console: Where to show how far it is.
    """
    network = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
    chosen = stage or network.stage
    source = open_source(DataConfig(source=str(data)))
    extract = FrozenFeatures(network, (chosen,), device=choose_device(device))
    names: list[str] = []
    parts: list[npt.NDArray[np.floating[Any]]] = []
    unreadable: dict[str, str] = {}
    with (console or Console(speaks=False)).working("Embedding", total=len(source)) as work:
        for batch in _read_ahead(source, size=size, batch_size=batch_size):
            images = [image for _, image in batch if isinstance(image, Tensor)]
            names += [name for name, image in batch if isinstance(image, Tensor)]
            unreadable |= {name: image for name, image in batch if isinstance(image, str)}
            if images:
                maps = extract(torch.stack(images))  # (B, D, h, w)
                features = maps.mean((2, 3)) if kind == "global" else maps
                parts.append(features.cpu().numpy().astype(dtype))
            work.done(len(batch))
    if not parts:
        raise UserError(
            f"None of the {len(source)} images of {data} can be read; the first is "
            f"{next(iter(unreadable.values()))}. Give --data other images."
        )
    return Embeddings(tuple(names), np.concatenate(parts), chosen, unreadable)


def write_embeddings(config: EmbedConfig) -> Embeddings:
    """What ``clove embed`` does: embed, write the file, and say so."""
    check_new_file(config.out, _FORMATS, usual="features")
    if config.out.suffix == ".parquet":
        _import_pyarrow()
    console = Console()
    found = embed(
        config.backbone,
        config.data,
        kind=config.kind,
        stage=config.stage,
        size=config.size,
        dtype=config.dtype,
        batch_size=config.batch_size,
        device=config.device,
        console=console,
    )
    for name, reason in found.unreadable.items():
        console.warn(f"{name} is left out: {reason}")
    try:
        with replacing(config.out) as file:
            (_write_npz if config.out.suffix == ".npz" else _write_parquet)(file, found)
    except OSError as error:
        raise UserError(
            f"{config.out} cannot be written: {cause(error)}. Give --out another place."
        ) from None
    shape = " x ".join(map(str, found.features.shape))
    console.say(f"{config.out}: {shape} features of stage {found.stage}")
    return found


def _read_ahead(
    source: ImageSource, *, size: int, batch_size: int
) -> Iterator[list[tuple[str, Tensor | str]]]:
    """Names with images (3, S, S), or with the reason why there is none, a batch at a time."""

    def one(index: int) -> tuple[str, Tensor | str]:
        try:
            image = decode(source.read(index))
        except (DecodeError, OSError) as error:
            return source.name(index), str(error)
        return source.name(index), scale(image, size)

    waiting: deque[list[Future[tuple[str, Tensor | str]]]] = deque()
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        for start in range(0, len(source), batch_size):
            stop = min(start + batch_size, len(source))
            waiting.append([pool.submit(one, index) for index in range(start, stop)])
            if len(waiting) > _BATCHES_AHEAD:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]


def _write_npz(file: Any, found: Embeddings) -> None:
    names = np.array(found.names)
    np.savez(file, names=names, features=found.features, stage=np.array(found.stage))


def _write_parquet(file: Any, found: Embeddings) -> None:
    """One row per image; a dense map is a flat list, whose shape stands in the metadata."""
    arrow, parquet = _import_pyarrow()
    shape = found.features.shape[1:]
    values = arrow.array(found.features.reshape(-1))
    rows = arrow.FixedSizeListArray.from_arrays(values, int(np.prod(shape)))
    names = arrow.array([escaped(name) for name in found.names])
    table = arrow.table({"name": names, "features": rows})
    metadata = {"stage": found.stage, "shape": " ".join(map(str, shape))}
    parquet.write_table(table.replace_schema_metadata(metadata), file)


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            "Writing .parquet needs pyarrow, which is not installed. Type: pip install "
            "'clove-ssl[parquet]', or write --out features.npz"
        ) from None
