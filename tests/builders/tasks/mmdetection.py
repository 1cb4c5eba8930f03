"""A detector in MMDetection itself, from the two files of an export; only where it is installed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class MMDetector:
    """The detector of a config and a checkpoint beside each other, on the CPU.

    Args:
        weights: The checkpoint; the config has the same name and ends in .py.
    """

    def __init__(self, weights: Path) -> None:
        import_module("mmdet.models")
        import_module("mmengine.registry").init_default_scope("mmdet")
        names: dict[str, Any] = {}
        exec(weights.with_suffix(".py").read_text(), names)
        config = import_module("mmengine").ConfigDict(_with_plain_norms(names["model"]))
        self.model: Any = import_module("mmdet.registry").MODELS.build(config)
        state = torch.load(weights, weights_only=True)["state_dict"]
        self.model.load_state_dict(state, strict=True)
        self.model.eval()

    @torch.no_grad()
    def maps(self, image: Tensor) -> tuple[Tensor, ...]:
        """The five maps of the pyramid for an image (3, H, W) in RGB."""
        maps: tuple[Tensor, ...] = self.model.extract_feat(self._prepared(image)["inputs"])
        return maps

    @torch.no_grad()
    def detections(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes, scores and classes, the best first; boxes without area, which ours drop, go."""
        data = self._prepared(image)
        (sample,) = self.model.predict(data["inputs"], data["data_samples"], rescale=False)
        found = sample.pred_instances
        found = found[(found.bboxes[:, 2:] > found.bboxes[:, :2]).all(dim=1)]
        return found.bboxes, found.scores, found.labels

    def _prepared(self, image: Tensor) -> dict[str, Any]:
        sample = import_module("mmdet.structures").DetDataSample()
        height, width = image.shape[1:]
        facts = {"img_shape": (height, width), "ori_shape": (height, width)}
        sample.set_metainfo(facts | {"scale_factor": (1.0, 1.0)})
        as_read = image.flip(0).byte()  # MMDetection reads BGR
        data: dict[str, Any] = self.model.data_preprocessor(
            {"inputs": [as_read], "data_samples": [sample]}, False
        )
        return data


def _with_plain_norms(config: Any) -> Any:
    """The config for a CPU, where norms are of one process."""
    if isinstance(config, dict):
        return {key: _with_plain_norms(value) for key, value in config.items()}
    return "BN" if config == "SyncBN" else config
