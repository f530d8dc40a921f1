"""How close synthetic sets are to the confidential table. Computed from it and unpaid: for inside use only."""
