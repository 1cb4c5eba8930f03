"""Views: where they lie in the image, their random parameters, and their pixels."""
