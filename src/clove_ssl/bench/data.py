"""The parts of ``clove bench`` that read images without training: rendering and reading."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.data.decode import find_batch_decoder
from clove_ssl.data.labels.classified import only_labelled
from clove_ssl.data.loading import batches_of, choose_workers, load_batches
from clove_ssl.data.order import BatchOrder, ImageOrder
from clove_ssl.data.reading import BatchReader, EncodedImages, RenderedViews
from clove_ssl.data.scenes import SceneSource
from clove_ssl.data.sources import BadFiles, ImageSource, open_source
from clove_ssl.errors import UserError
from clove_ssl.pretraining.choices import decide, decide_sizes
from clove_ssl.pretraining.device_renderer import DeviceRenderer
from clove_ssl.pretraining.feed import open_feed
from clove_ssl.pretraining.images import CachePlace, open_store
from clove_ssl.training.processes import Process

if TYPE_CHECKING:
    from clove_ssl.bench.command import Bench

SIZE = (427, 320)  # width, height of the pictures made for the occasion
DIFFERENT, REPEATS = 128, 16


def measure_rendering(bench: Bench, method: MethodConfig, data: DataConfig) -> None:
    """Decoding and rendering of one batch, without reading files."""
    source, images = open_source(data), bench.config.batch
    draws = ImageOrder(len(source), seed=0).draws(0, images)
    reader = _reader(bench, method, data, source)
    if isinstance(reader, RenderedViews):
        bench.measure("decode and render, 1 process", lambda: reader[draws])
        return
    renderer = DeviceRenderer(
        reader, bench.device, dtype=bench.precision.dtype, decoder=find_batch_decoder()
    )
    encoded, decoded = reader[draws].pin_memory(), reader.decoded_batch(draws).pin_memory()
    bench.measure("decode and render", lambda: renderer.render(encoded))
    bench.measure("  render", lambda: renderer.render(decoded))
    busy = bench.device_milliseconds(
        "render", lambda: renderer.render(decoded), stream=renderer.stream
    )
    bench.record("  render, time of the device", 1e3 * images / busy)


def measure_reading(bench: Bench, method: MethodConfig, data: DataConfig) -> None:
    """What the worker processes deliver when nobody trains."""
    source, images = open_source(data), bench.config.batch
    workers = _workers(bench, data)
    warm_up = 2 * workers + 2
    reader: BatchReader[Any] = _reader(bench, method, data, source)
    loader = load_batches(
        reader,
        BatchOrder(
            ImageOrder(len(source), 0),
            batch_size=images,
            processes=1,
            rank=0,
            micro_batch=images,
        ),
        workers=workers,
        prefetch=2,
        start_step=0,
        total_steps=warm_up + bench.config.steps,
        pin_memory=bench.device.type == "cuda",
    )
    with closing(batches_of(loader)) as batches:
        seconds = bench.seconds_per_call("reading", lambda: next(batches), warm_up=warm_up)
    bench.record(f"reading, {workers} workers", images / seconds)


def measure_feed(bench: Bench, method: MethodConfig, data: DataConfig) -> None:
    """What training would get, with photos that are read each time and with photos that stay."""
    places: tuple[CachePlace, ...] = ("off", "gpu", "ram")
    for place in places if bench.device.type == "cuda" else ("off", "ram"):
        try:
            _measure_feed(bench, method, replace(data, cache=place))
        except UserError as error:  # they are too many to stay there
            bench.say(str(error))


def _measure_feed(bench: Bench, method: MethodConfig, data: DataConfig) -> None:
    source, images = open_source(data), bench.config.batch
    workers = _workers(bench, data)
    ahead = 2 * workers + 8  # batches that may be ready before they are asked for
    warm_up = ahead if data.cache == "off" else ahead + len(source) // images
    config = PretrainConfig(
        out=Path("unused"),
        data=data,
        method=method,
        # Some are left over at the end, as many as are ready when time begins to be taken.
        steps=max(warm_up + bench.config.steps + ahead, len(source) // images + 1),
        batch_size=images,
        micro_batch=images,
        device=bench.config.device,
    )
    process = Process(0, 1, 0, 1, bench.device)
    built = method.build(bench.backbone())
    sizes = decide_sizes(config, process, images=len(source))
    choices = decide(config, process, sizes, method=built, source=source)
    feed = open_feed(
        config,
        source,
        method.view_specs(),
        choices,
        process,
        bad_files=BadFiles(data, len(source)),
        store=open_store(choices.cache, len(source), process),
        steps=range(choices.plan.total_steps),
    )
    with closing(feed):
        seconds = bench.seconds_per_call("feed", feed.next, warm_up=warm_up)
    bench.record(f"feed, photos {choices.cache.describe()}", images / seconds)


def _reader(
    bench: Bench, method: MethodConfig, data: DataConfig, source: ImageSource
) -> RenderedViews | EncodedImages:
    specs = method.view_specs()
    if bench.device.type != "cuda":
        return RenderedViews(source, specs, data, seed=0)
    keeps = find_batch_decoder() is not None
    return EncodedImages(source, specs, data, seed=0, keeps_jpegs=keeps)


def _workers(bench: Bench, data: DataConfig) -> int:
    on_cpu = bench.device.type == "cpu"
    return choose_workers(data, processes_here=1, trains_on_cpu=on_cpu).value


def with_classes(method: MethodConfig, data: DataConfig) -> MethodConfig:
    """The method for as many classes as the images have, if it needs them."""
    if not method.needs_labels:
        return method
    return method.for_classes(len(only_labelled(open_source(data)).class_names))


@contextmanager
def pictures(bench: Bench) -> Iterator[DataConfig]:
    """The images of the user, or some that are made up and thrown away afterwards."""
    where: Literal["cpu", "gpu"] = "gpu" if bench.device.type == "cuda" else "cpu"
    data = DataConfig(workers=bench.config.workers, render=where, cache=bench.config.cache)
    if bench.config.data is not None:
        yield replace(data, source=bench.config.data)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.tar"
        _write_shard(path, bench)
        yield replace(data, source=str(path))


def _write_shard(path: Path, bench: Bench) -> None:
    """JPEG files of scenes; each picture several times, since only their number matters.

    There are as many classes as repeats, for methods that need some.
    """
    width, height = SIZE
    scenes = SceneSource(DIFFERENT, size=width)
    making = bench.working("making pictures", calls=DIFFERENT)
    with tarfile.open(path, "w") as shard, making as shown:
        for number in range(DIFFERENT):
            content = io.BytesIO()
            Image.fromarray(scenes.scene(number).image[:height]).save(content, "JPEG", quality=90)
            for repeat in range(REPEATS):
                name = f"{number:04d}-{repeat:02d}"
                _add_file(shard, f"{name}.jpg", content.getvalue())
                _add_file(shard, f"{name}.cls", str(repeat).encode())
            shown.done()


def _add_file(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))
