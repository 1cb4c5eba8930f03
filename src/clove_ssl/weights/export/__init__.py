"""Formats in which a backbone leaves: how each is written, checked and used."""
