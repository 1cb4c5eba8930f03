"""The short pages of help: what most people need, on two screens of 80 columns.

Every option of a config is one ``--help-all`` away; these pages name the common ones in a
sentence each, and a test compares the names with the configs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from clove_ssl.config.finetuning import task_summaries
from clove_ssl.methods.recipes import all_recipes

WIDTH = 80
_NAMES = 28

PRETRAIN_OPTIONS = {
    "--data PHOTOS ...": "folder, list of files or .tar shards; several are joined in order",
    "--out RUN": "new folder for everything the run writes",
    "--minutes N": "as many epochs as fit, timed on this machine",
    "--epochs N, --steps N": "length of the run",
    "--batch-size N": "images per step; the learning rate follows",
    "--lr X": "learning rate per 256 images",
    "--backbone.name NAME": "network: resnet18, resnet50 ... (clove list backbones)",
    "--backbone.weights FILE": "start from these weights; imagenet for torchvision's",
    "--method.views.global-size N": "side of the large views in pixels",
    "--method.views.local-size N": "side of the small views",
    "--probe.data DATA": "labelled images to probe the features on during the run",
    "--workers N": "processes that read images",
    "--device cpu|cuda": "where to compute",
    "--precision bf16|fp16|fp32": "number format of the network",
    "--seed N": "random seed",
    "--config FILE": "options from a file, such as the config.yaml of a run",
    "--overwrite": "replace an earlier run at --out",
}
FINETUNE_OPTIONS = {
    "--backbone RUN": "run or file to start from, or random",
    "--data FOLDER": "labelled images; without it, generated scenes",
    "--out RUN": "new folder for everything the run writes",
    "--steps N": "length; the schedule follows in proportion",
    "--epochs N, --minutes N": "length for your own classes; by default from the number of images",
    "--batch-size N": "images per step; the learning rate follows",
    "--lr X": "peak learning rate, used as given",
    "--fraction X": "share of the training images to train on",
    "--runs N": "repeat with several seeds; gives mean and deviation",
    "--evaluation.every N": "steps between evaluations",
    "--workers N": "processes that read images",
    "--device cpu|cuda": "where to compute",
    "--precision bf16|fp32": "number format of the network",
    "--seed N": "random seed",
    "--config FILE": "options from a file, such as the config.yaml of a run",
    "--overwrite": "replace an earlier run at --out",
}
LABELS_OPTIONS = {
    "--backbones A B ...": "runs or files of one network, or random",
    "--fractions 1 5 10 100": "percentages of the training images to train on",
    "--data FOLDER": "labelled images in any format of clove data",
    "--out OUT": "folder for runs, table and curves; finished runs are skipped",
    "--runs N": "repeat with several seeds, which draw other images",
    "--minutes N, --epochs N": "length of one run, the same for all backbones of a fraction",
    "--steps N": "the same in steps, for all fractions",
    "--score NAME": "the score to plot, such as box_AP50",
    "--dry-run": "only show what would be run, and how long it would take",
    "--workers N": "processes that read images",
    "--device cpu|cuda": "where to compute",
    "--seed N": "random seed of the first run",
}


def pretrain_page(recipe_name: str | None = None) -> str:
    """What ``clove pretrain --help`` shows; with a recipe, what is said about that one."""
    chosen = () if recipe_name is None else _about_recipe(recipe_name)
    recipes = ("Recipes, by method (clove list recipes explains them):", *_recipes())
    return _page(
        "clove pretrain [RECIPE] --data PHOTOS --out RUN [options]",
        "Pre-train a backbone on unlabelled images. Without a recipe, one is chosen for the "
        "images and the machine, and the choice is explained. Ctrl-C stops with a checkpoint; "
        "clove resume RUN continues.",
        names=(*(chosen or recipes), ""),
        options=PRETRAIN_OPTIONS,
        more="clove pretrain [RECIPE] --help-all shows every option with its value.",
    )


def finetune_page() -> str:
    """What ``clove finetune --help`` shows."""
    return _page(
        "clove finetune TASK --backbone RUN --data FOLDER --out RUN [options]",
        "Fine-tune a backbone on a task and score it. Ctrl-C stops; clove resume RUN continues.",
        names=("Tasks:", *_table(task_summaries(), names=15), ""),
        options=FINETUNE_OPTIONS,
        more="clove finetune TASK --help-all shows every option with its value.",
    )


def labels_page() -> str:
    """What ``clove labels --help`` shows."""
    return _page(
        "clove labels TASK --backbones A B ... --data FOLDER --out OUT [options]",
        "Fine-tune several backbones on growing parts of your labels and plot the curves: what "
        "pre-training gains when labels are scarce. TASK is detect, instances, keypoints or "
        "segment. Ctrl-C stops; the same command continues.",
        names=(),
        options=LABELS_OPTIONS,
        more="The other options are those of clove finetune; clove labels TASK --help-all\n"
        "shows them.",
    )


def _page(
    usage: str, about: str, *, names: Iterable[str], options: Mapping[str, str], more: str
) -> str:
    """A page: what the verb does, what can be named, its common options, where the others are."""
    opening = [f"usage: {usage}", "", *textwrap.wrap(about, WIDTH), ""]
    return "\n".join([*opening, *names, "Common options:", *_table(options), "", more])


def _about_recipe(name: str) -> tuple[str, ...]:
    """The docstring of a recipe; nothing where there is none of that name."""
    make = all_recipes().get(name)
    if make is None:
        return ()
    text = " ".join((make.__doc__ or "").replace("``", "").split())
    return f"{name}:", *textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _recipes() -> Iterator[str]:
    """The names of all recipes, one line or two for each method."""
    by_method: dict[str, list[str]] = {}
    for name, make in all_recipes().items():
        by_method.setdefault(make(Path()).method.name, []).append(name)
    return _table({method: "  ".join(names) for method, names in by_method.items()}, names=10)


def _table(rows: Mapping[str, str], *, names: int = _NAMES) -> Iterator[str]:
    """Names on the left, what is said of them on the right, wrapped."""
    for name, text in rows.items():
        yield from _row(name, textwrap.wrap(text, WIDTH - names - 4, break_on_hyphens=False), names)


def _row(name: str, lines: Iterable[str], names: int) -> Iterator[str]:
    first, *others = lines
    if len(name) > names:
        yield f"  {name}"
        name = ""
    yield f"  {name:<{names}}  {first}"
    yield from (f"  {'':<{names}}  {line}" for line in others)
