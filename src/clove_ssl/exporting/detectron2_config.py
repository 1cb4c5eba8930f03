"""The complete config of Detectron2 for one of our detectors.

Every line that decides what is built, learned or found is written, also where it is the default,
so that the file means the same in later versions.
"""

from __future__ import annotations

from typing import Any

from clove_ssl.config.detection import DetectorConfig
from clove_ssl.tasks.densepose.config import COCODensePoseConfig
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD
from clove_ssl.weights.export.usage import resnet_settings

EXTRA_NORM = "Res5ROIHeadsExtraNorm"

_STAGES = ["res2", "res3", "res4", "res5"]
_LEVELS = ["p2", "p3", "p4", "p5", "p6"]
_NORMS = {"batch": "SyncBN", "frozen": "FrozenBN", "none": ""}
_POOLING = {"aligned": ("ROIAlignV2", 0), "legacy": ("ROIAlign", 2)}

EXTRA_NORM_MODULE = f'''"""Detectron2's C4 heads with a norm behind their last stage.

Import this file before the model is built; MODEL.ROI_BOX_HEAD.NORM says which norm it is.
"""

from detectron2.layers import get_norm
from detectron2.modeling.roi_heads import ROI_HEADS_REGISTRY, Res5ROIHeads


@ROI_HEADS_REGISTRY.register()
class {EXTRA_NORM}(Res5ROIHeads):
    """The last stage of the backbone and a norm, run on every region."""

    @classmethod
    def _build_res5_block(cls, cfg):
        stage, channels = super()._build_res5_block(cfg)
        stage.add_module("norm", get_norm(cfg.MODEL.ROI_BOX_HEAD.NORM, channels))
        return stage, channels
'''


def detectron2_config(
    task: DetectionConfig, network: str, *, classes: int, keypoints: int, weights: str
) -> dict[str, Any]:
    """The config of the detector of ``task`` around one of torchvision's ResNets."""
    detector = task.detector
    return {
        "VERSION": 2,
        "MODEL": {
            "META_ARCHITECTURE": "GeneralizedRCNN",
            "WEIGHTS": weights,
            "PIXEL_MEAN": list(PIXEL_MEAN),
            "PIXEL_STD": list(PIXEL_STD),
            "MASK_ON": detector.masks,
            "KEYPOINT_ON": detector.keypoints,
            **_backbone(detector, network),
            **_proposals(detector),
            **_heads(detector, _name_of_heads(task), classes=classes, keypoints=keypoints),
            **_surface(task),
        },
        "INPUT": {
            "FORMAT": "RGB",
            "MIN_SIZE_TRAIN": list(task.train_sides),
            "MIN_SIZE_TRAIN_SAMPLING": "choice",
            "MAX_SIZE_TRAIN": task.longest,
            "MIN_SIZE_TEST": task.test_side,
            "MAX_SIZE_TEST": task.longest,
            "MASK_FORMAT": "polygon",
        },
        "TEST": {"DETECTIONS_PER_IMAGE": detector.read_out.detections},
    }


def needs_extra_norm(detector: DetectorConfig) -> bool:
    """Whether the heads are of a kind that Detectron2 does not bring."""
    return detector.kind == "c4" and detector.neck_norm == "batch"


def _name_of_heads(task: DetectionConfig) -> str:
    if isinstance(task, COCODensePoseConfig):
        return "DensePoseROIHeads"
    if task.detector.kind == "fpn":
        return "StandardROIHeads"
    return EXTRA_NORM if needs_extra_norm(task.detector) else "Res5ROIHeads"


def _backbone(detector: DetectorConfig, network: str) -> dict[str, Any]:
    is_pyramid = detector.kind == "fpn"
    resnet = {
        **resnet_settings(network),
        "STRIDE_IN_1X1": False,
        "NORM": _NORMS[detector.backbone_norm],
        "OUT_FEATURES": _STAGES if is_pyramid else ["res4"],
    }
    name = "build_resnet_fpn_backbone" if is_pyramid else "build_resnet_backbone"
    settings: dict[str, Any] = {
        "BACKBONE": {"NAME": name, "FREEZE_AT": detector.frozen_stages},
        "RESNETS": resnet,
    }
    if is_pyramid:
        settings["FPN"] = {
            "IN_FEATURES": _STAGES,
            "OUT_CHANNELS": detector.pyramid_width,
            "NORM": _NORMS[detector.neck_norm],
        }
    return settings


def _proposals(detector: DetectorConfig) -> dict[str, Any]:
    proposals, is_pyramid = detector.proposals, detector.kind == "fpn"
    sizes = list(proposals.anchor_sizes)
    return {
        "PROPOSAL_GENERATOR": {"NAME": "RPN"},
        "ANCHOR_GENERATOR": {
            "SIZES": [[size] for size in sizes] if is_pyramid else [sizes],
            "ASPECT_RATIOS": [list(proposals.anchor_ratios)],
            "OFFSET": 0.0,
        },
        "RPN": {
            "IN_FEATURES": _LEVELS if is_pyramid else ["res4"],
            "BATCH_SIZE_PER_IMAGE": proposals.anchors_per_image,
            "PRE_NMS_TOPK_TRAIN": proposals.train_before_nms,
            "POST_NMS_TOPK_TRAIN": proposals.train_after_nms,
            "PRE_NMS_TOPK_TEST": proposals.test_before_nms,
            "POST_NMS_TOPK_TEST": proposals.test_after_nms,
            "NMS_THRESH": proposals.nms_overlap,
            "SMOOTH_L1_BETA": 0.0,
        },
    }


def _heads(detector: DetectorConfig, heads: str, *, classes: int, keypoints: int) -> dict[str, Any]:
    is_pyramid = detector.kind == "fpn"
    settings: dict[str, Any] = {
        "ROI_HEADS": {
            "NAME": heads,
            "IN_FEATURES": _LEVELS[:4] if is_pyramid else ["res4"],
            "NUM_CLASSES": classes,
            "BATCH_SIZE_PER_IMAGE": detector.box.regions_per_image,
            "POSITIVE_FRACTION": detector.box.foreground_share,
            "SCORE_THRESH_TEST": detector.read_out.score_above,
            "NMS_THRESH_TEST": detector.read_out.nms_overlap,
        },
        "ROI_BOX_HEAD": _box_head(detector),
    }
    pooled = _pooled(detector, 14)
    if detector.masks:
        settings["ROI_MASK_HEAD"] = {
            "NAME": "MaskRCNNConvUpsampleHead",
            "NUM_CONV": detector.mask.convs,
            "CONV_DIM": detector.mask.width,
            "NORM": _NORMS[detector.head_norm],
            **pooled,
        }
    if detector.keypoints:
        settings["ROI_KEYPOINT_HEAD"] = {
            "NAME": "KRCNNConvDeconvUpsampleHead",
            "CONV_DIMS": [detector.keypoint.width] * detector.keypoint.convs,
            "NUM_KEYPOINTS": keypoints,
            **pooled,
        }
    return settings


def _box_head(detector: DetectorConfig) -> dict[str, Any]:
    settings = {"SMOOTH_L1_BETA": detector.box.loss_beta}
    if detector.kind == "c4":
        return {**settings, "NORM": _NORMS[detector.neck_norm], **_pooled(detector, 14)}
    return {
        "NAME": "FastRCNNConvFCHead",
        "NUM_CONV": detector.box.convs,
        "CONV_DIM": detector.box.conv_width,
        "NUM_FC": detector.box.fcs,
        "FC_DIM": detector.box.fc_width,
        "NORM": _NORMS[detector.head_norm],
        **settings,
        **_pooled(detector, 7),
    }


def _pooled(detector: DetectorConfig, side: int) -> dict[str, Any]:
    kind, samples = _POOLING[detector.box.pooling]
    return {
        "POOLER_RESOLUTION": side,
        "POOLER_SAMPLING_RATIO": samples,
        "POOLER_TYPE": kind,
    }


def _surface(task: DetectionConfig) -> dict[str, Any]:
    """The DensePose branch, for which Detectron2's DensePose project must be imported."""
    if not isinstance(task, COCODensePoseConfig):
        return {}
    head = task.surface_head
    return {
        "DENSEPOSE_ON": True,
        "ROI_DENSEPOSE_HEAD": {
            "NAME": "DensePoseV1ConvXHead",
            "NUM_STACKED_CONVS": head.convs,
            "CONV_HEAD_DIM": head.width,
            "DECODER_ON": True,
            "DECODER_CONV_DIMS": head.decoder_width,
            "DECODER_NUM_CLASSES": head.decoder_width,
            "NUM_COARSE_SEGM_CHANNELS": 2,
            "POOLER_TYPE": "ROIAlign",
            "POOLER_SAMPLING_RATIO": 2,
            "POOLER_RESOLUTION": head.pooled_side,
            "HEATMAP_SIZE": 4 * head.pooled_side,
            "FG_IOU_THRESHOLD": head.overlap_above,
            "INDEX_WEIGHTS": head.person_weight,
            "PART_WEIGHTS": head.part_weight,
            "POINT_REGRESSION_WEIGHTS": head.surface_weight,
        },
    }
