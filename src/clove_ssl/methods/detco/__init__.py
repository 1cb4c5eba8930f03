"""DetCo: contrast at four depths, on images and patches (Xie et al., 2021)."""

CONFIGS = {"detco": "config:DetCoConfig"}
