"""Studies: kng."""
