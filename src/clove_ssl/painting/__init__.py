"""Pixels for people: sheets, overlays and predictions drawn over images."""
