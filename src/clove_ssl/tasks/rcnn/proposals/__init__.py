"""The first stage of a detector: anchors, their scores, and the few regions that remain."""
