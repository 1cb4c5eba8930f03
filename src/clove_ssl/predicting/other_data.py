"""``clove evaluate``: a finished model on another data set, in the layout that its task reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.predicting import EvaluateConfig
from clove_ssl.console import Console, Work
from clove_ssl.data.loading import choose_workers, ended, explained_deaths_of_reading
from clove_ssl.errors import UserError, counted
from clove_ssl.finetuning.finetuned import FinetunedModel, StoredModel, read_finetuned
from clove_ssl.finetuning.score import say_scores, score_and_write, scores_of
from clove_ssl.predicting.run import check_is_empty
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import Reading, Task, TaskData
from clove_ssl.training.numerics import choose_precision
from clove_ssl.training.processes import choose_device


def evaluate_on(config: EvaluateConfig) -> dict[str, float]:
    """Predict and score the test part of other data; gives the scores by name."""
    device = choose_device(config.device)
    with Console() as console:
        with console.working("Opening the model and the data"):
            stored = read_finetuned(config.model)
            task = stored.config.task.build()
            place = RunDirectory(_place(config))
            check_is_empty(place.path)
            scenes = RunDirectory(config.model).scenes
            test = task.read_other(_data(config, stored), scenes, stored.vocabulary)
            data = task.other_data(test, stored.vocabulary)
            model = stored.build(task, device=device, test=test)
        console.say(f"Scoring {config.model} on {config.data.root or 'its own test set'}")
        console.choice("test images", counted(data.test_images, "image"))
        header = {"task": stored.config.task.name, "model": str(config.model)}
        reading = _reading(config, device)
        with console.working("Evaluating", total=data.test_images) as work:
            found = _predictions(task, model, data, reading, stored.config.precision, work)
        with console.working("Scoring"):
            task.write_predictions(place.predictions, found, data, header=header)
            scores = score_and_write(task, place, test)
        say_scores(scores, console, classes=True)
        if config.pictures:
            with console.working("Drawing test images"):
                task.paint(place.predictions, test, place.pictures, count=config.pictures)
            console.choice("pictures", str(place.pictures))
        console.choice("scores", str(place.scores))
    return scores_of(place)


def _place(config: EvaluateConfig) -> Path:
    """Where results go."""
    if config.out is not None:
        return config.out
    if not config.model.is_dir():
        raise UserError(
            f"{config.model} is a file, so its results have no place of their own. Give --out "
            "FOLDER."
        )
    given = config.data.root or config.data.test_annotations or config.data.test_images
    name = "own-test-set" if given is None else given.resolve().stem
    return config.model / "evaluated" / name


def _data(config: EvaluateConfig, stored: StoredModel) -> LabelledDataConfig:
    """The data that was named; without any that of the run itself."""
    if not config.data.uses_scenes:
        return config.data
    own = stored.config.data
    if own.uses_scenes and not RunDirectory(config.model).scenes.is_dir():
        raise UserError(
            f"{config.model} holds no test images of its own. Name other data: clove evaluate "
            f"{config.model} --data DATA"
        )
    return own


def _reading(config: EvaluateConfig, device: torch.device) -> Reading:
    on_gpu = device.type == "cuda"
    workers = choose_workers(config.data, processes_here=1, trains_on_cpu=not on_gpu).value
    return Reading.alone(
        batch=1, steps=0, workers=workers, prefetch=config.data.prefetch, pin_memory=on_gpu
    )


def _predictions(
    task: Task,
    model: FinetunedModel,
    data: TaskData,
    reading: Reading,
    precision: str,
    work: Work,
) -> list[Any]:
    """What the model says about all test images, in the number format of its run."""
    device = next(model.network.parameters()).device
    is_half = device.type == "cuda" and precision == "bf16"
    chosen = choose_precision("bf16" if is_half else "fp32", device)
    chosen.prepare()
    found: list[Any] = []
    with (
        torch.no_grad(),
        chosen.autocast(),
        explained_deaths_of_reading(workers=reading.workers),
        ended(iter(task.test_batches(data, reading))) as batches,
    ):
        for batch in batches:
            found += model.network.predict(batch.to(device, non_blocking=True))
            work.done()
    return found
