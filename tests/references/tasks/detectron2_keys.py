"""Names and shapes of a model that Detectron2 builds from a config, worked out from its lines.

Held to the names that Detectron2 0.6 itself was seen to give to three models.
"""

from __future__ import annotations

from typing import Any

Shapes = dict[str, tuple[int, ...]]
Settings = dict[str, Any]

_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def expected_shapes(settings: Settings) -> Shapes:
    """The state dict of ``build_model``, without means and anchors."""
    model = settings["MODEL"]
    is_pyramid = model["BACKBONE"]["NAME"] == "build_resnet_fpn_backbone"
    if is_pyramid:
        resnet = _resnet(model["RESNETS"], stages=4)
        shapes = {f"backbone.bottom_up.{name}": shape for name, shape in resnet.items()}
        width = model["FPN"]["OUT_CHANNELS"]
        shapes |= _pyramid(model)
        vector, region = _box_head(model["ROI_BOX_HEAD"], width, shapes), width
    else:
        resnet = _resnet(model["RESNETS"], stages=3)
        shapes = {f"backbone.{name}": shape for name, shape in resnet.items()}
        width, region = _stage_width(model["RESNETS"], 2), _stage_width(model["RESNETS"], 3)
        shapes |= {
            f"roi_heads.{name}": shape for name, shape in _stage(model["RESNETS"], 3).items()
        }
        if model["ROI_HEADS"]["NAME"] == "Res5ROIHeadsExtraNorm":
            shapes |= _norm("roi_heads.res5.norm", model["ROI_BOX_HEAD"]["NORM"], region)
        vector = region
    return shapes | _rpn(model, width) | _heads(model, vector, region)


def _layer(name: str, *shape: int) -> Shapes:
    """A layer with a bias."""
    outputs = shape[0]
    return {f"{name}.weight": shape, f"{name}.bias": (outputs,)}


def _norm(name: str, kind: str, channels: int) -> Shapes:
    parts = ("weight", "bias", "running_mean", "running_var")
    shapes: Shapes = {f"{name}.{part}": (channels,) for part in parts}
    return shapes if kind == "FrozenBN" else shapes | {f"{name}.num_batches_tracked": ()}


def _conv(name: str, outputs: int, inputs: int, kernel: int, norm: str) -> Shapes:
    """A convolution, which has either a norm or a bias."""
    weight = {f"{name}.weight": (outputs, inputs, kernel, kernel)}
    if norm:
        return weight | _norm(f"{name}.norm", norm, outputs)
    return weight | {f"{name}.bias": (outputs,)}


def _stage_width(resnet: Settings, stage: int) -> int:
    return int(resnet.get("RES2_OUT_CHANNELS", 256)) * 2**stage


def _resnet(resnet: Settings, *, stages: int) -> Shapes:
    shapes = _conv("stem.conv1", 64, 3, 7, resnet["NORM"])
    for stage in range(stages):
        shapes |= _stage(resnet, stage)
    return shapes


def _stage(resnet: Settings, stage: int) -> Shapes:
    norm, width = resnet["NORM"], _stage_width(resnet, stage)
    groups = resnet.get("NUM_GROUPS", 1)
    narrow = groups * resnet.get("WIDTH_PER_GROUP", 64) * 2**stage
    shapes: Shapes = {}
    inputs = _stage_width(resnet, stage - 1) if stage else 64
    for block in range(_BLOCKS[resnet["DEPTH"]][stage]):
        name = f"res{stage + 2}.{block}"
        if inputs != width:
            shapes |= _conv(f"{name}.shortcut", width, inputs, 1, norm)
        if resnet["DEPTH"] < 50:
            shapes |= _conv(f"{name}.conv1", width, inputs, 3, norm)
            shapes |= _conv(f"{name}.conv2", width, width, 3, norm)
        else:
            shapes |= _conv(f"{name}.conv1", narrow, inputs, 1, norm)
            shapes |= _conv(f"{name}.conv2", narrow, narrow // groups, 3, norm)
            shapes |= _conv(f"{name}.conv3", width, narrow, 1, norm)
        inputs = width
    return shapes


def _pyramid(model: Settings) -> Shapes:
    fpn = model["FPN"]
    shapes: Shapes = {}
    for level in range(4):
        inputs, width = _stage_width(model["RESNETS"], level), fpn["OUT_CHANNELS"]
        shapes |= _conv(f"backbone.fpn_lateral{level + 2}", width, inputs, 1, fpn["NORM"])
        shapes |= _conv(f"backbone.fpn_output{level + 2}", width, width, 3, fpn["NORM"])
    return shapes


def _rpn(model: Settings, width: int) -> Shapes:
    anchors = model["ANCHOR_GENERATOR"]
    count = len(anchors["SIZES"][0]) * len(anchors["ASPECT_RATIOS"][0])
    head = "proposal_generator.rpn_head"
    return (
        _layer(f"{head}.conv", width, width, 3, 3)
        | _layer(f"{head}.objectness_logits", count, width, 1, 1)
        | _layer(f"{head}.anchor_deltas", 4 * count, width, 1, 1)
    )


def _box_head(head: Settings, width: int, shapes: Shapes) -> int:
    """Add the box head to ``shapes``, and give the length of its vector."""
    for number in range(head["NUM_CONV"]):
        name = f"roi_heads.box_head.conv{number + 1}"
        shapes |= _conv(name, head["CONV_DIM"], width, 3, head["NORM"])
        width = head["CONV_DIM"]
    length = width * head["POOLER_RESOLUTION"] ** 2
    for number in range(head["NUM_FC"]):
        shapes |= _layer(f"roi_heads.box_head.fc{number + 1}", head["FC_DIM"], length)
        length = head["FC_DIM"]
    return length


def _heads(model: Settings, vector: int, region: int) -> Shapes:
    classes = model["ROI_HEADS"]["NUM_CLASSES"]
    shapes = _layer("roi_heads.box_predictor.cls_score", classes + 1, vector)
    shapes |= _layer("roi_heads.box_predictor.bbox_pred", 4 * classes, vector)
    if model["MASK_ON"]:
        mask, inputs = model["ROI_MASK_HEAD"], region
        for number in range(mask["NUM_CONV"]):
            name = f"roi_heads.mask_head.mask_fcn{number + 1}"
            shapes |= _conv(name, mask["CONV_DIM"], inputs, 3, mask["NORM"])
            inputs = mask["CONV_DIM"]
        shapes["roi_heads.mask_head.deconv.weight"] = (inputs, mask["CONV_DIM"], 2, 2)
        shapes["roi_heads.mask_head.deconv.bias"] = (mask["CONV_DIM"],)
        shapes |= _layer("roi_heads.mask_head.predictor", classes, mask["CONV_DIM"], 1, 1)
    if model["KEYPOINT_ON"]:
        points, inputs = model["ROI_KEYPOINT_HEAD"], region
        for number, width in enumerate(points["CONV_DIMS"]):
            name = f"roi_heads.keypoint_head.conv_fcn{number + 1}"
            shapes |= _layer(name, width, inputs, 3, 3)
            inputs = width
        count = points["NUM_KEYPOINTS"]
        shapes["roi_heads.keypoint_head.score_lowres.weight"] = (inputs, count, 4, 4)
        shapes["roi_heads.keypoint_head.score_lowres.bias"] = (count,)
    return shapes
