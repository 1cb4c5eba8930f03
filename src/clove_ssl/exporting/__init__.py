"""``clove export`` and ``clove import``: weights for other programs, and theirs for us."""
