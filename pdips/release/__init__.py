"""What a release is and how it is written."""

from pdips.moved import names_of

__getattr__ = names_of("pdips.release", "pdips.release.release")
