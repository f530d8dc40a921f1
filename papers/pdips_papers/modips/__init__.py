"""Studies: modips."""
