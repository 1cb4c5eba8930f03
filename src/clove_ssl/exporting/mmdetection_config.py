"""The complete model of MMDetection for one of our detectors with a pyramid."""

from __future__ import annotations

from typing import Any

from clove_ssl.config.detection import DetectorConfig
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD
from clove_ssl.weights.export.usage import mmdetection_resnet

_STRIDES = [4, 8, 16, 32, 64]
_LEAST_OVERLAP = 1e-6
"""An anchor that overlaps an object most becomes foreground however little that is."""


def mmdetection_config(
    task: DetectionConfig, network: str, *, channels: list[int], classes: int, weights: str
) -> dict[str, Any]:
    """The config of the detector of ``task`` around one of torchvision's ResNets."""
    detector = task.detector
    return {
        "default_scope": "mmdet",
        "model": {
            "type": "MaskRCNN" if detector.masks else "FasterRCNN",
            "data_preprocessor": {
                "type": "DetDataPreprocessor",
                "mean": list(PIXEL_MEAN),
                "std": list(PIXEL_STD),
                "bgr_to_rgb": True,
                "pad_mask": True,
                "pad_size_divisor": detector.size_multiple,
            },
            "backbone": _backbone(detector, network),
            "neck": {
                "type": "FPN",
                "in_channels": channels,
                "out_channels": detector.pyramid_width,
                "num_outs": len(_STRIDES),
                "norm_cfg": _norm(detector.neck_norm),
            },
            "rpn_head": _rpn_head(detector),
            "roi_head": _roi_head(detector, classes),
            "train_cfg": _training(detector),
            "test_cfg": _testing(detector),
        },
        "load_from": weights,
    }


def _norm(kind: str) -> dict[str, Any] | None:
    if kind == "none":
        return None
    return {"type": "SyncBN" if kind == "batch" else "BN", "requires_grad": kind == "batch"}


def _backbone(detector: DetectorConfig, network: str) -> dict[str, Any]:
    return {
        **mmdetection_resnet(network),
        "num_stages": 4,
        "out_indices": (0, 1, 2, 3),
        "frozen_stages": detector.frozen_stages - 1,  # there the stem is stage 0
        "norm_cfg": _norm(detector.backbone_norm),
        "norm_eval": detector.backbone_norm == "frozen",
    }


def _rpn_head(detector: DetectorConfig) -> dict[str, Any]:
    proposals = detector.proposals
    return {
        "type": "RPNHead",
        "in_channels": detector.pyramid_width,
        "feat_channels": detector.pyramid_width,
        "anchor_generator": {
            "type": "AnchorGenerator",
            "base_sizes": list(proposals.anchor_sizes),
            "scales": [1.0],
            "ratios": list(proposals.anchor_ratios),
            "strides": _STRIDES,
        },
        "bbox_coder": _coder(1.0, 1.0),
        "loss_cls": {"type": "CrossEntropyLoss", "use_sigmoid": True, "loss_weight": 1.0},
        "loss_bbox": {"type": "L1Loss", "loss_weight": 1.0},
    }


def _roi_head(detector: DetectorConfig, classes: int) -> dict[str, Any]:
    box = detector.box
    head: dict[str, Any] = {
        "type": "StandardRoIHead",
        "bbox_roi_extractor": _extractor(detector, 7),
        "bbox_head": {
            "type": "ConvFCBBoxHead",
            "num_shared_convs": box.convs,
            "num_shared_fcs": box.fcs,
            "in_channels": detector.pyramid_width,
            "conv_out_channels": box.conv_width,
            "fc_out_channels": box.fc_width,
            "roi_feat_size": 7,
            "num_classes": classes,
            "bbox_coder": _coder(0.1, 0.2),
            "reg_class_agnostic": False,
            "norm_cfg": _norm(detector.head_norm),
            "loss_cls": {"type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": 1.0},
            "loss_bbox": _box_loss(box.loss_beta),
        },
    }
    if detector.masks:
        head["mask_roi_extractor"] = _extractor(detector, 14)
        head["mask_head"] = {
            "type": "FCNMaskHead",
            "num_convs": detector.mask.convs,
            "in_channels": detector.pyramid_width,
            "conv_out_channels": detector.mask.width,
            "num_classes": classes,
            "norm_cfg": _norm(detector.head_norm),
            "loss_mask": {"type": "CrossEntropyLoss", "use_mask": True, "loss_weight": 1.0},
        }
    return head


def _box_loss(beta: float) -> dict[str, Any]:
    if beta == 0:
        return {"type": "L1Loss", "loss_weight": 1.0}
    return {"type": "SmoothL1Loss", "beta": beta, "loss_weight": 1.0}


def _coder(centre: float, side: float) -> dict[str, Any]:
    stds = [centre, centre, side, side]
    return {"type": "DeltaXYWHBBoxCoder", "target_means": [0.0] * 4, "target_stds": stds}


def _extractor(detector: DetectorConfig, side: int) -> dict[str, Any]:
    aligned = detector.box.pooling == "aligned"
    samples = 0 if aligned else 2
    return {
        "type": "SingleRoIExtractor",
        "roi_layer": {
            "type": "RoIAlign",
            "output_size": side,
            "sampling_ratio": samples,
            "aligned": aligned,
        },
        "out_channels": detector.pyramid_width,
        "featmap_strides": _STRIDES[:-1],
    }


def _training(detector: DetectorConfig) -> dict[str, Any]:
    proposals, box = detector.proposals, detector.box
    return {
        "rpn": {
            "assigner": _assigner(0.7, 0.3, rescue=True),
            "sampler": _sampler(proposals.anchors_per_image, 0.5, add_truth=False),
            "allowed_border": -1,
            "pos_weight": -1,
            "debug": False,
        },
        "rpn_proposal": _proposals(
            proposals.train_before_nms, proposals.train_after_nms, proposals.nms_overlap
        ),
        "rcnn": {
            "assigner": _assigner(0.5, 0.5, rescue=False),
            "sampler": _sampler(box.regions_per_image, box.foreground_share, add_truth=True),
            "mask_size": 28,
            "pos_weight": -1,
            "debug": False,
        },
    }


def _assigner(foreground: float, background: float, *, rescue: bool) -> dict[str, Any]:
    return {
        "type": "MaxIoUAssigner",
        "pos_iou_thr": foreground,
        "neg_iou_thr": background,
        "min_pos_iou": _LEAST_OVERLAP if rescue else foreground,
        "match_low_quality": rescue,
        "ignore_iof_thr": -1,
    }


def _sampler(count: int, share: float, *, add_truth: bool) -> dict[str, Any]:
    return {
        "type": "RandomSampler",
        "num": count,
        "pos_fraction": share,
        "neg_pos_ub": -1,
        "add_gt_as_proposals": add_truth,
    }


def _proposals(before: int, after: int, overlap: float) -> dict[str, Any]:
    return {
        "nms_pre": before,
        "max_per_img": after,
        "nms": {"type": "nms", "iou_threshold": overlap},
        "min_bbox_size": 0,
    }


def _testing(detector: DetectorConfig) -> dict[str, Any]:
    proposals, read_out = detector.proposals, detector.read_out
    return {
        "rpn": _proposals(
            proposals.test_before_nms, proposals.test_after_nms, proposals.nms_overlap
        ),
        "rcnn": {
            "score_thr": read_out.score_above,
            "nms": {"type": "nms", "iou_threshold": read_out.nms_overlap},
            "max_per_img": read_out.detections,
            "mask_thr_binary": 0.5,
        },
    }
