"""SetSim: set similarity of cells (Wang et al., 2022)."""

CONFIGS = {"setsim": "config:SetSimConfig"}
