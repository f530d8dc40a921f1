"""What an analyst can do with public files alone; all of it is post-processing."""

from pdips.outside.answer import Answer
from pdips.outside.noisy_margins import NoisyMargins
from pdips.outside.readers import read_nmf, read_opendp

__all__ = ["Answer", "NoisyMargins", "read_nmf", "read_opendp"]
