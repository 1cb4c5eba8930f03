"""Whole networks for programs without Python: ONNX and torch.export.

A graph takes ``images`` (B, 3, H, W), normalised, of any batch and size, and gives
the maps of all stages, of one, or the embeddings of the pre-training heads.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clove_ssl.errors import UserError
from clove_ssl.weights.export.exported import SIZES, Exported, largest_difference
from clove_ssl.weights.safetensors_file import write_bytes

if TYPE_CHECKING:
    from clove_ssl.methods.teacher_student import BackboneEncoder

Runner = Callable[..., tuple[Tensor, ...]]
Free = dict[str, dict[int, str]]
"""The sides of each input of a graph that may differ from call to call, by name."""
FREE: Free = {"images": {0: "batch", 2: "height", 3: "width"}}


class Graph(nn.Module):
    """A network as a function of tensors that gives one for each name."""

    outputs: Sequence[str]


class FeatureGraph(Graph):
    """A backbone as a function from images to a tuple of maps."""

    def __init__(self, exported: Exported) -> None:
        super().__init__()
        self.backbone = exported.backbone
        stages = tuple(exported.backbone.channels)
        if exported.stage not in ("all", *stages):
            raise UserError(
                f"--stage is {exported.stage}, but this backbone ends at {stages[-1]}. Choose one "
                f"of {', '.join(stages)}."
            )
        self.outputs = stages if exported.stage == "all" else (exported.stage,)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, D, h, w) per output."""
        maps = self.backbone(images, self.outputs[-1])
        return tuple(maps[name] for name in self.outputs)


class EmbeddingGraph(Graph):
    """A backbone with its heads as a function from images to a tuple of embeddings."""

    def __init__(self, encoder: BackboneEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            self.outputs = tuple(self._embed(torch.zeros(2, 3, 64, 64)))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> embeddings, in the shapes of the method."""
        return tuple(self._embed(images).values())

    def _embed(self, images: Tensor) -> dict[str, Tensor]:
        embedded = self.encoder.embeddings(images)
        if isinstance(embedded, Tensor):
            return {"embedding": embedded}
        fields = zip(embedded._fields, embedded, strict=True)
        return {name: value for name, value in fields if value is not None}


def build_graph(exported: Exported) -> Graph:
    """What is to be exported, as a function with named outputs."""
    graph = EmbeddingGraph(exported.encoder) if exported.encoder else FeatureGraph(exported)
    return graph.eval()


def write_torch_export(exported: Exported, path: Path) -> None:
    """A ``.pt2`` file for ``torch.export.load``."""
    save_program(build_graph(exported), _example(), path, free=FREE)


def save_program(
    graph: Graph,
    example: tuple[Tensor, ...],
    path: Path,
    *,
    free: Free,
    extra_files: dict[str, Any] | None = None,
) -> None:
    """Write a graph as a program of ``torch.export``."""
    automatic = {name: dict.fromkeys(sides, torch.export.Dim.AUTO) for name, sides in free.items()}
    program = torch.export.export(graph, example, dynamic_shapes=automatic)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=extra_files)
    write_bytes(path, buffer.getvalue())


def check_torch_export(exported: Exported, path: Path) -> float:
    """Load the program and compare its outputs."""
    return _difference(exported, open_program(path))


def open_program(path: Path) -> Runner:
    """What a program of ``torch.export`` computes, as a function of tensors."""
    loaded: Runner = torch.export.load(path).module()
    return loaded


def write_onnx(exported: Exported, path: Path) -> None:
    """An ONNX file, weights inside."""
    save_onnx(build_graph(exported), _example(), path, free=FREE, metadata=exported.metadata)


def save_onnx(
    graph: Graph,
    example: tuple[Tensor, ...],
    path: Path,
    *,
    free: Free,
    metadata: Mapping[str, str],
    translations: dict[Callable[..., Any], Callable[..., Any]] | None = None,
) -> None:
    """Write a graph as an ONNX file; ``translations`` are for operators that ONNX does not know."""
    for module in ("onnxscript", "onnxruntime"):  # before minutes of work: one writes, one checks
        _import_onnx(module)
    with warnings.catch_warnings():
        # Axes of two inputs that share a name, as all do with the batch: meant so.
        warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)
        program = torch.onnx.export(
            graph,
            example,
            dynamo=True,
            input_names=list(free),
            output_names=list(graph.outputs),
            dynamic_shapes=free,
            custom_translation_table=translations,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    model = program.model_proto
    for name, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    write_bytes(path, model.SerializeToString())


def check_onnx(exported: Exported, path: Path) -> float:
    """Run the file with onnxruntime and compare its outputs."""
    return _difference(exported, open_onnx(path))


def open_onnx(path: Path) -> Runner:
    """What onnxruntime computes with a file, as a function of tensors."""
    runtime = _import_onnx("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        named = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return tuple(map(torch.from_numpy, session.run(None, named)))

    return run


def _difference(exported: Exported, copy: Runner) -> float:
    graph = build_graph(exported)

    def named(outputs: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        return dict(zip(graph.outputs, outputs, strict=True))

    return largest_difference(lambda x: named(graph(x)), lambda x: named(copy(x)))


def _example() -> tuple[Tensor]:
    batch, height, width = SIZES[-1]  # of two images: a batch of one is a special case
    return (torch.zeros(batch, 3, height, width),)


def _import_onnx(module: str) -> Any:
    """One of the packages of the extra ``onnx``; say how to get it where it is missing."""
    try:
        return __import__(module)
    except ImportError:
        raise UserError(
            f'ONNX needs {module}, which is not installed. Type: pip install "clove-ssl[onnx]"'
        ) from None
