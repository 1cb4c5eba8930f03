"""A whole detector for torchvision: its state dict, the program that builds it, and a card.

What is written is run: the detector that the program builds looks at built-in scenes, and must find
what ours finds.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import torch

from clove_ssl.atomic import checked_first, write_text
from clove_ssl.console import Console
from clove_ssl.data.decode import decode
from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.exporting.agreement import Agreement, compare_detections
from clove_ssl.exporting.sources import companion
from clove_ssl.exporting.torchvision_program import torchvision_class, torchvision_program, usage
from clove_ssl.finetuning.finetuned import FinetunedModel
from clove_ssl.tasks.densepose.detector import DensePoseDetector
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.torchvision_names import torchvision_state
from clove_ssl.weights.export.named_files import torch_bytes
from clove_ssl.weights.safetensors_file import write_bytes

_SIZES = ((128, 160), (160, 99))  # height, width of the scenes
_ELSEWHERE = "Give --to onnx, torch-export or detectron2, or leave out --heads for the backbone."

_CARD = """\
# {file}

The weights of torchvision's `torchvision.models.detection.{kind}` with a feature pyramid around a
`{network}`, for {classes}. They load with `strict=True`. `{program}` builds that
detector (`build()`), and needs torch, torchvision and Pillow alone:

```python
{usage}```

Label 0 is the background; the others are `CLASSES` in order: {names}.

## The same as in clove-ssl

Boxes agree within 0.1 pixel and scores within 0.001, {more}for photos that come one by one; several
of different sizes are padded to the largest, which moves scores a little. On the built-in scenes:
{agreement}. For that the program sets what torchvision has no argument for:

- anchors are not rounded, and lie at the true strides of the maps;
- {pooling};
{masks}- images are resized by Pillow, antialiased, to sizes rounded to the nearest pixel.

The state dict loads into a {kind} without these lines as well, which then finds other boxes.

## Not the same

- torchvision drops boxes that are thinner than 0.01 pixels.
{keypoints}- Training there has torchvision's losses and resizing.
"""
_POOLING = {
    "aligned": "regions are pooled without the shift of half a cell, with as many samples as a bin "
    "has cells",
    "legacy": "regions are pooled with the true strides",
}


def write_torchvision(
    model: FinetunedModel, detector: Detector, task: DetectionConfig, path: Path
) -> dict[str, Path]:
    """The state dict, the program and the card; what does not agree takes no place."""
    _refuse_others(detector)
    program, card = companion(path, f"{_module(path)}.py"), path.with_name(f"{path.name}.md")
    text = torchvision_program(
        task,
        detector,
        classes=model.class_names,
        keypoints=model.keypoint_names,
        file=path.name,
    )
    with checked_first(path) as new:
        write_bytes(new, torch_bytes(torchvision_state(detector)))
        write_text(new.with_name(program.name), text)
        agreement = _compare(model, new.with_name(program.name))
        if not agreement.holds:
            raise UserError(
                f"{path} was not written: torchvision does not find what the model does "
                f"({agreement}). Try another version of torchvision. {_ELSEWHERE}"
            )
    write_text(card, _card(model, detector, path, program, agreement))
    return {"file": path, "program": program, "model card": card}


def _module(path: Path) -> str:
    """The name of the program as a module that can be imported, which no digit may begin."""
    name = re.sub(r"\W", "_", path.name.partition(".")[0]) + "_torchvision"
    return f"_{name}" if name[0].isdigit() else name


def say_usage(program: Path, console: Console) -> None:
    """Print the lines that use the program."""
    console.say(f"To use it, in the folder of {program.name}:")
    console.say(usage(program.stem).rstrip())


def _refuse_others(detector: Detector) -> None:
    """Refuse detectors that torchvision has no classes for."""
    config = detector.config
    reason = ""
    if isinstance(detector, DensePoseDetector):
        reason = "it has no DensePose head"
    elif config.kind == "c4":
        reason = "its detectors have no last stage of a backbone as box head, which C4 means"
    elif config.masks and config.keypoints:
        reason = "its detectors draw masks or place keypoints, not both"
    if reason:
        raise UserError(f"This detector cannot go to torchvision: {reason}. {_ELSEWHERE}")


@torch.no_grad()
def _compare(model: FinetunedModel, program: Path) -> Agreement:
    """What our model and the one that the program builds find in built-in scenes."""
    theirs = runpy.run_path(str(program))["build"]()
    total = Agreement()
    for number, (height, width) in enumerate(_SIZES):
        scene = decode(SceneSource(count=number + 1, size=max(height, width)).read(number))
        image = scene[:, :height, :width].contiguous()
        mine, (other,) = model(image), theirs([image / 255])
        total += compare_detections(
            *(mine.boxes, mine.scores, mine.classes),
            *(other["boxes"], other["scores"], other["labels"] - 1),
        )
    return total


def _card(
    model: FinetunedModel, detector: Detector, path: Path, program: Path, agreement: Agreement
) -> str:
    config, count = detector.config, len(model.class_names)
    more = {"MaskRCNN": "masks too, ", "KeypointRCNN": "keypoints too, "}
    kind = torchvision_class(config)
    masks = "- masks are pasted into their boxes as they are; a pixel belongs to one from 0.5 on;\n"
    points = "- `keypoints_scores` are the logits of the maps; clove-ssl gives probabilities.\n"
    return _CARD.format(
        file=path.name,
        kind=kind,
        network=detector.backbone.name,
        classes=f"{count} class{'es' if count > 1 else ''} and the background",
        program=program.name,
        usage=usage(program.stem),
        names=", ".join(model.class_names),
        more=more.get(kind, ""),
        agreement=agreement,
        pooling=_POOLING[config.box.pooling],
        masks=masks if config.masks else "",
        keypoints=points if config.keypoints else "",
    )
