"""What can be exported: a run, finished or not, or a file of any program.

The backbone that a finished run hands out is read from its export; the other
branch, the heads of pre-training and unfinished runs come from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clove_ssl.atomic import cause
from clove_ssl.backbones.build import Backbone
from clove_ssl.backbones.last_norm import size_last_stage
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig, shown_source
from clove_ssl.console import Console
from clove_ssl.errors import UserError, already_there
from clove_ssl.methods.teacher_student import BackboneEncoder
from clove_ssl.pretraining.going_on import restore_method
from clove_ssl.runs.directory import RunDirectory, not_exported, read_config
from clove_ssl.runs.metrics import damaged_lines, last_values, read_metrics
from clove_ssl.runs.probe_file import entries_about, read_probes
from clove_ssl.runs.state import read_state
from clove_ssl.weights.config import ExportConfig
from clove_ssl.weights.export.formats import FORMATS
from clove_ssl.weights.export.model_card import ModelCardFacts, card_facts
from clove_ssl.weights.load import load_backbone, read_backbone


@dataclass(frozen=True)
class ExportSource:
    """A backbone, what is known about it, and where its exports go."""

    backbone: Backbone
    encoder: BackboneEncoder | None  # with the heads of pre-training, where asked for
    facts: ModelCardFacts
    default_out: Path  # without the suffix of a format
    is_run: bool

    @property
    def metadata(self) -> dict[str, str]:
        """What every exported file carries along."""
        facts = self.facts
        known = {
            "method": facts.method,
            "config_hash": facts.config_hash,
            "branch": facts.branch,
            "licence": facts.licence,
        }
        return {name: value for name, value in known.items() if value}


def place_of_model(config: ExportConfig) -> Path:
    """Where the export of a whole model goes: beside its weights, unless it is told."""
    source = config.source
    folder = RunDirectory(source).model.parent if source.is_dir() else source.parent
    return place_of_export(config, folder / f"model{FORMATS[config.to].suffix}", source.is_dir())


def place_of_export(config: ExportConfig, usual: Path, is_run: bool) -> Path:
    """Where to write; only what an earlier export left inside the run is replaced."""
    path = config.out or usual
    expected = Path(FORMATS[config.to].suffix).suffix or FORMATS[config.to].suffix
    if config.out is not None and expected and not path.suffix:
        named = path / usual.name if path.is_dir() else f"{path}{expected}"
        raise UserError(
            f"--out is {path}, without a suffix, by which other programs tell what a file is. "
            f"Expected the new file; give --out {named}."
        )
    if path.exists() and (config.out is not None or not is_run):
        raise already_there(path)
    return path


def companion(weights: Path, name: str) -> Path:
    """The place of a file that goes with exported weights; refuses one that is of others."""
    path = weights.with_name(name)
    if path == weights:
        raise UserError(
            f"--out is {weights}, but another file that goes with the weights has that name. Give "
            "them another suffix, such as .pkl or .pth."
        )
    if path.exists() and not weights.exists():
        raise already_there(path)
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in words why ``path`` could not be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} could not be written: {cause(error)}. Choose another place with --out."
        ) from error


def open_source(config: ExportConfig) -> ExportSource:
    """The backbone of a run or file, in eval mode."""
    run = RunDirectory(config.source)
    source = _open_run(run, config) if run.config.is_file() else _open_file(config)
    source.backbone.eval()
    if source.encoder is not None:
        source.encoder.eval()
    return source


def _open_file(config: ExportConfig) -> ExportSource:
    if config.projector:
        raise UserError(
            f"--projector needs a run, whose checkpoints hold the heads; {config.source} is none. "
            "Leave it out, or give the run directory."
        )
    backbone, report = read_backbone(config.source, branch=config.branch)
    facts = ModelCardFacts(
        method=report.method or "unknown",
        architecture=backbone.name,
        stage=backbone.stage,
        output_stride=backbone.output_stride,
        licence=config.licence or report.licence,
        branch=report.branch,
    )
    # The folder where one stands has a name of its own, too: exports go beside it.
    source = config.source.resolve() if config.source.name in ("", "..") else config.source
    return ExportSource(backbone, None, facts, source.with_suffix(""), is_run=False)


def _open_finetuned(
    run: RunDirectory, trained: FinetuneConfig, config: ExportConfig
) -> ExportSource:
    """The backbone of a fine-tuning run, as it was after the last step."""
    if config.projector or config.branch is not None:
        raise UserError(
            f"{run.path} is a fine-tuning run, which has neither a projector nor branches. Leave "
            "out --projector and --branch."
        )
    if not run.backbone.is_file():
        raise not_exported(run, run.backbone)
    backbone = load_backbone(run.backbone)
    facts = ModelCardFacts(
        method=f"{trained.task.name} fine-tuning",
        architecture=backbone.name,
        stage=backbone.stage,
        output_stride=backbone.output_stride,
        data=str(trained.data.root or "files or scenes named in the config"),
        labelled=True,
        images_seen=trained.total_iterations * trained.effective_batch,
        steps=trained.total_iterations,
        config_hash=files.fingerprint(trained),
        licence=config.licence or ModelCardFacts.licence,
    )
    return ExportSource(backbone, None, facts, run.backbone.with_suffix(""), is_run=True)


def _open_run(run: RunDirectory, config: ExportConfig) -> ExportSource:
    trained = read_config(run)
    if isinstance(trained, FinetuneConfig):
        return _open_finetuned(run, trained, config)
    handed_out = trained.method.exported_branch or "student"
    branch = config.branch or handed_out
    if branch == "teacher" and not trained.method.has_teacher:
        raise UserError(
            f"{trained.method.name} has no teacher, so there is none to export. Leave out --branch."
        )
    is_usual = branch == handed_out and run.backbone.is_file()
    encoder, step = None, None
    if is_usual and not config.projector:
        backbone = load_backbone(run.backbone)
    else:
        method, step = restore_method(run, trained)
        backbone, encoder = method.export_backbone(branch), method.export_encoder(branch)
        size_last_stage(backbone, backbone.body.state_dict())
    facts = _facts_of_run(run, trained, backbone, step)
    facts = replace(
        facts,
        licence=config.licence or facts.licence,
        branch=branch if trained.method.exported_branch else "",
        probes={**facts.probes, **_probes(run)} if is_usual else {},
    )
    name = "backbone" if branch == handed_out else f"backbone-{branch}"
    if not run.backbone.is_file():
        name += f"-step-{step}"
    heads = encoder if config.projector else None
    return ExportSource(backbone, heads, facts, run.backbone.parent / name, is_run=True)


def _facts_of_run(
    run: RunDirectory, config: PretrainConfig, backbone: Backbone, step: int | None
) -> ModelCardFacts:
    if damage := damaged_lines(run):
        Console().warn(damage)
    metrics = read_metrics(run)
    state = read_state(run, config, metrics)
    return card_facts(
        config,
        backbone,
        images=state.images or 0,
        steps=state.step if step is None else step,
        metrics=last_values(metrics),
    )


def _probes(run: RunDirectory) -> dict[str, float]:
    """Scores of ``clove probe`` for these very weights."""
    current, _ = entries_about(run, read_probes(run))
    return {f"{each['title']} on {shown_source(each['data'])}": each["value"] for each in current}
