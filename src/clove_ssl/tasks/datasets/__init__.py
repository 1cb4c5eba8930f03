"""Labelled images of downstream tasks: readers, and scenes written in their formats."""
