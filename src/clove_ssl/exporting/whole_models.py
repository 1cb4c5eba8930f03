"""``clove export RUN --to onnx | torch-export``: a whole fine-tuned model as one file.

Every file is read back and compared with the model on built-in scenes of several sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clove_ssl.atomic import checked_first, write_text
from clove_ssl.console import Console
from clove_ssl.data.decode import decode
from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.exporting.agreement import Agreement, compare_detections
from clove_ssl.exporting.detector_graph import DetectorGraph
from clove_ssl.exporting.scripts import detector_script, segmenter_script
from clove_ssl.exporting.segmenter_graph import SegmenterGraph
from clove_ssl.exporting.sources import place_of_model, writing
from clove_ssl.exporting.suppression import (
    onnx_translations,
    suppress_by_groups,
    suppress_with_torchvision,
)
from clove_ssl.finetuning.finetuned import FinetunedModel, load_finetuned
from clove_ssl.tasks.densepose.detector import DensePoseDetector
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import DetectionTask
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.tasks.semantic.model import SemanticNetwork
from clove_ssl.tasks.semantic.task import SemanticTask
from clove_ssl.weights.config import ExportConfig
from clove_ssl.weights.export.graphs import (
    FREE,
    Free,
    Graph,
    Runner,
    open_onnx,
    open_program,
    save_onnx,
    save_program,
)

GRAPHS = ("onnx", "torch-export")
_SIZES = ((2, 128, 160), (1, 160, 99))  # batch, height, width; the first one is traced
_PIXELS_ALIKE = 0.999  # share of pixels with the same class


@dataclass(frozen=True)
class _Whole:
    """A model on its way out."""

    model: FinetunedModel
    settings: Mapping[str, int]  # how images are resized before they come in

    @property
    def is_detector(self) -> bool:
        return isinstance(self.model.network, DetectionNetwork)

    @property
    def detector(self) -> Detector:
        assert isinstance(self.model.network, DetectionNetwork)
        return self.model.network.detector

    @property
    def free(self) -> Free:
        """The sides of inputs that may differ from call to call."""
        return {**FREE, "sizes": {0: "batch"}} if self.is_detector else FREE

    def graph(self, target: str) -> Graph:
        """The model as a function of tensors."""
        if self.is_detector:
            operator = suppress_by_groups if target == "onnx" else suppress_with_torchvision
            return DetectorGraph(self.detector, operator).eval()
        assert isinstance(self.model.network, SemanticNetwork)
        return SegmenterGraph(self.model.network).eval()

    def example(self, size: tuple[int, int, int]) -> tuple[Tensor, ...]:
        """Inputs of the graph: built-in scenes, and for detectors the sizes of the images."""
        batch, height, width = size
        scenes = SceneSource(count=batch, size=max(height, width))
        whole = torch.stack([decode(scenes.read(number)) for number in range(batch)])
        images = whole[:, :, :height, :width].contiguous()
        if not self.is_detector:
            return (images,)
        return images, torch.tensor([[height, width]]).expand(batch, 2).contiguous()

    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        facts = {name: str(value) for name, value in self.settings.items()}
        return {
            "classes": json.dumps(self.model.class_names),
            "keypoints": json.dumps(self.model.keypoint_names),
            **facts,
        }


def export_whole(config: ExportConfig) -> Path:
    """Write the whole model of a finished run as a graph; gives the path."""
    model = load_finetuned(config.source)
    whole = _Whole(model, _settings(model, config))
    path = place_of_model(config)
    write, open_again = _WRITERS[config.to]
    with writing(path):
        with (
            Console().working(f"Exporting the model to {config.to}, and checking it"),
            checked_first(path) as new,
        ):
            write(whole, new)
            difference = _checked(whole, open_again(new), path)
        script = _write_script(whole, path) if config.to == "onnx" else None
    with Console() as console:
        _say(whole, config, path, difference, script, console)
    return path


def _settings(model: FinetunedModel, config: ExportConfig) -> dict[str, int]:
    """How images are resized; refuses models that no graph holds."""
    if isinstance(model.task, SemanticTask):
        return {"longest": model.task.config.test_longest}
    known = isinstance(model.task, DetectionTask)
    is_surface = known and isinstance(model.network.detector, DensePoseDetector)
    if not known or is_surface:
        raise UserError(
            f"A whole model of {model.task.__class__.__name__} cannot go to {config.to}: its "
            "outputs are not those of a detector or segmenter. For its backbone alone, add "
            "--backbone-only."
        )
    assert isinstance(model.task, DetectionTask)
    return {"short_side": model.task.config.test_side, "longest": model.task.config.longest}


def _write_torch_export(whole: _Whole, path: Path) -> None:
    """A ``.pt2`` file."""
    graph, example = _traceable(whole, "torch-export")
    facts = {"facts.json": json.dumps(whole.metadata())}
    save_program(graph, example, path, free=whole.free, extra_files=facts)


def _write_onnx(whole: _Whole, path: Path) -> None:
    """An ONNX file."""
    graph, example = _traceable(whole, "onnx")
    translations = onnx_translations() if whole.is_detector else None
    facts = whole.metadata()
    save_onnx(graph, example, path, free=whole.free, metadata=facts, translations=translations)


@torch.no_grad()
def _traceable(whole: _Whole, target: str) -> tuple[Graph, tuple[Tensor, ...]]:
    """A graph with inputs, which has run: what it builds then, tracing must not see."""
    graph, example = whole.graph(target), whole.example(_SIZES[0])
    graph(*example)
    return graph, example


_WRITERS: dict[str, tuple[Callable[[_Whole, Path], None], Callable[[Path], Runner]]] = {
    "onnx": (_write_onnx, open_onnx),
    "torch-export": (_write_torch_export, open_program),
}
"""How a graph is written, and what opens it again."""


@torch.no_grad()
def _checked(whole: _Whole, runner: Runner, path: Path) -> str:
    """Compare the file with the model; say how far they agree, or refuse it."""
    agreement, alike = Agreement(), 1.0
    for size in _SIZES:
        inputs = whole.example(size)
        outputs = runner(*inputs)
        if whole.is_detector:
            agreement += _compare(whole.detector, inputs, outputs)
        else:
            expected = whole.graph("torch-export")(*inputs)[0]
            alike = min(alike, float((expected == outputs[0]).float().mean()))
    if not agreement.holds or alike < _PIXELS_ALIKE:
        found = str(agreement) if whole.is_detector else f"{100 * alike:.1f} % of pixels agree"
        raise UserError(
            f"{path} was not written: it does not compute what the model does ({found}). Try "
            "another version of torch or onnxruntime, or take export/model.safetensors as it is."
        )
    if not whole.is_detector:
        return f"{100 * alike:.2f} % of the pixels agree"
    if agreement.pairs == 0:
        return "both find nothing in the built-in scenes; compare them on photos of your own, too"
    return str(agreement)


def _compare(
    detector: Detector, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> Agreement:
    images, sizes = inputs
    shapes = tuple((height, width) for height, width in sizes.tolist())
    batch = DetectionBatch(tuple(images), (), shapes, torch.arange(len(images)))
    boxes, scores, classes, counts = outputs[:4]
    total = Agreement()
    for number, mine in enumerate(detector.find(batch)):
        theirs = (each[number, : int(counts[number])] for each in (boxes, scores, classes))
        total += compare_detections(mine.boxes, mine.scores, mine.classes, *theirs)
    return total


def _write_script(whole: _Whole, path: Path) -> Path:
    """The program that runs the file without this library."""
    text = (detector_script if whole.is_detector else segmenter_script)(path.name, whole.settings)
    script = path.with_name(f"{path.name}.py")
    write_text(script, text)
    return script


def _say(
    whole: _Whole,
    config: ExportConfig,
    path: Path,
    difference: str,
    script: Path | None,
    console: Console,
) -> None:
    kind = "detector" if whole.is_detector else "segmenter"
    console.say(f"Exported the whole {kind} of {config.source} to {config.to}")
    console.choice("file", str(path))
    console.choice("checked", difference)
    if whole.is_detector:
        rule = "resized as in the script" if script else "resized as clove predict does"
        console.choice("images", f"uint8 (batch, 3, height, width), RGB, {rule}")
        console.choice("sizes", "int64 (batch, 2), height and width of each image in the batch")
    else:
        console.choice("images", "uint8 (batch, 3, height, width), RGB, all of one size")
    outputs = whole.graph(config.to).outputs
    console.choice("outputs", ", ".join(outputs))
    if "keypoint_maps" in outputs:
        console.choice("keypoints", "as maps; their highest place is not part of the graph")
    if "masks" in outputs:
        console.choice("masks", "in their boxes; the graph does not paste them into the image")
    if script is not None:
        console.choice("script", str(script), "needs onnxruntime, NumPy and Pillow alone")
        console.say(script.read_text().rstrip())
