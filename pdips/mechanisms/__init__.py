"""Histogram and tree mechanisms in plain numpy, one file a family."""
