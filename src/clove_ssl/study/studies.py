"""Studies by name, complete but for the folders of a user's own images.

The docstring of a study says what it compares and what it takes; ``clove study NAME --dry-run``
shows its cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config import files
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.registry import TASKS
from clove_ssl.study.config import (
    BudgetConfig,
    Changes,
    FinetuningEntry,
    PretrainingEntry,
    ProbeEntry,
    StudyConfig,
    StudyDataConfig,
)
from clove_ssl.study.paper_tables import IMAGENET_IMAGES

PAPER_TASKS = (
    "coco-c4",
    "coco-fpn",
    "cityscapes-fpn",
    "lvis-fpn",
    "coco-keypoints",
    "voc-c4",
    "coco-densepose",
)
_PAPER_CHANGES: dict[str, Changes] = {"coco-densepose": {"task": {"surface": "smpl"}}}
"""Files that a protocol needs besides its images."""
_IMAGENET = StudyDataConfig(
    pretrain="imagenet/{000000..001281}.tar",
    pretrain_name="ImageNet-1k",
    images=IMAGENET_IMAGES,
    labelled={"voc": "VOCdevkit", "coco": "coco", "lvis": "coco", "cityscapes": "cityscapes"},
)


def paper_main() -> StudyConfig:
    """All methods at their published length on the paper's protocols, five runs of each.

    The real thing: ImageNet and the downstream datasets, thousands of GPU hours. Protocols that
    this installation does not have are left out; ``clove list tasks`` shows those it has.
    """
    named = [
        ("random", "random-r50", "random"),
        ("supervised", "supervised-r50-100ep", "supervised"),
        ("moco", "moco-r50-200ep", ""),
        ("byol", "byol-r50-200ep", ""),
        ("densecl", "densecl-r50-200ep", "densecl"),
        ("resim", "resim-r50-200ep", "resim"),
        ("inscon-after-the-abstract", "inscon-r50-200ep", "inscon"),
        ("detco", "detco-r50-200ep", "detco"),
        ("setsim", "setsim-r50-200ep", "setsim"),
        ("cp2", "cp2-r50-200ep", "cp2"),
        ("pixpro", "pixpro-r50-400ep", "pixpro"),
        ("vicregl", "vicregl-r50-300ep", "vicregl"),
        ("slotcon", "slotcon-r50-200ep", "slotcon"),
        ("clove-400", "clove-r50-400ep", "clove-400"),
        ("clove-200", "clove-r50-200ep", "clove-200"),
    ]
    known = TASKS.names()
    return StudyConfig(
        title="The paper's main results",
        pretrainings=tuple(
            PretrainingEntry(label=label, recipe=recipe, rows=((row,) if row else ()))
            for label, recipe, row in named
        ),
        finetunings=tuple(
            FinetuningEntry(
                label=task, task=task, seeds=(0, 1, 2, 3, 4), changes=_PAPER_CHANGES.get(task, {})
            )
            for task in PAPER_TASKS
            if task in known
        ),
        data=_IMAGENET,
    )


def paper_ablations() -> StudyConfig:
    """CLoVE's four ablations: 50 epochs of ImageNet, three fine-tuning runs on VOC."""
    return StudyConfig(
        title="The paper's ablations",
        pretrainings=_ablations("clove-r50-50ep", seeds=(0,)),
        finetunings=(FinetuningEntry(label="voc-c4", task="voc-c4", seeds=(0, 1, 2)),),
        data=_IMAGENET,
        reference="clove",
    )


def quick() -> StudyConfig:
    """ResNet-18 on any photo folder and one GPU, all methods for the same GPU seconds.

    Minutes per cell. Give the photos with --data and labelled ones with --labelled voc ... coco
    ...; supervised pre-training uses the photos that have a class.
    """
    rows = {"supervised", "densecl", "pixpro", "vicregl", "slotcon"}
    entries = [
        PretrainingEntry(
            label=method,
            recipe=f"{method}-r18-small",
            seeds=(0, 1),
            rows=((method,) if method in rows else ()),
        )
        for method in _QUICK_METHODS
    ]
    return StudyConfig(
        title="Quick study: equal GPU seconds",
        pretrainings=(
            PretrainingEntry(label="random", recipe="random-r18", seeds=(0, 1), rows=("random",)),
            *entries,
            PretrainingEntry(
                label="clove", recipe="clove-r18-small", seeds=(0, 1), rows=("clove-200",)
            ),
        ),
        probes=_QUICK_PROBES,
        finetunings=_QUICK_TASKS,
        budget=BudgetConfig(kind="seconds", amount=120),
        changes=_UNPROBED,
    )


def clove_plus() -> StudyConfig:
    """CLoVE Plus beside the methods that it has to beat, three seeds, for the same GPU seconds.

    Two minutes per pre-training. Give the photos with --data and VOC with --labelled voc ...; with
    --amount 300 and another --out it is longer, and --beside draws scores over seconds.
    """
    methods = ("clove-plus", "clove", "vicregl", "densecl", "slotcon")
    recipes = {method: f"{method}-r18-small" for method in methods}
    recipes["inscon-after-the-abstract"] = "inscon-r18-small"
    return replace(
        quick(),
        title="CLoVE Plus: equal GPU seconds",
        pretrainings=tuple(
            PretrainingEntry(label=label, recipe=recipe, seeds=(0, 1, 2))
            for label, recipe in recipes.items()
        ),
        probes=(*_QUICK_PROBES, _PLACES),
        finetunings=_QUICK_TASKS[:2],
        budget=BudgetConfig(kind="seconds", amount=100),
        reference="clove-plus",
    )


def quick_ablations() -> StudyConfig:
    """The four ablations with ResNet-18 on any photo folder and one GPU, minutes per cell."""
    return replace(
        quick(),
        title="Quick ablations: equal GPU seconds",
        pretrainings=_ablations("clove-r18-small", seeds=(0, 1)),
        finetunings=_QUICK_TASKS[:1],
        reference="clove",
    )


def smoke() -> StudyConfig:
    """Every part of a study on a CPU in seconds, with built-in scenes; its scores mean nothing."""
    tiny: Changes = {
        "data": {"scenes_count": 20, "scenes_size": 64, "workers": 0},
        "batch_size": 4,
        "device": "cpu",
        "logging": {"every": 1},
        "checkpoints": {"min_steps": 1, "every_epochs": 0.2},
        **_UNPROBED,
    }
    method = {
        "views": {"global_size": 32, "local_count": 0},
        "projector": {"hidden": 16, "out": 16},
        "attention": {"heads": 2},
        "loss": {"top_k": 3},
    }
    stage = {"backbone": {"stage": "c4"}}
    return StudyConfig(
        title="Smoke study",
        pretrainings=(
            PretrainingEntry(label="random", recipe="random-r18", changes=stage),
            PretrainingEntry(
                label="clove", recipe="clove-demo", changes={"method": method}, seeds=(0, 1)
            ),
        ),
        probes=(ProbeEntry(label="dense", changes=_SMOKE_PROBE),),
        finetunings=(
            FinetuningEntry(
                label="voc-semantic",
                task="voc-semantic",
                data="scenes",
                seeds=(0, 1),
                changes=_SMOKE_TASK,
            ),
        ),
        budget=BudgetConfig(kind="steps", amount=2),
        changes=tiny,
    )


def _ablations(recipe: str, *, seeds: tuple[int, ...]) -> tuple[PretrainingEntry, ...]:
    """The default and every variant of the four tables, each pre-trained once per seed."""

    def entry(label: str, method: dict[str, Any], *rows: str) -> PretrainingEntry:
        changes: Changes = {"method": method} if method else {}
        return PretrainingEntry(
            label=label, recipe=recipe, seeds=seeds, changes=changes, rows=tuple(rows)
        )

    two_views = {"views": {"local_count": 0}}
    l2 = {"loss": {"kind": "l2"}}
    thresholds = [
        entry(f"t-pos-{value}", {"matching": {"threshold": value}}, f"threshold-{value}")
        for value in (0.5, 0.6, 0.8, 0.9)
    ]
    return (
        entry(
            "clove",
            {},
            "loss-rank-multi-crop",
            "attention-normalized",
            "negatives-intra",
            "threshold-0.7",
        ),
        entry("two-views", two_views, "loss-rank-two-views"),
        entry("l2", l2, "loss-l2-multi-crop"),
        entry("l2-two-views", {**two_views, **l2}, "loss-l2-two-views"),
        entry("plain-attention", {"attention": {"kind": "plain"}}, "attention-plain"),
        entry("inter", {"loss": {"negatives": "inter"}}, "negatives-inter"),
        entry("inter-avg", {"loss": {"negatives": "inter-avg"}}, "negatives-inter-avg"),
        *thresholds,
    )


def _short(iterations: int, *, task: Changes, warmup: int) -> Changes:
    """A short schedule; with a few steps of warm-up detectors diverge."""
    return {
        "iterations": iterations,
        "precision": "bf16",
        "warmup_iterations": warmup,
        "task": task,
        "evaluation": {"precise_norm_batches": 30, "pictures": 0},
    }


_QUICK_METHODS = (
    "supervised",
    "byol",
    "moco",
    "densecl",
    "pixpro",
    "vicregl",
    "slotcon",
    "clove-plus",
)
_UNPROBED: Changes = {"probe": {"every_epochs": None}}
_QUICK_PROBES = (
    ProbeEntry(
        label="dense-voc",
        data="voc",
        changes={
            "probe": ["segmentation", "retrieval"],
            "size": 256,
            "train_images": 1100,
            "test_images": 450,
        },
    ),
)
_PLACES = ProbeEntry(
    label="same-place",
    data="voc",
    changes={"probe": ["correspondence"], "size": 256, "test_images": 450},
)
_QUICK_DETECTOR: Changes = {
    "train_sides": [256, 288, 320, 352],
    "test_side": 320,
    "longest": 533,
    "detector": {"box": {"regions_per_image": 128}},
}
_QUICK_TASKS = (
    FinetuningEntry(
        label="voc-c4",
        task="voc-c4",
        changes=_short(600, task=_QUICK_DETECTOR, warmup=100),
    ),
    FinetuningEntry(
        label="voc-semantic",
        task="voc-semantic",
        # With the published rate of 0.003 so few iterations learn nothing but background.
        changes={**_short(600, task={"crop": 257}, warmup=50), "lr": 0.05},
    ),
    FinetuningEntry(
        label="coco-fpn",
        task="coco-fpn",
        changes=_short(600, task=_QUICK_DETECTOR, warmup=100),
    ),
)
_SMOKE_PROBE: Changes = {
    "probe": ["segmentation"],
    "size": 32,
    "train_images": 6,
    "test_images": 3,
    "device": "cpu",
}
_SMOKE_TASK: Changes = {
    "iterations": 1,
    "batch_size": 2,
    "device": "cpu",
    "logging": {"every": 1},
    "task": {"crop": 32, "head_width": 8, "head_dilation": 1},
    "data": {"scenes_train": 4, "scenes_test": 2, "scenes_size": 32, "workers": 0},
    "evaluation": {"precise_norm_batches": 1, "pictures": 0},
}

STUDIES: dict[str, Callable[[], StudyConfig]] = {
    "smoke": smoke,
    "quick": quick,
    "quick-ablations": quick_ablations,
    "clove-plus": clove_plus,
    "paper-main": paper_main,
    "paper-ablations": paper_ablations,
}


def open_study(name: str) -> StudyConfig:
    """The study of a name, or the one in a YAML file."""
    if name in STUDIES:
        return STUDIES[name]()
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise unknown_name("study", name, STUDIES)
    if not path.is_file():
        raise UserError(f"{path} does not exist. Give a study file or one of {', '.join(STUDIES)}.")
    return files.load(StudyConfig, path)
