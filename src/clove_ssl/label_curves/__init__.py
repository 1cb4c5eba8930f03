"""``clove labels``: what pre-training is worth where labels are scarce."""
