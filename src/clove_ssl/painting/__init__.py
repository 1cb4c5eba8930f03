"""Pixels for people: sheets, overlays and predictions painted over images."""
