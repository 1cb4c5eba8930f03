"""LVIS: over a thousand classes, most of them rare, not all of them looked for everywhere."""

CONFIGS = {
    "lvis-fpn": "config:LVISConfig",
    "lvis-v0.5-fpn": "config:LVISHalfConfig",
}
