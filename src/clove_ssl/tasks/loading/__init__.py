"""From labelled images on disk to batches of a detector: selection, order, geometry, workers."""
