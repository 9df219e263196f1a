"""Pairs on disk and the images in them."""
