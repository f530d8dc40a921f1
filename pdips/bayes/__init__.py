"""PyMC models as synthesizers: whatever touches a ``pm.Model``."""
