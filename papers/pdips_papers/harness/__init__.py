"""Studies: harness."""
