"""The verbs of the command line as Python functions of one call each.

    from clove_ssl import export, predict, pretrain, probe

    run = pretrain(data="photos/", out="runs/a", epochs=50)
    probe("runs/a", "random:resnet18", data="photos/")
    export("runs/a", to="timm")
    predict("runs/detector", "photo.jpg")

Everything that the command line can be told is a keyword, under the name it has in a config.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clove_ssl.config import files
from clove_ssl.config.finetuning import RANDOM, LabelledDataConfig, protocol
from clove_ssl.config.label_curves import LabelsConfig, shared_by_all
from clove_ssl.config.predicting import EvaluateConfig
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.config.showing import PictureKind, ReportConfig, ShowConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.recipes import recipe as named_recipe
from clove_ssl.weights.config import ExportConfig, FormatName

if TYPE_CHECKING:
    from clove_ssl.finetuning.finetuned import AnyImage
    from clove_ssl.label_curves.results import LabelCurve
    from clove_ssl.pretraining.run import PretrainResult
    from clove_ssl.probes.command import Results

Place = str | Path
_MOST_MINUTES = 10**6
Device = Literal["auto", "cpu", "cuda"]


def pretrain(
    config: PretrainConfig | None = None,
    *,
    data: Place | Sequence[Place] | None = None,
    out: Place | None = None,
    recipe: str | None = None,
    minutes: float | None = None,
    overwrite: bool = False,
    **options: Any,
) -> PretrainResult:
    """Pre-train a backbone, from a config or on some images; then measure, draw and judge it.

    Args:
        config: Everything about the run. Without one, ``data`` and ``out`` are needed.
        data: A folder, list or shards, or several of them, whose images then count as one row.
        out: The new run directory.
        recipe: One of ``clove list recipes``; by default a run is chosen for images and machine.
        minutes: As many epochs as fit, measured on this machine.
        overwrite: Replace a run that lies at ``out``.
        options: Fields of the config, nested ones as mappings: ``epochs=50``,
            ``backbone={"name": "resnet50"}``; those of ``data`` as ``data_options``.
    """
    from clove_ssl import whole_runs

    if config is None:
        if data is None or out is None:
            raise UserError(
                "pretrain needs a config, or data and out. For example: "
                'pretrain(data="photos/", out="runs/a")'
            )
        if minutes is not None and not (_is_number(minutes) and 0 < minutes <= _MOST_MINUTES):
            raise UserError(f"minutes is {minutes!r}. Give a number above 0, such as minutes=30.")
        config = _config(_data(data), Path(out), recipe, minutes, options)
    elif options or any(given is not None for given in (data, out, recipe, minutes)):
        raise UserError(
            "pretrain was given a config and other options besides; only overwrite goes with a "
            "config. Change the config with dataclasses.replace, or leave it out."
        )
    return whole_runs.begin(config, overwrite=overwrite)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _data(data: Place | Sequence[Place]) -> DataConfig:
    named = [data] if isinstance(data, str | Path) or not isinstance(data, Iterable) else [*data]
    if not named or not all(isinstance(each, str | Path) for each in named):
        raise UserError(f"data is {data!r}. Give a folder, a list, shards, or several of these.")
    first, *more = named
    return DataConfig(source=str(first), more=tuple(map(str, more)))


def _config(
    data: DataConfig, out: Path, recipe: str | None, minutes: float | None, options: dict[str, Any]
) -> PretrainConfig:
    """A recipe, or what is chosen for images and machine, with some fields changed."""
    from clove_ssl.console import Console
    from clove_ssl.pretraining import automatic
    from clove_ssl.training.processes import choose_device

    keep_length = bool({"epochs", "steps"} & set(options))
    if keep_length and minutes is not None:
        raise UserError("minutes and epochs or steps both say how long a run is. Leave one out.")
    device = options.get("device", "auto")
    places = {"source": data.source, "more": list(data.more)}
    changes = {name: value for name, value in options.items() if name != "data_options"}
    changes["data"] = {**options.get("data_options", {}), **places}
    with Console() as console:
        if recipe is None:
            suggested = automatic.suggest_run(out, data, device)
            config = files.changed(suggested.config, changes, where="pretrain")
            return automatic.settle_run(
                suggested, config, console, minutes=minutes, keep_length=keep_length
            )
        config = files.changed(named_recipe(recipe, out), changes, where="pretrain")
        if minutes is None:
            return config
        config, line = automatic.fit_budget(config, minutes, choose_device(device))
        console.choice(line.name, line.value, line.reason)
        return config


def label_curve(
    task: str,
    backbones: Sequence[Place],
    *,
    data: Place,
    out: Place,
    fractions: Sequence[float] = (1, 5, 10, 100),
    score: str | None = None,
    **options: Any,
) -> LabelCurve:
    """Scores of several backbones on growing parts of the labels: what ``clove labels`` shows.

    Args:
        task: ``detect``, ``instances``, ``keypoints`` or ``segment``.
        backbones: Runs or backbone files of one network, or ``random``.
        data: Labelled images.
        out: Folder of runs, table and curves; what is done there is not done again.
        fractions: Percent of the training images.
        score: The score, by default the first one of the task.
        options: Fields of :class:`FinetuneConfig`, nested ones as mappings: ``minutes=20``,
            ``runs=3``; those of ``task`` and ``data`` as ``task_options`` and ``data_options``.
    """
    from clove_ssl.label_curves.command import compare_labels

    changes = {**options}
    changes["data"] = {**changes.pop("data_options", {}), "root": str(data)}
    changes["task"] = changes.pop("task_options", {})
    shared = shared_by_all(protocol(task, Path(out), RANDOM))
    config = LabelsConfig(
        finetuning=files.changed(shared, changes, where="label_curve"),
        backbones=tuple(map(str, backbones)),
        fractions=tuple(fractions),
        score=score,
    )
    return compare_labels(config)


def probe(*backbones: Place, **options: Any) -> Results:
    """Scores of frozen features by backbone, and by name: what ``clove probe`` shows.

    Args:
        backbones: Runs, backbone files, or ``random:NAME``.
        options: Fields of :class:`ProbeConfig`, such as ``data`` and ``stages``.
    """
    from clove_ssl.probes.command import probe_backbones

    return probe_backbones(ProbeConfig(backbones=tuple(map(str, backbones)), **options))


def predict(model: Place, images: AnyImage | Sequence[AnyImage], *, device: Device = "auto") -> Any:
    """What a fine-tuned model finds in an image, or in each of a list of images.

    Args:
        model: A run of ``clove finetune``, or its export/model.safetensors. For many calls load it
            once, with ``load_finetuned``.
        images: A path, a Pillow picture, a NumPy array (H, W, 3), a uint8 tensor (3, H, W), or a
            list of these.
        device: ``cpu``, ``cuda``, or the best there is.
    """
    from clove_ssl.finetuning.finetuned import load_finetuned
    from clove_ssl.training.processes import choose_device

    return load_finetuned(model, device=str(choose_device(device)))(images)


def evaluate(
    model: Place, data: Place | None = None, *, out: Place | None = None, **options: Any
) -> dict[str, float]:
    """Scores of a fine-tuned model on other labelled images, by name.

    Args:
        model: A run of ``clove finetune``, or its export/model.safetensors.
        data: Labelled images; by default the test set of the run.
        out: Folder for predictions, scores and pictures; by default inside the run.
        options: Other fields of :class:`EvaluateConfig`.
    """
    from clove_ssl.predicting.other_data import evaluate_on

    labelled = LabelledDataConfig(root=None if data is None else Path(data))
    place = None if out is None else Path(out)
    return evaluate_on(EvaluateConfig(model=Path(model), data=labelled, out=place, **options))


def export(source: Place, to: FormatName, *, out: Place | None = None, **options: Any) -> Path:
    """Write a backbone for another program, checked by loading it there; gives the path.

    Args:
        source: A run, or any file that ``clove import`` reads.
        to: One of ``clove list formats``.
        out: The new file or folder; by default inside the run, or beside the file.
        options: Other fields of :class:`ExportConfig`.
    """
    from clove_ssl.exporting.command import export_backbone

    place = None if out is None else Path(out)
    return export_backbone(ExportConfig(source=Path(source), to=to, out=place, **options))


def report(*runs: Place, out: Place | None = None, pictures: bool = True) -> Path:
    """Write one page about some runs; gives its path."""
    from clove_ssl.report.command import report_runs

    place = None if out is None else Path(out)
    return report_runs(ReportConfig(runs=tuple(map(Path, runs)), out=place, pictures=pictures))


def show(what: PictureKind, run: Place, *images: Place, **options: Any) -> Path:
    """Draw views, matches, attention, similarity or features as a PNG; gives its path.

    Args:
        what: The kind of picture.
        run: A run, or a backbone file.
        images: Files or folders; by default images of the run.
        options: Other fields of :class:`ShowConfig`.
    """
    from clove_ssl.pictures import command as showing

    return showing.show(
        ShowConfig(what=what, run=Path(run), images=tuple(map(Path, images)), **options)
    )
