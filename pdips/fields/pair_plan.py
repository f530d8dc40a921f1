"""Whether pairs are chosen, how often, what single columns get beside them, and in how
many intervals pairs cut numbers: public, from schema and price alone.
"""

import math
from fractions import Fraction

from pdips.data.schema import Schema
from pdips.fields.pair_counts import OF_CHOICE, PAIRS
from pdips.fields.price_parts import (
    ALONE_CHOSEN,
    ALONE_LOUD,
    FEWEST_CHOSEN,
    FEWEST_PAIRS,
    LOUD_SCALE,
    MOST_CHOSEN,
    TELLING,
)
from pdips.margins.choosing import nats_of_none
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Step
from pdips.privacy.sensitivity import Sensitivity

FEWEST_CUTS = 4
MOST_CUTS = 16
BEARABLE = 1_100
"""Numbers without bins are cut into so many intervals that their square times the noise
of a pair makes about so much: a cell of ten thousand records then holds nine standard
deviations of its noise (tried: 2 to 10 intervals).
"""


def n_pairs_of(schema: Schema) -> int:
    """Return the number of pairs of columns that aren't both public."""
    n_public = math.comb(len(schema.public_columns), 2)
    return math.comb(len(schema.columns), 2) - n_public


def pairs_are_chosen(schema: Schema, neighbours: Neighbours) -> bool:
    """Return whether pairs are chosen unless settings need all of them, or there are
    many records: few pairs are cheap, and where all columns have levels a choice leaves
    pairs too little of the price.
    """
    if schema.members or n_pairs_of(schema) < FEWEST_PAIRS:
        return False
    are_numbers = [
        not (column.is_categorical or column.is_binned)
        for column in schema.columns.values()
    ]
    # of numbers alone a design without pairs counts nothing but the records
    counts_more = neighbours == "add-remove" or not all(are_numbers)
    return any(are_numbers) and counts_more


def share_beside_chosen(
    schema: Schema, neighbours: Neighbours, law: AnswerLaw, total: Fraction
) -> Fraction:
    """Return what single columns get of the price where pairs are chosen: more, where
    their own noise at the whole price would be loud.
    """
    n_columns = len(schema.columns) - len(schema.public_columns)
    moved = Sensitivity.of_counts(schema, neighbours, tables=max(n_columns, 1))
    if law == "gaussian":
        is_loud = moved.l2_squared > 2 * total * LOUD_SCALE**2
    else:
        is_loud = moved.l1 > total * LOUD_SCALE
    return ALONE_LOUD if is_loud else ALONE_CHOSEN


def n_choices(
    schema: Schema, neighbours: Neighbours, law: AnswerLaw, price: Fraction
) -> int:
    """Return how often a pair is chosen, at a price of pairs: each choice of one among
    so many leaves the others less.
    """
    both = 2 * Sensitivity.of_counts(schema, neighbours).l1
    of_choice = float(price * OF_CHOICE)
    nats_a_record = nats_of_none(n_pairs_of(schema)) / TELLING
    # the epsilon at which one choice tells so many records from none
    needed = float(both) * nats_a_record
    most = of_choice / needed
    if law == "gaussian":
        most = 8 * of_choice / needed**2
    return int(min(max(most, FEWEST_CHOSEN), MOST_CHOSEN * len(schema.columns)))


def n_cuts_at(
    schema: Schema,
    neighbours: Neighbours,
    law: AnswerLaw,
    price: Fraction,
    n_pairs: int,
) -> int:
    """Return in how many intervals so many pairs, counted at a price, cut numbers: the
    louder the noise, the fewer.
    """
    if not n_pairs or not price:
        return MOST_CUTS
    step = Step(
        name=PAIRS,
        counts="each count",
        sensitivity=Sensitivity.of_counts(schema, neighbours, tables=n_pairs),
        price=price,
        law=law,
    )
    bearable = BEARABLE / max(step.standard_deviation, 1)
    halvings = round(math.log2(bearable) / 2)
    return int(min(max(2**halvings, FEWEST_CUTS), MOST_CUTS))
