"""What an analyst can do with public files alone; all of it is post-processing."""

from pdips.registry import public_names

_homes, __getattr__ = public_names(__name__, __file__)
__all__ = sorted(_homes)
