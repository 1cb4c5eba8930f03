"""CLoVE Plus: CLoVE at several stages, with a loss that tells images apart."""

CONFIGS = {"clove-plus": "config:CLoVEPlusConfig"}
