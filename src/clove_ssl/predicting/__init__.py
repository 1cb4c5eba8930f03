"""Predictions of fine-tuned models on images of a user, and their scores on other data."""
