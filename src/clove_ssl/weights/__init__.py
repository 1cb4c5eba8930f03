"""Weights in and out: foreign files to backbones, backbones to foreign files."""
