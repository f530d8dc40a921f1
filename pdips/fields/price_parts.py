"""What the questions of ``margins`` get of its price: shares, each with the
range that was tried.
"""

from dataclasses import dataclass
from fractions import Fraction

ALONE = {"gaussian": Fraction(3, 5), "laplace": Fraction(1, 4)}
"""Part of the price that single columns get: pairs say little where their columns are
wrong (tried: .1 to .75).
"""

ALONE_NUMERIC = {"gaussian": Fraction(4, 5), "laplace": Fraction(9, 10)}
"""With numeric columns without bins, whose cuts and spikes hang on their own counts
(tried: .6 to .9).
"""

ALONE_TWICE = Fraction(2, 5)
"""Of Gaussian noise where some pairs are counted twice and no numeric column is without
bins (tried: .2 to .6).
"""

ALONE_QUIET = Fraction(1, 4)
QUIET = 15
"""The same where noise of the whole price would have a smaller variance, as from
epsilon 2 (tried: .08 to .4).
"""

AGAIN = {"gaussian": Fraction(1, 2), "laplace": Fraction(0)}
"""Part of the price of pairs that the second count gets (tried: 0 to .9); Laplace noise
gains nothing from it.
"""

PART_AGAIN = Fraction(3, 10)
"""Part of the pairs that are counted a second time (tried: .05 to .6)."""

FEWEST_PAIRS = 6  # Of fewer pairs none is counted a second time, or chosen


ALONE_CHOSEN = Fraction(3, 4)
ALONE_LOUD = Fraction(9, 10)
LOUD_SCALE = 20
"""Parts that single columns get beside chosen pairs: the second where their own noise
would have a scale above this many records at the whole price (.6 to .9 were tried in
single releases of four tables, the scale 20 and 30).
"""

TELLING = 2_000
FEWEST_CHOSEN = 2
"""So many pairs are chosen at most, and at least, that noise of the choice seldom puts
a pair this many records ahead.
"""

MOST_CHOSEN = 2  # Pairs for each column

OF_WEIGHTS = Fraction(1, 10)
OF_PRODUCTS = Fraction(1, 4)
"""Parts of the price that sums of weights get, and products."""


@dataclass(frozen=True, kw_only=True)
class PriceParts:
    """What the questions of ``Margins`` get of its price; the rest is that of sums.

    Parameters
    ----------
    fine : Fraction
        Intervals of numbers and levels of codes.
    alone, pairs : Fraction
        Single columns, and the first count of pairs: one question.
    second : Fraction
        Pairs that are counted again, or chosen and counted.
    """

    fine: Fraction
    alone: Fraction
    pairs: Fraction
    second: Fraction
