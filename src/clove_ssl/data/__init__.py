"""Sources of images, decoding, sampling and loading."""
