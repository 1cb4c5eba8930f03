"""The program that builds one of our detectors from torchvision's parts, as text.

It needs torch, torchvision and Pillow alone. torchvision's own classes get other settings where
that is enough, and a few lines of their own where torchvision has no setting: anchors that are not
rounded, regions that are not shifted by half a cell, images resized by Pillow, masks pasted as
they are.
"""

from __future__ import annotations

from pprint import pformat

from clove_ssl.backbones.build import STAGES
from clove_ssl.config.detection import DetectorConfig
from clove_ssl.exporting.scripts import RESIZING
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.features import BOX_SIDE, HEAD_SIDE
from clove_ssl.tasks.rcnn.torchvision_names import is_two_layers

_HEAD = '''\
"""Builds torchvision's {kind} with the weights that lie beside this file."""

from pathlib import Path

import torch
from PIL import Image
from torch.nn.functional import {grid_sample}pad
from torchvision.models import get_model
from torchvision.models.detection import {kind}
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import {box_classes}
{imports}from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import {frozen}MultiScaleRoIAlign, roi_align
from torchvision.ops.poolers import LevelMapper
from torchvision.transforms.functional import to_pil_image, to_tensor

WEIGHTS = Path(__file__).with_name({file!r})
CLASSES = {classes}
{keypoints}'''

_PARTS = '''

class Anchors(AnchorGenerator):
    """Not rounded, and with the true strides."""

    def generate_anchors(self, sizes, ratios, dtype=torch.float32, device="cpu"):
        sides = [((size * size / ratio) ** 0.5, ratio) for size in sizes for ratio in ratios]
        halves = torch.tensor([[side / 2, side * ratio / 2] for side, ratio in sides])
        return torch.cat([-halves, halves], dim=1).to(dtype=dtype, device=device)

    def grid_anchors(self, grids, strides):
        return super().grid_anchors(grids, [[stride, stride] for stride in (4, 8, 16, 32, 64)])


class Regions(MultiScaleRoIAlign):
    """Pooled {pooling}, with the true strides."""

    def forward(self, maps, boxes, sizes):
        levels = LevelMapper(2, 5)(boxes)
        rows = torch.cat([pad(each, (1, 0), value=n) for n, each in enumerate(boxes)])
        pooled = rows.new_zeros(len(rows), maps["0"].shape[1], *self.output_size)
        for n, name in enumerate(self.featmap_names):
            mine, scale = levels == n, 0.25 / 2**n
            options = {{"sampling_ratio": self.sampling_ratio, "aligned": {aligned}}}
            pooled[mine] = roi_align(maps[name], rows[mine], self.output_size, scale, **options)
        return pooled


class Images(GeneralizedRCNNTransform):
    """Resized by Pillow as in training{and_masks}."""

    def forward(self, images, targets=None):
        if not self.training:
            images = [self.shrink(to_pil_image(image)).to(image.device) for image in images]
        return super().forward(images, targets)

    def shrink(self, photo):
{resizing}        return to_tensor(photo.resize(size, Image.Resampling.BILINEAR))
'''

_PASTING = """
    def postprocess(self, result, seen, originals):
        masks = [each.pop("masks", None) for each in result]
        result = super().postprocess(result, seen, originals)
        for each, mask, original in zip(result, masks, originals):
            if mask is not None:
                pasted = [self.paste(*one, *original) for one in zip(mask, each["boxes"])]
                each["masks"] = torch.stack(pasted) if pasted else mask.new_zeros(0, 1, *original)
        return result

    def paste(self, mask, box, height, width):
        x = (torch.arange(width, device=box.device) + 0.5 - box[0]) / (box[2] - box[0]) * 2 - 1
        y = (torch.arange(height, device=box.device) + 0.5 - box[1]) / (box[3] - box[1]) * 2 - 1
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
        return grid_sample(mask[None], grid[None], align_corners=False)[0]
"""

_BUILD = '''

def build(weights=WEIGHTS):
    """The detector in eval mode; it takes a list of RGB images (3, H, W) from 0 to 1."""
    network = get_model("{network}", weights=None, norm_layer={norm})
    layers = {{f"layer{{n + 1}}": str(n) for n in range(4)}}
    pyramid = {{"out_channels": {width}, "norm_layer": {neck_norm}}}
    levels = ["0", "1", "2", "3"]
    sizes = {sizes}
    model = {kind}(
        BackboneWithFPN(network, layers, {channels}, **pyramid),
        min_size={side},
        max_size={longest},
        rpn_anchor_generator=Anchors(sizes, ({ratios},) * 5),
        rpn_pre_nms_top_n_train={train_before},
        rpn_pre_nms_top_n_test={test_before},
        rpn_post_nms_top_n_train={train_after},
        rpn_post_nms_top_n_test={test_after},
        rpn_nms_thresh={proposal_overlap},
        rpn_batch_size_per_image={anchors},
        box_roi_pool=Regions(levels, {box_side}, {sampling}),
        box_head={box_head},
        box_predictor=FastRCNNPredictor({vector}, len(CLASSES)),
        box_score_thresh={score},
        box_nms_thresh={overlap},
        box_detections_per_img={detections},
        box_batch_size_per_image={regions},
        box_positive_fraction={foreground},
{heads}    )
    old = model.transform
    model.transform = Images({side}, {longest}, old.image_mean, old.image_std)
    model.rpn.min_size = 1e-9  # thin proposals count
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True), strict=True)
    return model.eval()
'''

_MASK_HEADS = """\
        mask_roi_pool=Regions(levels, {side}, {sampling}),
        mask_head=MaskRCNNHeads({width}, {layers}, 1, norm_layer={norm}),
        mask_predictor=MaskRCNNPredictor({last}, {own}, len(CLASSES)),
"""
_KEYPOINT_HEADS = """\
        keypoint_roi_pool=Regions(levels, {side}, {sampling}),
        keypoint_head=KeypointRCNNHeads({width}, {layers}),
        keypoint_predictor=KeypointRCNNPredictor({last}, len(KEYPOINTS)),
"""
_IMPORTS = {
    "MaskRCNN": "from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, "
    "MaskRCNNPredictor\n",
    "KeypointRCNN": "from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, "
    "KeypointRCNNPredictor\n",
    "FasterRCNN": "",
}
_NORMS = {"batch": "torch.nn.BatchNorm2d", "frozen": "FrozenBatchNorm2d", "none": "None"}
_POOLING = {"aligned": (0, True), "legacy": (2, False)}  # samples per bin, aligned


def torchvision_class(config: DetectorConfig) -> str:
    """The class of torchvision that a detector becomes."""
    if config.keypoints:
        return "KeypointRCNN"
    return "MaskRCNN" if config.masks else "FasterRCNN"


def torchvision_program(
    task: DetectionConfig,
    detector: Detector,
    *,
    classes: tuple[str, ...],
    keypoints: tuple[str, ...],
    file: str,
) -> str:
    """The program whose ``build()`` gives the detector with the weights of ``file``."""
    config, kind = detector.config, torchvision_class(detector.config)
    box_class = "TwoMLPHead" if is_two_layers(config.box) else "FastRCNNConvFCHead"
    head = _HEAD.format(
        kind=kind,
        file=file,
        box_classes=", ".join(sorted(["FastRCNNPredictor", box_class])),
        imports=_IMPORTS[kind],
        classes=pformat(["background", *classes], width=90, compact=True),
        keypoints=f"KEYPOINTS = {pformat([*keypoints], width=90)}\n" if config.keypoints else "",
        frozen="FrozenBatchNorm2d, " if config.backbone_norm == "frozen" else "",
        grid_sample="grid_sample, " if config.masks else "",
    )
    parts = _PARTS.format(
        and_masks=", and masks pasted into boxes as they are" if config.masks else "",
        pooling="without a shift" if config.box.pooling == "aligned" else "as torchvision does",
        aligned=_POOLING[config.box.pooling][1],
        resizing=RESIZING.format(short_side=task.test_side, longest=task.longest, indent=" " * 8),
    )
    return head + parts + (_PASTING if config.masks else "") + _build(task, detector, kind)


def _build(task: DetectionConfig, detector: Detector, kind: str) -> str:
    config, proposals = detector.config, detector.config.proposals
    channels = detector.backbone.channels
    return _BUILD.format(
        kind=kind,
        network=detector.backbone.name,
        norm=_NORMS[config.backbone_norm],
        width=config.pyramid_width,
        neck_norm=_NORMS[config.neck_norm],
        channels=[channels[stage] for stage in STAGES],
        side=task.test_side,
        longest=task.longest,
        sizes=tuple((size,) for size in proposals.anchor_sizes),
        ratios=proposals.anchor_ratios,
        train_before=proposals.train_before_nms,
        test_before=proposals.test_before_nms,
        train_after=proposals.train_after_nms,
        test_after=proposals.test_after_nms,
        proposal_overlap=proposals.nms_overlap,
        anchors=proposals.anchors_per_image,
        box_side=BOX_SIDE,
        sampling=_POOLING[config.box.pooling][0],
        box_head=_box_head(config),
        vector=detector.features.vector_length,
        score=config.read_out.score_above,
        overlap=config.read_out.nms_overlap,
        detections=config.read_out.detections,
        regions=config.box.regions_per_image,
        foreground=config.box.foreground_share,
        heads=_heads(config),
    )


def _box_head(config: DetectorConfig) -> str:
    box, width = config.box, config.pyramid_width
    if is_two_layers(box):
        return f"TwoMLPHead({width * BOX_SIDE**2}, {box.fc_width})"
    convs, linear = [box.conv_width] * box.convs, [box.fc_width] * box.fcs
    region = (width, BOX_SIDE, BOX_SIDE)
    return f"FastRCNNConvFCHead({region}, {convs}, {linear}, norm_layer={_NORMS[config.head_norm]})"


def _heads(config: DetectorConfig) -> str:
    """The lines for masks or keypoints."""
    if not (config.masks or config.keypoints):
        return ""
    head = config.keypoint if config.keypoints else config.mask
    return (_KEYPOINT_HEADS if config.keypoints else _MASK_HEADS).format(
        side=HEAD_SIDE,
        sampling=_POOLING[config.box.pooling][0],
        width=config.pyramid_width,
        layers=[head.width] * head.convs,
        last=head.width if head.convs else config.pyramid_width,
        own=head.width,
        norm=_NORMS[config.head_norm],
    )


def usage(module: str) -> str:
    """Ten lines that print the objects of a photo."""
    return f"""\
import torch
from PIL import Image, ImageOps
from torchvision.transforms.functional import to_tensor
from {module} import CLASSES, build

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
with torch.no_grad():
    (found,) = build()([to_tensor(photo)])
for box, score, label in zip(found["boxes"], found["scores"], found["labels"]):
    print(CLASSES[label], f"{{score:.4f}}", *box.round(decimals=2).tolist())
"""
