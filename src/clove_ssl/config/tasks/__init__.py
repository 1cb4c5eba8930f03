"""Configs of the downstream tasks, one class per name of ``clove finetune``."""
