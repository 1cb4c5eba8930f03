"""``clove data``: what is in a folder of labelled images, without training on it."""

from __future__ import annotations

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.own_data import DataConfig
from clove_ssl.console import Console
from clove_ssl.tasks.loading.images import check_images
from clove_ssl.tasks.own.describe import describe, suggested_task
from clove_ssl.tasks.own.finding import open_own
from clove_ssl.tasks.own.sheet import write_examples


def show_data(config: DataConfig) -> None:
    """Read data as fine-tuning would, say what they are, and draw examples."""
    labelled = LabelledDataConfig(
        root=config.data,
        validation_share=config.validation_share,
        split_seed=config.split_seed,
    )
    with Console() as console:
        with console.working("Reading labels"):
            data = open_own(labelled, task="instances")
        for line in describe(data):
            console.say(line)
        for problem in data.problems:
            console.warn(problem)
        with console.working("Looking at the images"):
            for items in data.items.values():
                check_images([item.sample for item in items])
        if config.out is not None:
            for path in write_examples(data, config.out, count=config.pictures):
                console.choice("examples", str(path))
        console.say(
            f"Next: clove finetune {suggested_task(data)} --backbone RUN --data {config.data} "
            "--out OUT"
        )
