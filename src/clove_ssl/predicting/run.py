"""A model, many images: read ahead, pass in batches, paint, write, and say how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from clove_ssl.atomic import replacing, unwritable, write_text
from clove_ssl.config.predicting import PredictConfig
from clove_ssl.console import Console, duration
from clove_ssl.errors import UserError, counted
from clove_ssl.finetuning.finetuned import FinetunedModel, load_finetuned
from clove_ssl.predicting.found import Meaning, interpret, paint
from clove_ssl.predicting.inputs import InputImage, Inputs
from clove_ssl.predicting.results import WRITERS, Writer, choose_formats
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.semantic.model import SemanticNetwork
from clove_ssl.training.processes import choose_device

_GPU_BATCH = 8
_SHOWN = 10  # files that could not be read are named one by one, up to this many
_JPEG_SIDE = 65_500
_SECONDS = 2.0  # between lines of progress


@dataclass
class Tally:
    """How far it is."""

    total: int | None
    images: int = 0
    objects: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    _start: float = field(default_factory=time.monotonic)
    _said: float = 0.0

    def line(self) -> str:
        """Images, speed, and the time that is left."""
        seconds = max(time.monotonic() - self._start, 1e-6)
        done = self.images + len(self.skipped)
        # A video may have more frames than it says.
        total = None if self.total is None or self.total < done else self.total
        of_all = "" if total is None else f" of {total:,}"
        images = "image" if (total or done) == 1 else "images"
        text = f"{done:,}{of_all} {images}, {done / seconds:.1f} a second"
        if total and done:
            text += f", {duration((total - done) * seconds / done)} left"
        return text

    def is_due(self) -> bool:
        """Whether somebody would like to hear of it again."""
        now = time.monotonic()
        if now - self._said < _SECONDS:
            return False
        self._said = now
        return True


def predict_images(config: PredictConfig) -> Path:
    """Look at all images that were named; gives the folder of the results."""
    with Console().working("Opening the model"):
        model = load_finetuned(config.model, device=str(choose_device(config.device)))
    writers = _open_writers(config, model)
    inputs = Inputs(config.images, every=config.every)
    _make_new(config.out)
    tally = Tally(inputs.count)
    with Console() as console:
        _introduce(config, model, console)
        for line in inputs.warnings():
            console.warn(line)
        try:
            _predict_all(config, model, inputs, writers, tally, console)
            written = [writer.close() for writer in writers] if tally.images else []
        except OSError as error:
            raise unwritable("Results", config.out, error) from None
        _finish(config, tally, written, console)
        if config.score and not tally.objects and isinstance(model.network, DetectionNetwork):
            console.say(
                f"No object has a score of {config.score:g} or more. Give a lower one, such as "
                f"--score {config.score / 5:g}; a model that was trained too little finds nothing."
            )
    return config.out


def _predict_all(
    config: PredictConfig,
    model: FinetunedModel,
    inputs: Iterable[InputImage],
    writers: list[Writer],
    tally: Tally,
    console: Console,
) -> None:
    meaning = Meaning.of(model)
    for batch in _batches(_readable(inputs, tally, console), _batch_size(config, model)):
        pixels = [image.pixels for image in batch if isinstance(image.pixels, Tensor)]
        for image, prediction in zip(batch, model.predict_all(pixels), strict=True):
            number = tally.images + 1
            found = interpret(image, prediction, meaning, number=number, least_score=config.score)
            for writer in writers:
                writer.add(found)
            if config.draw:
                _save(paint(image, found, meaning), config.out / "pictures", image.place)
            tally.images, tally.objects = number, tally.objects + len(found.records)
        if tally.is_due():
            console.progress(tally.line())


def _save(picture: Image.Image, folder: Path, place: str) -> None:
    """Write a picture as JPEG, or as PNG where one side has more pixels than JPEG allows."""
    is_long = max(picture.size) > _JPEG_SIDE
    path = folder / f"{place}{'.png' if is_long else '.jpg'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        picture.save(file, format="PNG" if is_long else "JPEG", quality=92)


def _readable(inputs: Iterable[InputImage], tally: Tally, console: Console) -> Iterator[InputImage]:
    """The images that are some; others are named and left out."""
    for image in inputs:
        if isinstance(image.pixels, str):
            tally.skipped[image.name] = image.pixels
            if len(tally.skipped) <= _SHOWN:
                console.warn(f"{image.name} is skipped: {image.pixels}")
        else:
            yield image


def _batches(images: Iterable[InputImage], size: int) -> Iterator[list[InputImage]]:
    batch: list[InputImage] = []
    for image in images:
        batch.append(image)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _batch_size(config: PredictConfig, model: FinetunedModel) -> int:
    on_gpu = next(model.network.parameters()).is_cuda
    return config.batch or (_GPU_BATCH if on_gpu else 1)


def _open_writers(config: PredictConfig, model: FinetunedModel) -> list[Writer]:
    network = model.network
    has_masks = isinstance(network, DetectionNetwork) and network.detector.mask_head is not None
    formats = choose_formats(
        config.format, segments=isinstance(network, SemanticNetwork), has_masks=has_masks
    )
    meaning = Meaning.of(model)
    return [WRITERS[name](config.out, meaning) for name in dict.fromkeys(formats)]


def check_is_empty(folder: Path) -> None:
    """Refuse a place for results that holds anything."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file. Give a new folder, such as --out {folder}-results.")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            f"{folder} is not empty, and results would mix with what is there. Choose another "
            f"folder, for example --out {folder}-2."
        )


def _make_new(folder: Path) -> None:
    check_is_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable("Results", folder, error) from None


def _introduce(config: PredictConfig, model: FinetunedModel, console: Console) -> None:
    names = ", ".join(model.class_names[:8])
    more = len(model.class_names) - 8
    console.say(f"Predicting with {config.model}")
    console.choice("classes", names + (f" and {more} more" if more > 0 else ""))
    device = next(model.network.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    console.choice("device", name)


def _finish(config: PredictConfig, tally: Tally, written: list[Path], console: Console) -> None:
    """Say what was found, and where it is."""
    if tally.skipped:
        lines = (f"{name}\t{reason}\n" for name, reason in tally.skipped.items())
        text = "".join(lines).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        write_text(config.out / "skipped.txt", text)
    if not tally.images:
        count = len(tally.skipped)
        whole = f"None of the {count:,} images can" if count > 1 else "The image cannot"
        raise UserError(
            f"{whole} be read; {config.out / 'skipped.txt'} says why. Name other images."
        )
    console.progress(tally.line())
    objects = f", {counted(tally.objects, 'object')}" if tally.objects else ""
    console.say(f"Done: {counted(tally.images, 'image')}{objects}.")
    if tally.skipped:
        places = f"named in {config.out / 'skipped.txt'}"
        console.warn(f"{counted(len(tally.skipped), 'file')} could not be read, {places}")
    if config.draw:
        console.choice("pictures", str(config.out / "pictures"))
    for path in written:
        console.choice("results", str(path))
