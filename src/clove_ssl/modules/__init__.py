"""Building blocks shared by methods."""
