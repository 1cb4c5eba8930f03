"""CLoVE: contextualized local visual embeddings (Silva et al., 2023)."""

CONFIGS = {"clove": "config:CLoVEConfig"}
