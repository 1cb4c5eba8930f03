"""``clove export``: a backbone for another program, checked, with its model card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clove_ssl.atomic import write_text
from clove_ssl.console import Console
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.exporting.detectors import WHOLE_DETECTORS, export_detector
from clove_ssl.exporting.sources import ExportSource, open_source, place_of_export, writing
from clove_ssl.exporting.whole_models import GRAPHS, export_whole
from clove_ssl.finetuning.finetuned import holds_finetuned, read_finetuned
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.weights.config import ExportConfig
from clove_ssl.weights.export.exported import Exported
from clove_ssl.weights.export.formats import FORMATS, write_checked
from clove_ssl.weights.export.hub_folder import CARD, front_matter
from clove_ssl.weights.export.model_card import render_model_card
from clove_ssl.weights.export.usage import describe_usage
from clove_ssl.weights.safetensors_file import portable_state, to_bytes, write_bytes

_WITH_HEADS_BESIDE = ("safetensors", "hub")


def export_backbone(config: ExportConfig) -> Path:
    """Write the backbone of a run or file, or a detector, in one format; gives the path."""
    if _wants_whole(config):
        return export_whole(config) if config.to in GRAPHS else export_detector(config)
    _check_options(config)
    source = open_source(config)
    _check_heads(config, source)
    path = _target(config, source)
    exported = Exported(
        source.backbone,
        source.metadata,
        stage=config.stage,
        encoder=source.encoder if FORMATS[config.to].is_graph else None,
    )
    with writing(path):
        with Console().working(f"Exporting to {config.to}, and checking it"):
            difference = write_checked(exported, config.to, path)
        written = {"file": path, **_write_projector(source, config, path)}
        written["model card"] = _write_card(source, exported, config, path)
    with Console() as console:
        console.say(f"Exported {source.facts.architecture} ({source.facts.method}) to {config.to}")
        if holds_finetuned(config.source):
            console.choice("part", "the backbone alone", _how_to_get_all(config))
        for what, where in written.items():
            console.choice(what, str(where))
        checked_by, _ = FORMATS[config.to].checker()
        console.choice("checked with", checked_by, f"features differ by {difference:.1e} at most")
    return path


def _wants_whole(config: ExportConfig) -> bool:
    """Whether heads belong to what is exported: a graph of a fine-tuning run is the whole model."""
    if config.backbone_only and config.heads:
        raise UserError("--heads and --backbone-only exclude each other. Leave one of them out.")
    asks_for_maps = config.stage != "all" or config.projector or config.backbone_only
    usual = config.to in GRAPHS and not asks_for_maps and holds_finetuned(config.source)
    return config.heads or usual


def _target(config: ExportConfig, source: ExportSource) -> Path:
    suffix = FORMATS[config.to].suffix or f"-{config.to}"
    usual = source.default_out.with_name(source.default_out.name + suffix)
    return place_of_export(config, usual, source.is_run)


def _how_to_get_all(config: ExportConfig) -> str:
    if config.to in GRAPHS:
        return "without --backbone-only and --stage the whole model"
    task = read_finetuned(config.source).config.task
    if config.to in WHOLE_DETECTORS and isinstance(task, DetectionConfig):
        return "with --heads the whole detector"
    return "export/model.safetensors of the run is the whole model"


def _check_options(config: ExportConfig) -> None:
    if config.to not in FORMATS:  # from Python; the command line knows its choices
        raise unknown_name("format", str(config.to), FORMATS)
    is_graph = FORMATS[config.to].is_graph
    if config.stage != "all" and not is_graph:
        raise UserError(
            f"--stage {config.stage} is for graphs (onnx, torch-export); {config.to} holds all "
            "weights. Leave it out."
        )
    if config.projector and not (is_graph or config.to in _WITH_HEADS_BESIDE):
        raise UserError(
            f"--projector cannot go to {config.to}, whose network has no place for it. Leave it "
            "out, or export to safetensors, hub, onnx or torch-export."
        )
    if config.projector and config.stage != "all":
        raise UserError(
            f"--stage {config.stage} and --projector exclude each other: a graph gives either maps "
            "or embeddings. Leave one of them out."
        )


def _check_heads(config: ExportConfig, source: ExportSource) -> None:
    if config.projector and source.encoder is None:
        raise UserError(
            f"The method {source.facts.method} keeps its heads where they cannot be found, so "
            "there is no projector to export. Leave out --projector."
        )


def _write_projector(source: ExportSource, config: ExportConfig, path: Path) -> dict[str, Path]:
    """The heads of pre-training as a file beside the backbone; a graph has them inside."""
    if source.encoder is None or FORMATS[config.to].is_graph:
        return {}
    state = portable_state(source.encoder)
    heads = {name: state[name] for name in state if not name.startswith("backbone.")}
    inside, beside = path / "projector.safetensors", path.with_suffix(".projector.safetensors")
    target = inside if path.is_dir() else beside
    write_bytes(target, to_bytes(heads, source.metadata))
    return {"projector": target}


def _write_card(source: ExportSource, exported: Exported, config: ExportConfig, path: Path) -> Path:
    facts = replace(source.facts, loading=describe_usage(exported, config.to, path.name))
    text = render_model_card(facts)
    if path.is_dir():
        library = "transformers" if config.to == "transformers" else "clove-ssl"
        write_text(path / CARD, front_matter(facts.licence, library=library) + text)
        return path / CARD
    card = path.with_name(f"{path.name}.md")
    write_text(card, text)
    return card
