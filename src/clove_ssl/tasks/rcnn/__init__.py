"""R-CNN detectors: anchors, boxes, pooling, heads, masks, keypoints, and whole models of them.

They compute what Detectron2 0.6 computes, because the published detection protocols are numbers of
that program; where a rule looks odd, it is its rule, and ``tests/golden/detectron2`` holds it to
recorded values. ``detector`` puts the parts together.

Boxes are ``x1, y1, x2, y2`` in pixels of the network's input, image sizes ``(height, width)``.
"""
