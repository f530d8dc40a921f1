"""The public names of ``pdips.outside``, each imported when it is first used."""

from pdips.outside.answer import Answer as Answer
from pdips.outside.noisy_margins import NoisyMargins as NoisyMargins
from pdips.outside.readers import read_nmf as read_nmf
from pdips.outside.readers import read_opendp as read_opendp
