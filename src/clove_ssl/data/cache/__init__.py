"""Photos that stay: decoded once, kept as bytes, and found again by their number."""
