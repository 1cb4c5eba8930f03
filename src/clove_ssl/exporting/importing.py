"""``clove import``: a checkpoint of any known program as a file of ours, with a report."""

from __future__ import annotations

from pathlib import Path

from clove_ssl.console import Console
from clove_ssl.errors import UserError, already_there
from clove_ssl.weights.config import ImportConfig
from clove_ssl.weights.dialects import why_dropped
from clove_ssl.weights.load import LoadReport, read_backbone
from clove_ssl.weights.safetensors_file import save_backbone


def import_weights(config: ImportConfig) -> LoadReport:
    """Read ``config.file``, write ``config.out``, and say what was found."""
    _check_out(config.out)
    with Console().working(f"Reading {config.file.name}"):
        backbone, report = read_backbone(
            config.file,
            method=config.method,
            branch=config.branch,
            architecture=config.architecture,
        )
    metadata = {
        "method": report.method or "unknown",
        "branch": report.branch,
        "licence": report.licence,
        "origin": config.file.name,
    }
    save_backbone(backbone, config.out, {key: value for key, value in metadata.items() if value})
    with Console() as console:
        _tell(console, config, report)
    return report


def _check_out(out: Path) -> None:
    if out.suffix != ".safetensors":
        raise UserError(
            f"--out is {out}, but the file is written as safetensors. Type --out "
            f"{out.parent / (out.stem or 'backbone')}.safetensors."
        )
    if out.exists():
        raise already_there(out)


def _tell(console: Console, config: ImportConfig, report: LoadReport) -> None:
    console.say(f"Importing {config.file}")
    console.choice("recognised", report.layout, report.branch)
    console.choice("network", report.architecture)
    console.choice("tensors", f"{report.matched} of {report.expected} matched")
    for place, count in sorted(report.dropped.items()):
        console.choice("dropped", f"{place}: {count}", why_dropped(place))
    for note in report.notes:
        console.choice("converted", note)
    console.choice("licence", report.licence)
    console.choice("written", str(config.out))
