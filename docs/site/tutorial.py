"""Write ``docs/tutorial.md``: run every command of the tutorial, and keep what it says and draws.

Run: ``python docs/site/tutorial.py WORK``, where WORK is a new folder for data and runs; on two
free cores it takes under a quarter of an hour, and it says how long each step took. Steps that are
over are not run again, so it can be started anew after a failure, once what a step left half done
is removed. The page is written when all steps have been run, so none is without its output. Nothing
on it is typed by hand but the sentences between the commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1]
PAGE, PICTURES = DOCS / "tutorial.md", DOCS / "images" / "tutorial"
DATA = "python docs/site/tutorial_data.py"
WIDEST = 1000  # pixels of a picture
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@dataclass(frozen=True)
class Step:
    """One command, the sentences around it, and what is shown of its results."""

    title: str
    before: str
    command: str
    result: str  # a file or folder whose existence means that the command was run
    after: str = ""
    picture: str = ""  # what it drew, below WORK
    caption: str = ""
    kept: int = 40  # lines of its output, at most


STEPS = (
    Step(
        "Data",
        "You need photos without labels, as many as you have, and some with labels. A script in "
        "this repository draws both, so that you can repeat every step of this page. Use your own "
        "folders instead.",
        DATA,
        "new",
    ),
    Step(
        "Learn from photos without labels",
        "A network sees several crops of each photo and learns which parts of them show the same "
        "place. Network, crops and batch are chosen for the photos and the machine, and the "
        "command says why. The last option limits the time; it can be left out.",
        "clove pretrain --data photos --out runs/backbone --minutes 6",
        "runs/backbone/report.html",
        "The last line is the verdict: how good the features are, compared with the same network "
        "with random weights. If a few minutes on two cores were not enough, it says so; more "
        "time, a GPU, or more photos help. The run also draws what it learned. Cells with similar "
        "features have the same colour:",
        "runs/backbone/pictures/features.png",
        "Features before and after training",
    ),
    Step(
        "Look at the labels",
        "Before you train a detector, look at what it would be trained on. COCO, VOC, YOLO and "
        "LabelMe files are read as they are. Problems with them are reported here, and not an hour "
        "later.",
        "clove data toys --out seen",
        "seen",
        "",
        "seen/train.png",
        "Labelled examples",
    ),
    Step(
        "Train the detector",
        "Classes, schedule and learning rate are chosen for the data and the machine. These "
        "images are small, so `--task.side 192` keeps them from being enlarged. The last option "
        "limits the time.",
        "clove finetune detect --backbone runs/backbone --data toys --out runs/detector "
        "--task.side 192 --minutes 4",
        "runs/detector/scores.json",
        "Its report has the scores by class, and test images with ground truth and predictions "
        "side by side. After a few minutes on two cores the scores are low; with a GPU or more "
        "time, the same command reaches higher ones.",
        "runs/detector/pictures",
        "Test images: ground truth on the left, predictions on the right",
    ),
    Step(
        "Put both on one page",
        "",
        "clove report runs/backbone runs/detector --out report.html",
        "report.html",
        "The page needs no network and no other file. It begins with a verdict for each run; "
        "[the report](report.md) explains the rest.",
    ),
    Step(
        "Use it",
        "The input can be images, folders, `.tar` shards and videos. Results are written as COCO "
        "JSON, YOLO text files or one table, together with pictures of the predictions.",
        "clove predict runs/detector new --out found --format coco csv --score 0.3",
        "found",
        "",
        "found",
        "What the detector finds in images that nobody has labelled",
    ),
)

INTRODUCTION = """\
<!-- Written by docs/site/tutorial.py; change that, not this. -->
# From a folder of photos to a detector

Six commands lead from unlabelled photos to a detector that is applied to new ones. All
outputs and pictures on this page come from `python docs/site/tutorial.py WORK`, which runs the
commands in under a quarter of an hour, on two cores without a GPU.
"""

ENDING = """\
## In a program of your own

`runs/detector/export/model.safetensors` is all that is needed:

```python
from clove_ssl import load_finetuned

model = load_finetuned("runs/detector", device="cpu")
found = model.predict("new/0040.jpg")
for box, score, number in zip(found.boxes, found.scores, found.classes):
    if score > 0.3:
        print(model.class_names[number], float(score), box.tolist())
```

[Weights](weights.md) lists the formats in which a backbone or a whole detector can be exported to
other programs.

## What next

- More photos help more than anything else, and they need no labels: [data](data.md).
- Is the run healthy, and what do its curves mean? [health](health.md).
- Does pre-training help in your task? Fine-tune `--backbone random` as well, and put both on one
  page with `clove report`.
"""


def main(work: Path, steps: Sequence[Step] = STEPS) -> None:
    """Run what has not been run, then write the page."""
    work.mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(steps, start=1):
        log = _log(work, number)
        if not ((work / step.result).exists() and log.is_file()):
            _run(step, log, work)
    PICTURES.mkdir(parents=True, exist_ok=True)
    told = [_section(step, number, work) for number, step in enumerate(steps, start=1)]
    PAGE.write_text("\n".join([INTRODUCTION, *told, ENDING]), encoding="utf-8")


def _log(work: Path, number: int) -> Path:
    return work / f"step-{number}.txt"


def _section(step: Step, number: int, work: Path) -> str:
    """What the page says about a step that was run."""
    lines = [f"$ {step.command}", *_said(_log(work, number), step.kept)]
    parts = [f"## {number}. {step.title}\n"]
    parts += [f"{step.before}\n"] if step.before else []
    parts.append("\n".join(["```console", *lines, "```\n"]))
    parts += [f"{step.after}\n"] if step.after else []
    if step.picture:
        name = _keep_picture(work / step.picture, number)
        parts.append(f"![{step.caption}](images/tutorial/{name})\n")
    return "\n".join(parts)


def _run(step: Step, log: Path, work: Path) -> None:
    """Run a command, and keep what it prints."""
    words = step.command.replace("python ", f"{sys.executable} {DOCS.parent}/", 1)
    words = re.sub(r"^clove", f"{sys.executable} -m clove_ssl", words)
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    start = time.perf_counter()
    done = subprocess.run(
        words.split(), cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{step.command} failed:\n{done.stdout}{done.stderr}")
    # As a reader sees it, whose folder is another one.
    log.write_text(done.stdout.replace(f"{work}/", ""), encoding="utf-8")
    print(f"{(time.perf_counter() - start) / 60:5.1f} min  {step.command}")


def _said(log: Path, most: int) -> list[str]:
    """The lines that a command printed, as they can be shown on a page."""
    lines = _ESCAPES.sub("", log.read_text(encoding="utf-8")).rstrip().splitlines()
    return _shortened([line.rstrip() for line in lines], most)


def _shortened(lines: list[str], most: int) -> list[str]:
    """Lines with the middle left out where there are too many."""
    if len(lines) <= most:
        return lines
    return [*lines[: most // 2], "...", *lines[-(most // 2) :]]


def _keep_picture(path: Path, number: int) -> str:
    """A picture, or the first ones of a folder side by side, as a small file of the docs."""
    files = sorted(path.rglob("*.png")) + sorted(path.rglob("*.jpg")) if path.is_dir() else [path]
    images = [Image.open(file).convert("RGB") for file in files[:3]]
    if path.is_dir() and images[0].width > 700:  # a sheet by itself
        images = images[:1]
    sheet = Image.new("RGB", (sum(i.width for i in images), max(i.height for i in images)), "white")
    left = 0
    for image in images:
        sheet.paste(image, (left, 0))
        left += image.width
    if sheet.width > WIDEST:
        height = round(sheet.height * WIDEST / sheet.width)
        sheet = sheet.resize((WIDEST, height), Image.Resampling.LANCZOS)
    name = f"step-{number}.webp"
    sheet.save(PICTURES / name, quality=85)
    return name


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
