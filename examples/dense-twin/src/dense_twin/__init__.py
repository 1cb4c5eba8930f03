"""A pre-training method for clove-ssl in a package of its own."""
