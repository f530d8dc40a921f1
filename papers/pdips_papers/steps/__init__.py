"""Studies: steps."""
