"""One model, six ways: do its exports find the same in real photos?

Run:  python -m benchmarks.compare_exports RUN... --photos FOLDER [--count 50]
RUN is a finished run of clove finetune. Compared with the Python call,
clove_ssl.load_finetuned(RUN)(photo), are: what clove predict writes, the ONNX file (by onnxruntime,
with images resized as in the script beside the file) and the torch.export file; of detectors also
the Detectron2 export, read back key for key into a fresh detector (benchmarks/compare_detectron2.py
runs Detectron2 itself on the same file), and torchvision's own detector, built by the program
beside its file. Prints one JSON line per way. Detectors: detections that were paired, detections
without a partner, and the largest differences of boxes (pixels of the photo) and scores.
Segmenters: the share of pixels with the same class, in the photo where they are least.
"""

from __future__ import annotations

import argparse
import json
import pickle
import runpy
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.functional import to_tensor

from clove_ssl.config.predicting import PredictConfig
from clove_ssl.exporting.agreement import Agreement, compare_detections
from clove_ssl.exporting.command import export_backbone
from clove_ssl.finetuning.finetuned import FinetunedModel, load_finetuned, read_finetuned
from clove_ssl.predicting.run import predict_images
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import DetectionTask
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.tasks.rcnn.pixels import resized_shape
from clove_ssl.tasks.semantic.task import SemanticTask
from clove_ssl.weights.config import ExportConfig, FormatName

PIXELS_ALIKE = 0.999
"""Share of the pixels of a photo that must have the same class: ties fall either way."""


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
        predict_images(
            PredictConfig(model=run, images=tuple(photos), out=out, score=0.0, draw=False)
        )
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
        photo = upright(path)
        shape = resized_shape(photo.height, photo.width, short_side=side, longest=longest)
        seen = photo.resize(shape[::-1], Image.Resampling.BILINEAR)
        pixels = as_batch(seen)
        outputs = run(pixels, np.array([pixels.shape[2:]]))
        boxes, scores, classes, counts = (torch.as_tensor(each) for each in outputs[:4])
        count = int(counts[0])
        factors = torch.tensor(np.tile(np.divide(photo.size, seen.size), 2))
        own = (boxes[0] * factors).float()[:count]
        return Objects(own, scores[0, :count], classes[0, :count])

    return lambda photos: [find_one(photo) for photo in photos]


def upright(path: Path) -> Image.Image:
    """A photo as people see it."""
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def as_batch(photo: Image.Image) -> Any:
    """The pixels of a photo as NumPy's uint8 (1, 3, H, W)."""
    return np.ascontiguousarray(np.asarray(photo).transpose(2, 0, 1)[None])


def _open_graph(path: Path) -> Callable[..., Any]:
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))
    program = torch.export.load(path).module()
    return lambda *inputs: program(*map(torch.from_numpy, inputs))


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


def by_torchvision(path: Path) -> Way:
    """torchvision's detector, built by the program beside the file."""
    (program,) = path.parent.glob(f"{path.stem}*_torchvision.py")
    detector = runpy.run_path(str(program))["build"]()

    @torch.no_grad()
    def find_one(path: Path) -> Objects:
        (found,) = detector([to_tensor(upright(path))])
        return Objects(found["boxes"], found["scores"], found["labels"] - 1)

    return lambda photos: [find_one(photo) for photo in photos]


def compare(mine: Sequence[Objects], theirs: Sequence[Objects]) -> Agreement:
    """All photos together."""
    total = Agreement()
    for own, other in zip(mine, theirs, strict=True):
        total += compare_detections(*own, *other)
    return total


def exported(run: Path, formats: Sequence[FormatName], folder: Path) -> dict[str, Path]:
    """The files of a run in some formats."""
    files = {}
    for to in formats:
        path = files[str(to)] = folder / to / f"model{_SUFFIXES[to]}"
        path.parent.mkdir()
        heads = to not in ("onnx", "torch-export")  # which always have them
        export_backbone(ExportConfig(source=run, to=to, out=path, heads=heads))
    return files


def compare_detector(
    run: Path, model: FinetunedModel, photos: Sequence[Path], folder: Path
) -> Iterator[dict[str, Any]]:
    """How far every way agrees with the Python call about boxes and scores."""
    files = exported(run, ("onnx", "torch-export", "detectron2", "torchvision"), folder)
    ways: dict[str, Way] = {
        "clove predict": by_command(run, model, folder),
        "onnx": by_graph(files["onnx"], model),
        "torch-export": by_graph(files["torch-export"], model),
        "detectron2 export": by_detectron2(run, files["detectron2"]),
        "torchvision": by_torchvision(files["torchvision"]),
    }
    mine = by_python(model)(photos)
    for way, find in ways.items():
        start = time.perf_counter()
        agreement = compare(mine, find(photos))
        seconds = round(time.perf_counter() - start, 1)
        yield {"way": way, **vars(agreement), "holds": agreement.holds, "seconds": seconds}


def compare_segmenter(
    run: Path, model: FinetunedModel, photos: Sequence[Path], folder: Path
) -> Iterator[dict[str, Any]]:
    """How many pixels have the same class in every way; graphs get photos as they see them."""
    predict_images(
        PredictConfig(model=run, images=tuple(photos), out=folder / "predicted", draw=False)
    )
    written = {path.stem: path for path in (folder / "predicted").rglob("masks/**/*.png")}
    shares = [
        _alike(model(photo), torch.as_tensor(np.array(Image.open(written[photo.stem]))))
        for photo in photos
    ]
    yield {"way": "clove predict", "alike": min(shares), "holds": min(shares) == 1}
    assert isinstance(model.task, SemanticTask)
    longest = model.task.config.test_longest
    for way, path in exported(run, ("onnx", "torch-export"), folder).items():
        graph = _open_graph(path)
        shares = []
        for photo in photos:
            seen = upright(photo)
            seen.thumbnail((longest, longest), Image.Resampling.BILINEAR)
            (classes,) = graph(as_batch(seen))
            shares.append(_alike(model(seen), torch.as_tensor(classes[0])))
        yield {"way": way, "alike": min(shares), "holds": min(shares) >= PIXELS_ALIKE}


def _alike(mine: Tensor, theirs: Tensor) -> float:
    return float((mine == theirs).double().mean())


def compare_run(run: Path, photos: Sequence[Path], folder: Path) -> Iterator[dict[str, Any]]:
    """How far every way agrees with the Python call; files go to ``folder``."""
    model = load_finetuned(run)
    is_detector = isinstance(model.network, DetectionNetwork)
    results = (compare_detector if is_detector else compare_segmenter)(run, model, photos, folder)
    for result in results:
        yield {"run": run.name, "photos": len(photos), **result}


def main() -> None:
    """Compare all ways on the photos of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    arguments = parser.parse_args()
    photos = sorted(arguments.photos.glob("*.jpg"))
    photos = photos[:: max(1, len(photos) // arguments.count)][: arguments.count]
    for run in arguments.runs:
        with tempfile.TemporaryDirectory() as folder:
            for result in compare_run(run, photos, Path(folder)):
                print(json.dumps(result))


_SUFFIXES: dict[FormatName, str] = {
    "onnx": ".onnx",
    "torch-export": ".pt2",
    "detectron2": ".pkl",
    "torchvision": ".pth",
}

if __name__ == "__main__":
    main()
