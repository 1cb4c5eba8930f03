"""``clove show``: what a run works with and what it has learned, as pictures."""
