"""Make the data of the tutorial: photos without labels, labelled ones, and new ones.

Run: ``python docs/site/tutorial_data.py``. It writes three folders here: ``photos/`` with images
alone, ``toys/`` with images and boxes in COCO's layout, and ``new/`` with images that nothing was
trained on. The pictures are drawn by clove-ssl itself, so anybody may use them for anything.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from clove_ssl.data.scenes import SceneSource
from clove_ssl.tasks.detection.scenes import write_coco_scenes

PHOTOS, TRAIN, TEST, NEW = 400, 120, 40, 6
SIDE = 160


def main() -> None:
    """Write all three folders."""
    scenes = SceneSource(TRAIN + PHOTOS, SIDE, "train")
    _write(Path("photos"), scenes, range(TRAIN, TRAIN + PHOTOS))
    write_coco_scenes("toys", "train", count=TRAIN, size=SIDE)
    write_coco_scenes("toys", "test", count=TEST, size=SIDE)
    _write(Path("new"), SceneSource(TEST + NEW, SIDE, "test"), range(TEST, TEST + NEW))
    print(f"photos/: {PHOTOS} images without labels")
    print(f"toys/: {TRAIN} images to train on and {TEST} to test on, with boxes")
    print(f"new/: {NEW} images that nobody has labelled")


def _write(folder: Path, scenes: SceneSource, numbers: range) -> None:
    folder.mkdir()
    for number in numbers:
        image = Image.fromarray(scenes.scene(number).image)
        image.save(folder / f"{number:04d}.jpg", quality=92)


if __name__ == "__main__":
    main()
