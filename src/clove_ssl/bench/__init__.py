"""``clove bench``: how fast a machine is, part by part, beside what it could be."""
