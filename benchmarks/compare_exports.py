"""One detector, five ways: do its exports find the same objects in real photos?

Run:  python -m benchmarks.compare_exports RUN --photos FOLDER [--count 50]
RUN is a finished run of clove finetune with a detector. Compared with the Python call,
clove_ssl.load_finetuned(RUN)(photo), are: what clove predict writes, the ONNX file (by onnxruntime,
with images resized as in the script beside the file), the torch.export file, and the Detectron2
export, read back key for key into a fresh detector; benchmarks/compare_detectron2.py runs
Detectron2 itself on the same file. Prints one JSON line per way: detections that were paired,
detections without a partner, and the largest differences of boxes (pixels of the photo) and scores.
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from clove_ssl.config.predicting import PredictConfig
from clove_ssl.exporting.agreement import Agreement, compare_detections
from clove_ssl.exporting.command import export_backbone
from clove_ssl.finetuning.finetuned import FinetunedModel, load_finetuned, read_finetuned
from clove_ssl.predicting.command import predict
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import DetectionTask
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.weights.config import ExportConfig


class Objects(NamedTuple):
    """The objects of one photo."""

    boxes: Tensor  # (N, 4) x0, y0, x1, y1 in pixels of the photo
    scores: Tensor  # (N,)
    classes: Tensor  # (N,)


Way = Callable[[Sequence[Path]], list[Objects]]


def by_python(model: FinetunedModel) -> Way:
    """The model as it is."""

    def find(photos: Sequence[Path]) -> list[Objects]:
        found = [model(photo) for photo in photos]
        return [Objects(each.boxes, each.scores, each.classes) for each in found]

    return find


def by_command(run: Path, model: FinetunedModel, folder: Path) -> Way:
    """The results that ``clove predict`` writes."""

    def find(photos: Sequence[Path]) -> list[Objects]:
        out = folder / "predicted"
        predict(PredictConfig(model=run, images=tuple(photos), out=out, score=0.0, draw=False))
        content = json.loads((out / "predictions.json").read_text())
        numbers = model.vocabulary.category_ids
        found = []
        for image in content["images"]:
            own = [each for each in content["annotations"] if each["image_id"] == image["id"]]
            boxes = torch.tensor([each["bbox"] for each in own]).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            scores = torch.tensor([each["score"] for each in own])
            classes = torch.tensor([numbers.index(each["category_id"]) for each in own])
            found.append(Objects(boxes, scores, classes.long()))
        return found

    return find


def by_graph(path: Path, model: FinetunedModel) -> Way:
    """An exported graph, with the photo resized as in the script beside the ONNX file."""
    run = _open_graph(path)
    assert isinstance(model.task, DetectionTask)
    side, longest = model.task.config.test_side, model.task.config.longest

    def find_one(path: Path) -> Objects:
        photo = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        scale = min(side / min(photo.size), longest / max(photo.size))
        size = [max(1, int(scale * each + 0.5)) for each in photo.size]
        seen = photo.resize(size, Image.Resampling.BILINEAR)
        pixels = np.ascontiguousarray(np.asarray(seen).transpose(2, 0, 1)[None])
        outputs = run(pixels, np.array([pixels.shape[2:]]))
        boxes, scores, classes, counts = (torch.as_tensor(each) for each in outputs[:4])
        count = int(counts[0])
        factors = torch.tensor(np.tile(np.divide(photo.size, seen.size), 2))
        own = (boxes[0] * factors).float()[:count]
        return Objects(own, scores[0, :count], classes[0, :count])

    return lambda photos: [find_one(photo) for photo in photos]


def _open_graph(path: Path) -> Callable[[Any, Any], Any]:
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda images, sizes: session.run(None, {"images": images, "sizes": sizes})
    program = torch.export.load(path).module()
    return lambda images, sizes: program(torch.from_numpy(images), torch.from_numpy(sizes))


def by_detectron2(run: Path, path: Path) -> Way:
    """The weights of the Detectron2 file, under its names, in a detector that has no others."""
    stored = read_finetuned(run)
    empty = {name: torch.zeros_like(tensor) for name, tensor in stored.state.items()}
    model = replace(stored, state=empty).build(stored.config.task.build(), device="cpu")
    assert isinstance(model.network, DetectionNetwork)
    detector = model.network.detector
    arrays = pickle.loads(path.read_bytes())["model"]
    state = {
        name: torch.as_tensor(arrays.pop(detectron2_name(name, detector.config.kind)))
        for name in detector.state_dict()
    }
    if arrays:
        raise SystemExit(f"{path} holds arrays that the detector has no place for: {[*arrays]}")
    detector.load_state_dict(state)
    return by_python(model)


def compare(mine: Sequence[Objects], theirs: Sequence[Objects]) -> Agreement:
    """All photos together."""
    total = Agreement()
    for own, other in zip(mine, theirs, strict=True):
        total += compare_detections(*own, *other)
    return total


def main() -> None:
    """Compare all ways on the photos of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    arguments = parser.parse_args()
    photos = sorted(arguments.photos.glob("*.jpg"))
    photos = photos[:: max(1, len(photos) // arguments.count)][: arguments.count]
    model = load_finetuned(arguments.run)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = arguments.run
        files = {to: folder / f"model.{to}" for to in ("onnx", "torch-export", "detectron2")}
        files = {to: path.with_suffix(_SUFFIXES[to]) for to, path in files.items()}
        for to, path in files.items():
            export_backbone(ExportConfig(source=run, to=to, out=path, heads=True))  # type: ignore[arg-type]
        ways: dict[str, Way] = {
            "clove predict": by_command(run, model, folder),
            "onnx": by_graph(files["onnx"], model),
            "torch-export": by_graph(files["torch-export"], model),
            "detectron2 export": by_detectron2(run, files["detectron2"]),
        }
        mine = by_python(model)(photos)
        for way, find in ways.items():
            start = time.perf_counter()
            agreement = compare(mine, find(photos))
            seconds = time.perf_counter() - start
            print(
                json.dumps(
                    {"way": way, "photos": len(photos), **vars(agreement)}
                    | {"holds": agreement.holds, "seconds": round(seconds, 1)}
                )
            )


_SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2", "detectron2": ".pkl"}

if __name__ == "__main__":
    main()
