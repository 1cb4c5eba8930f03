"""Whole networks for programs without Python: ONNX and torch.export.

A graph takes ``images`` (B, 3, H, W), normalised, of any batch and size, and gives
the maps of all stages, of one, or the embeddings of the pre-training heads.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clove_ssl.errors import UserError
from clove_ssl.weights.export.exported import SIZES, Exported, largest_difference
from clove_ssl.weights.safetensors_file import write_bytes

if TYPE_CHECKING:
    from clove_ssl.methods.teacher_student import BackboneEncoder

# Names of the dimensions in a graph; two traced images, because a batch of one is a special case.
_DYNAMIC = {"images": {0: "batch", 2: "height", 3: "width"}}


class FeatureGraph(nn.Module):
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


class EmbeddingGraph(nn.Module):
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


def build_graph(exported: Exported) -> FeatureGraph | EmbeddingGraph:
    """What is to be exported, as a function with named outputs."""
    graph = EmbeddingGraph(exported.encoder) if exported.encoder else FeatureGraph(exported)
    return graph.eval()


def write_torch_export(exported: Exported, path: Path) -> None:
    """A ``.pt2`` file for ``torch.export.load``."""
    automatic = dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO)
    program = torch.export.export(
        build_graph(exported), _example(), dynamic_shapes={"images": automatic}
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_bytes(path, buffer.getvalue())


def check_torch_export(exported: Exported, path: Path) -> float:
    """Load the program and compare its outputs."""
    program = torch.export.load(path).module()
    return _difference(exported, program)


def write_onnx(exported: Exported, path: Path) -> None:
    """An ONNX file, weights inside."""
    import_onnx("onnxscript")
    graph = build_graph(exported)
    program = torch.onnx.export(
        graph,
        _example(),
        dynamo=True,
        input_names=["images"],
        output_names=list(graph.outputs),
        dynamic_shapes=_DYNAMIC,
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    model = program.model_proto
    for name, value in exported.metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    write_bytes(path, model.SerializeToString())


def check_onnx(exported: Exported, path: Path) -> float:
    """Run the file with onnxruntime and compare its outputs."""
    runtime = import_onnx("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, session.run(None, {"images": images.numpy()})))

    return _difference(exported, run)


def _difference(exported: Exported, copy: Any) -> float:
    graph = build_graph(exported)

    def named(outputs: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        return dict(zip(graph.outputs, outputs, strict=True))

    return largest_difference(lambda x: named(graph(x)), lambda x: named(copy(x)))


def _example() -> tuple[Tensor]:
    batch, height, width = SIZES[-1]
    return (torch.zeros(batch, 3, height, width),)


def import_onnx(module: str) -> Any:
    """One of the packages of the extra ``onnx``; say how to get it where it is missing."""
    try:
        return __import__(module)
    except ImportError:
        raise UserError(
            f'ONNX needs {module}, which is not installed. Type: pip install "clove-ssl[onnx]"'
        ) from None
