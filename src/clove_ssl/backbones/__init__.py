"""Convolutional backbones with named stages, and their weights."""
