"""Short programs that run an ONNX file of ours with onnxruntime, NumPy and Pillow alone."""

from __future__ import annotations

from collections.abc import Mapping

RESIZING = """\
{indent}low, wanted, longest = min(photo.size), {short_side}, {longest}
{indent}exact = [wanted if side == low else wanted / low * side for side in photo.size]
{indent}limit = min(1, longest / max(exact))
{indent}size = [max(1, int(limit * side + 0.5)) for side in exact]
"""
"""The ``size`` that detectors see of a ``photo``, to the pixel: in another order of operations some
photos, many of those that are twice as wide as high among them, would be rounded another way."""

_OPENING = """\
photo = ImageOps.exif_transpose(Image.open(sys.argv[1]))
if photo.mode[0] == "I":  # grey with 16 bits, of which Pillow would cut off the upper ones
    photo = Image.fromarray((np.asarray(photo) >> 8).astype(np.uint8))
if photo.has_transparency_data:  # as if it lay on a white page
    layers, photo = photo.convert("RGBA"), Image.new("RGB", photo.size, "white")
    photo.paste(layers, mask=layers)
photo = photo.convert("RGB")
"""


def detector_script(file: str, settings: Mapping[str, int]) -> str:
    """A program that prints the objects of a photo."""
    resizing = RESIZING.format(indent="", **settings)
    return f"""\
import json, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps

{_OPENING}{resizing}seen = photo.resize(size, Image.Resampling.BILINEAR)
pixels = np.asarray(seen).transpose(2, 0, 1)[None]
session = onnxruntime.InferenceSession(sys.argv[2] if len(sys.argv) > 2 else "{file}")
names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
inputs = {{"images": pixels, "sizes": np.array([pixels.shape[2:]])}}
boxes, scores, classes, counts, *heads = session.run(None, inputs)
boxes = boxes[0] * np.tile(np.divide(photo.size, seen.size), 2)  # back to the pixels of the photo
for box, score, number in list(zip(boxes, scores[0], classes[0]))[: counts[0]]:
    print(names[number], f"{{score:.4f}}", *box.round(2))
"""


def segmenter_script(file: str, settings: Mapping[str, int]) -> str:
    """A program that prints the classes of a photo and their shares."""
    return f"""\
import json, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps

{_OPENING}scale = min(1, {settings["longest"]} / max(photo.size))
seen = photo.resize([max(1, round(scale * side)) for side in photo.size], Image.Resampling.BILINEAR)
session = onnxruntime.InferenceSession(sys.argv[2] if len(sys.argv) > 2 else "{file}")
names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
(classes,) = session.run(None, {{"images": np.asarray(seen).transpose(2, 0, 1)[None]}})
for number, count in zip(*np.unique(classes, return_counts=True)):
    print(names[number], f"{{count / classes.size:.4f}}")
"""
