"""The result tables of the paper, as printed (Silva, Pedrini and Rivera, 2023).

Values are in percent. A table has the label that it has in the LaTeX source. ``scores`` are
the names of the scores that the same task has here; ``epochs`` are those of the paper's row.
Main results are means of five fine-tuning runs, ablations of three; no spread is printed.
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGENET_IMAGES = 1_281_167


@dataclass(frozen=True)
class PaperRow:
    """One line of a table; an entry of a study names it by its key."""

    key: str
    name: str
    epochs: int | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class PaperTable:
    """One table: a task, its scores, and a row per method or variant."""

    label: str
    title: str
    task: str
    scores: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    runs: int = 5
    """Fine-tuning runs behind a score that the authors measured themselves."""
    is_ablation: bool = False

    def row(self, keys: tuple[str, ...]) -> PaperRow | None:
        """The line that one of these keys names."""
        return next((row for row in self.rows if row.key in keys), None)


_BOX = ("box_AP", "box_AP50", "box_AP75")
_MASK = ("mask_AP", "mask_AP50", "mask_AP75")
_BOX_NAMES = ("AP bb", "AP50 bb", "AP75 bb")
_MASK_NAMES = ("AP mb", "AP50 mb", "AP75 mb")
_VOC = ("voc_AP", "voc_AP50", "voc_AP75")
_VOC_NAMES = ("AP", "AP50", "AP75")
TEST_IMAGES = {
    "coco-c4": 5000,
    "coco-fpn": 5000,
    "coco-keypoints": 5000,
    "cityscapes-fpn": 500,
    "lvis-fpn": 19_809,
    "voc-c4": 4952,
}
"""Images of the usual test sets; other numbers mean other data."""


def _row(key: str, name: str, epochs: int | None, *values: float) -> PaperRow:
    return PaperRow(key, name, epochs, values)


COCO_C4 = PaperTable(
    "tab:coco-eval-c4",
    "COCO detection and segmentation, R50-C4",
    "coco-c4",
    (*_BOX, *_MASK),
    (*_BOX_NAMES, *_MASK_NAMES),
    (
        _row("supervised", "Supervised", 100, 38.2, 58.2, 41.2, 33.3, 54.7, 35.2),
        _row("random", "Rand init", None, 26.4, 44.0, 27.8, 29.3, 46.9, 30.8),
        _row("resim", "ReSim", 200, 39.7, 59.0, 43.0, 34.6, 55.9, 37.1),
        _row("inscon", "InsCon", 200, 40.3, 60.0, 43.5, 35.1, 56.7, 37.6),
        _row("pixpro", "PixPro", 400, 40.5, 59.8, 44.0, 35.4, 56.9, 37.7),
        _row("detco", "DetCo", 200, 39.8, 59.7, 43.0, 34.7, 56.3, 36.7),
        _row("slotcon", "SlotCon", 200, 39.9, 59.8, 43.0, 34.9, 56.5, 37.3),
        _row("clove-200", "CLoVE", 200, 40.6, 60.0, 44.1, 35.4, 56.8, 37.8),
        _row("clove-400", "CLoVE", 400, 41.0, 60.3, 44.2, 35.5, 57.2, 38.1),
    ),
)
COCO_FPN = PaperTable(
    "tab:coco-eval-fpn",
    "COCO detection and segmentation, R50-FPN",
    "coco-fpn",
    (*_BOX, *_MASK),
    (*_BOX_NAMES, *_MASK_NAMES),
    (
        _row("supervised", "Supervised", 100, 38.9, 59.6, 42.7, 35.4, 56.5, 38.1),
        _row("random", "Rand init", None, 32.8, 51.0, 35.3, 28.5, 46.8, 30.4),
        _row("densecl", "DenseCL", 200, 39.4, 59.9, 42.7, 35.6, 56.7, 38.2),
        _row("resim", "ReSim", 200, 39.3, 59.7, 43.1, 35.7, 56.7, 38.1),
        _row("pixpro", "PixPro", 400, 39.8, 59.5, 43.7, 36.1, 56.5, 38.9),
        _row("setsim", "SetSim", 200, 40.2, 60.7, 43.9, 36.4, 57.7, 39.0),
        _row("vicregl", "VICRegL", 300, 37.3, 57.6, 40.7, 34.1, 54.7, 36.5),
        _row("clove-200", "CLoVE", 200, 40.8, 60.5, 45.0, 36.8, 57.6, 39.8),
        _row("clove-400", "CLoVE", 400, 41.2, 61.1, 45.0, 37.1, 58.1, 40.1),
    ),
)
CITYSCAPES = PaperTable(
    "tab:cityscapes-eval",
    "Cityscapes instance segmentation, R50-FPN",
    "cityscapes-fpn",
    ("mask_AP", "mask_AP50"),
    ("AP", "AP50"),
    (
        _row("supervised", "Supervised", 100, 26.5, 52.9),
        _row("random", "Rand init", None, 19.9, 40.7),
        _row("densecl", "DenseCL", 200, 33.1, 61.7),
        _row("pixpro", "PixPro", 400, 35.8, 63.7),
        _row("vicregl", "VICRegL", 300, 29.8, 58.5),
        _row("slotcon", "SlotCon", 200, 35.2, 63.8),
        _row("clove-200", "CLoVE", 200, 35.7, 64.1),
        _row("clove-400", "CLoVE", 400, 37.2, 65.3),
    ),
)
LVIS = PaperTable(
    "tab:lvis-eval",
    "LVIS detection and segmentation, R50-FPN",
    "lvis-fpn",
    (*_BOX, *_MASK),
    (*_BOX_NAMES, *_MASK_NAMES),
    (
        _row("supervised", "Supervised", 100, 20.2, 33.4, 21.4, 19.6, 31.2, 20.8),
        _row("random", "Rand init", None, 12.4, 21.8, 12.5, 12.1, 20.2, 12.5),
        _row("densecl", "DenseCL", 200, 20.4, 33.5, 21.4, 19.9, 31.5, 20.9),
        _row("pixpro", "PixPro", 400, 23.8, 38.2, 25.2, 23.3, 36.1, 24.7),
        _row("slotcon", "SlotCon", 200, 23.2, 37.6, 24.3, 22.9, 35.6, 24.3),
        _row("vicregl", "VICRegL", 200, 7.0, 13.4, 6.4, 7.4, 12.7, 7.3),
        _row("clove-200", "CLoVE", 200, 23.6, 37.7, 25.2, 23.3, 35.9, 24.8),
        _row("clove-400", "CLoVE", 400, 24.3, 38.8, 25.8, 23.9, 36.7, 25.3),
    ),
)
KEYPOINTS = PaperTable(
    "tab:keypoint-coco-eval",
    "COCO keypoints, R50-FPN",
    "coco-keypoints",
    ("keypoints_AP", "keypoints_AP50", "keypoints_AP75"),
    ("AP kp", "AP50 kp", "AP75 kp"),
    (
        _row("supervised", "Supervised", 100, 65.3, 87.0, 71.3),
        _row("random", "Rand init", None, 63.0, 85.1, 68.4),
        _row("densecl", "DenseCL", 200, 66.3, 87.1, 71.9),
        _row("pixpro", "PixPro", 400, 66.6, 87.2, 73.0),
        _row("resim", "ReSim", 200, 66.3, 87.2, 72.4),
        _row("setsim", "SetSim", 200, 66.7, 87.8, 72.4),
        _row("slotcon", "SlotCon", 200, 66.5, 87.5, 72.5),
        _row("clove-200", "CLoVE", 200, 66.9, 87.5, 73.2),
        _row("clove-400", "CLoVE", 400, 67.0, 87.4, 73.3),
    ),
)
VOC = PaperTable(
    "tab:voc-eval",
    "Pascal VOC detection, R50-C4",
    "voc-c4",
    _VOC,
    _VOC_NAMES,
    (
        _row("supervised", "Supervised", 100, 53.5, 81.3, 58.8),
        _row("random", "Rand init", None, 33.8, 60.2, 33.1),
        _row("densecl", "DenseCL", 200, 58.7, 82.8, 65.2),
        _row("resim", "ReSim", 200, 58.7, 83.1, 66.3),
        _row("inscon", "InsCon", 200, 59.1, 83.6, 66.6),
        _row("pixpro", "PixPro", 400, 60.0, 83.8, 67.7),
        _row("cp2", "CP2", 600, 56.9, 82.3, 63.6),
        _row("slotcon", "SlotCon", 200, 57.3, 82.9, 64.3),
        _row("setsim", "SetSim", 200, 59.1, 83.2, 66.1),
        _row("clove-200", "CLoVE", 200, 60.1, 83.7, 67.7),
        _row("clove-400", "CLoVE", 400, 59.9, 83.8, 67.8),
    ),
)
DENSEPOSE = PaperTable(
    "tab:dense-pose-coco-eval",
    "COCO dense pose, R50-FPN",
    "coco-densepose",
    ("box_AP", "segm_AP", "gps_AP", "gpsm_AP"),
    ("AP bb", "AP mb", "AP gps", "AP gpsm"),
    (
        _row("supervised", "Supervised (R50)", 100, 61.2, 67.2, 63.7, 65.3),
        _row("supervised-r101", "Supervised (R101)", 100, 62.3, 67.8, 64.5, 66.2),
        _row("densecl", "DenseCL", 200, 63.0, 67.7, 65.7, 66.7),
        _row("pixpro", "PixPro", 400, 63.1, 68.3, 66.2, 67.4),
        _row("slotcon", "SlotCon", 200, 62.8, 67.4, 65.3, 66.4),
        _row("clove-200", "CLoVE", 200, 63.2, 68.2, 66.6, 67.5),
        _row("clove-400", "CLoVE", 400, 63.2, 68.3, 66.3, 67.3),
    ),
)
LOSSES = PaperTable(
    "tab:multi-crop-loss-function",
    "Loss and multi-crop",
    "voc-c4",
    _VOC,
    _VOC_NAMES,
    (
        _row("loss-l2-two-views", "l2, two views", 50, 58.6, 82.8, 66.2),
        _row("loss-l2-multi-crop", "l2, multi-crop", 50, 58.3, 82.9, 65.3),
        _row("loss-rank-two-views", "rank, two views", 50, 58.5, 82.8, 65.6),
        _row("loss-rank-multi-crop", "rank, multi-crop", 50, 58.8, 83.3, 65.9),
    ),
    runs=3,
    is_ablation=True,
)
ATTENTION = PaperTable(
    "tab:nmhsa-vs-mhsa",
    "Plain and normalized attention",
    "voc-c4",
    _VOC,
    _VOC_NAMES,
    (
        _row("attention-plain", "MHSA", 50, 58.3, 83.1, 65.8),
        _row("attention-normalized", "NMHSA", 50, 58.7, 83.3, 65.9),
    ),
    runs=3,
    is_ablation=True,
)
NEGATIVES = PaperTable(
    "tab:negative-sampling",
    "Where negatives come from",
    "voc-c4",
    _VOC,
    _VOC_NAMES,
    (
        _row("negatives-inter", "Inter", 50, 57.4, 82.5, 63.6),
        _row("negatives-inter-avg", "Inter (avg)", 50, 57.5, 82.8, 64.7),
        _row("negatives-intra", "Intra", 50, 58.7, 83.3, 65.9),
    ),
    runs=3,
    is_ablation=True,
)
THRESHOLDS = PaperTable(
    "tab:pixel-neighborhood-threhold",  # spelled as in the source
    "The threshold T_pos",
    "voc-c4",
    ("voc_AP",),
    ("AP",),
    tuple(
        _row(f"threshold-{threshold}", f"T_pos {threshold}", 50, value)
        for threshold, value in ((0.5, 57.0), (0.6, 58.3), (0.7, 58.5), (0.8, 58.1), (0.9, 57.7))
    ),
    runs=3,
    is_ablation=True,
)
PAPER_TABLES = (
    COCO_C4,
    COCO_FPN,
    CITYSCAPES,
    LVIS,
    KEYPOINTS,
    VOC,
    DENSEPOSE,
    LOSSES,
    ATTENTION,
    NEGATIVES,
    THRESHOLDS,
)
ROW_KEYS = frozenset(row.key for table in PAPER_TABLES for row in table.rows)
"""Every row that an entry of a study may stand for."""
