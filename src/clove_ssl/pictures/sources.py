"""What ``clove show`` looks at: images, and networks of a run or of a file.

The backbone that a finished run hands out is read from its export; everything
else (the other branch, heads, unfinished runs) comes from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.bases import Branch
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.config.showing import ShowConfig
from clove_ssl.console import Console
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.labels.classified import only_labelled
from clove_ssl.data.sources import FolderSource, ImageSource, open_source
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Method
from clove_ssl.painting.sheets import Pixels
from clove_ssl.pretraining.going_on import restore_method
from clove_ssl.probes.features import spread
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.weights.load import load_backbone, read_backbone

SCENE_SIDE = 256
USUAL_SIDE = 224  # of large views, where no run says another


@dataclass(frozen=True)
class ShownImage:
    """An image, and its number where views are drawn for it."""

    name: str
    index: int
    pixels: Tensor  # (3, H, W) uint8

    @property
    def size(self) -> str:
        """Width and height, for people."""
        return f"{self.pixels.shape[2]} x {self.pixels.shape[1]} pixels"


@dataclass(frozen=True)
class ShownNetwork:
    """A backbone to look at."""

    label: str
    backbone: Backbone


def array_of(pixels: Tensor) -> Pixels:
    """(3, H, W) uint8 -> (H, W, 3)."""
    array: Pixels = pixels.permute(1, 2, 0).contiguous().numpy()
    return array


def is_run(path: Path) -> bool:
    """Whether the folder belongs to a run, as opposed to a backbone file."""
    return RunDirectory(path).config.is_file() or path.is_dir()


def load_trained(config: ShowConfig) -> PretrainConfig:
    """The config of the pre-training run that was named."""
    if config.run.is_file():
        raise UserError(
            f"clove show {config.what} needs a run, whose config says how; {config.run} is a file. "
            "Give the --out folder of clove pretrain."
        )
    run = directory.find(config.run)
    trained = directory.read_config(run)
    if isinstance(trained, FinetuneConfig):
        raise UserError(
            f"{config.run} is a fine-tuning run; clove show looks at pre-training. Its predictions "
            f"are drawn in its report: clove report {config.run}"
        )
    return trained


def open_networks(config: ShowConfig, *, both: bool) -> list[ShownNetwork]:
    """The backbones to look at; with ``both`` also the teacher, where there is one."""
    if not is_run(config.run):
        backbone, report = read_backbone(config.run, branch=config.branch)
        label = config.branch or report.branch or config.run.stem
        return [ShownNetwork(label, backbone.eval())]
    trained = load_trained(config)
    run = RunDirectory(config.run)
    exported = trained.method.exported_branch or "student"
    if config.branch is not None:
        return [_open_branch(run, trained, config.branch, exported=exported)]
    wanted: list[Branch] = [exported]
    # A finished run whose checkpoints were deleted still has what it hands out.
    if both and trained.method.has_teacher and any(run.checkpoints.glob("step-*.pt")):
        wanted = ["student", "teacher"]
    return [_open_branch(run, trained, branch, exported=exported) for branch in wanted]


def open_untrained(config: ShowConfig) -> list[ShownNetwork]:
    """The backbone as it was before the first step of a run; none of a file, or of one branch."""
    if not is_run(config.run) or config.branch is not None:
        return []
    trained = load_trained(config)
    if not trained.method.trains or trained.backbone.weights is not None:
        return []
    with torch.random.fork_rng():
        torch.manual_seed(trained.seed)
        return [ShownNetwork("before training", build_backbone(trained.backbone).eval())]


def open_method(config: ShowConfig) -> tuple[Method, int]:
    """The whole method of a run, and its step."""
    return restore_method(RunDirectory(config.run), load_trained(config))


def large_side(trained: PretrainConfig | None) -> int:
    """Side of a large view, in pixels."""
    specs = trained.method.view_specs() if trained else ()
    return max((spec.size for spec in specs), default=USUAL_SIDE)


def choose_images(config: ShowConfig, trained: PretrainConfig | None) -> list[ShownImage]:
    """The images that were named, or some of the run's own, or built-in scenes."""
    if config.images:
        paths = [path for given in config.images for path in _files(given, config.count)]
        return [_read_file(path, number) for number, path in enumerate(paths)]
    source = _own_source(trained)
    return [_read(source, index) for index in spread(len(source), config.count)]


def _own_source(trained: PretrainConfig | None) -> ImageSource:
    scenes = DataConfig(source="scenes", scenes_count=1000, scenes_size=SCENE_SIDE)
    if trained is None:
        return open_source(scenes)
    try:
        source = open_source(trained.data)
    except UserError as error:
        Console().warn(f"built-in scenes are shown, since the run's data is not here: {error}")
        return open_source(scenes)
    return only_labelled(source) if trained.method.needs_labels else source


def _open_branch(
    run: RunDirectory, trained: PretrainConfig, branch: Branch, *, exported: Branch
) -> ShownNetwork:
    if branch == "teacher" and not trained.method.has_teacher:
        raise UserError(f"{trained.method.name} has no teacher to show. Leave out --branch.")
    label = branch if trained.method.has_teacher else "network"
    if branch == exported and run.backbone.is_file():
        return ShownNetwork(label, load_backbone(run.backbone).eval())
    method, step = restore_method(run, trained)
    return ShownNetwork(f"{label}, step {step:,}", method.export_backbone(branch))


def _files(path: Path, count: int) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    source = FolderSource(path)
    return [path / source.name(index) for index in spread(len(source), count)]


def _read_file(path: Path, number: int) -> ShownImage:
    try:
        return ShownImage(path.name, number, decode(read_whole(path)))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Name an image file or a folder.") from None
    except (DecodeError, OSError) as error:
        raise UserError(f"{path} cannot be shown: {error}. Name another image.") from None


def _read(source: ImageSource, index: int) -> ShownImage:
    try:
        pixels = decode(source.read(index))
    except (DecodeError, OSError) as error:
        raise UserError(
            f"{source.name(index)} cannot be shown: {error}. Name images to show instead: clove "
            "show WHAT RUN IMAGE ..."
        ) from None
    name = source.name(index).rpartition("/")[2]
    return ShownImage(name, index, pixels)
