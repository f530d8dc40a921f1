"""A release measured against its table: for inside use, or privately and paid for."""
