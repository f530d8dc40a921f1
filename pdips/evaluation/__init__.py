"""A release measured against its table, for inside use."""
