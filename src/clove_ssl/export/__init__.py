"""Writing a trained backbone for other programs."""
