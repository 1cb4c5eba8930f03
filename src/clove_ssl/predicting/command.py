"""``clove predict`` and ``clove evaluate``."""

from __future__ import annotations

from pathlib import Path

from clove_ssl.config.predicting import EvaluateConfig, PredictConfig
from clove_ssl.predicting.other_data import evaluate_on
from clove_ssl.predicting.run import predict_images


def predict(config: PredictConfig) -> Path:
    """Draw and write what a fine-tuned model finds in images."""
    return predict_images(config)


def evaluate(config: EvaluateConfig) -> dict[str, float]:
    """Score a fine-tuned model on another data set."""
    return evaluate_on(config)
