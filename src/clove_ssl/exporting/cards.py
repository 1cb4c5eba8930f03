"""What a model card says about a backbone that a run has trained."""

from __future__ import annotations

from collections.abc import Mapping

from clove_ssl import __version__
from clove_ssl.backbones.build import Backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.probes.in_run import PREFIX, SECONDS
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD
from clove_ssl.weights.export.model_card import ModelCardFacts

HEALTH = ("loss", "cos_positive", "cos_negative", "feature_std", "effective_rank")


def card_facts(
    config: PretrainConfig,
    backbone: Backbone,
    *,
    images: int,
    steps: int,
    figures: Mapping[str, float],
) -> ModelCardFacts:
    """The facts of a run after some steps; ``figures`` are those of its last logged step."""
    return ModelCardFacts(
        method=config.method.name,
        architecture=config.backbone.name,
        stage=backbone.stage,
        output_stride=config.backbone.output_stride,
        data=config.data.source,
        images=images,
        labelled=config.method.needs_labels,
        images_seen=steps * config.batch_size,
        steps=steps,
        config_hash=files.fingerprint(config),
        library_version=__version__,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        health={name: figures[name] for name in HEALTH if name in figures},
        probes=_probes(figures),
    )


def _probes(figures: Mapping[str, float]) -> dict[str, float]:
    """What the last probe on the way found; it is of the very end, if there was one."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in figures.items()
        if name.startswith(PREFIX) and name != SECONDS
    }
