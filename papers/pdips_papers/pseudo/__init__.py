"""Studies: pseudo."""
