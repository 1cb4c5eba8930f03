"""PixPro: pixel-to-propagation consistency (Xie et al., 2021)."""

CONFIGS = {"pixpro": "config:PixProConfig"}
