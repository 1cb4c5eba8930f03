"""Typed, frozen configs; none of these modules imports torch."""
