"""Scores of predictions: pure functions of arrays and of COCO results."""
