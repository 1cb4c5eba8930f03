"""What frozen features can do: ``clove probe``, ``clove embed``, and probes while training."""
