"""Labels as plain values, whatever file they came from: boxes, masks, polygons."""
