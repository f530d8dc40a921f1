"""What three columns or more have to do with each other beyond their pairs, where no
noisy count holds them together: sets have none of it, so intervals allow for some.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pdips.arrays import FloatArray
from pdips.outside.questions import Formula, Question
from pdips.outside.sets.analyses import Family, analysed
from pdips.outside.sets.records import SetRecords
from pdips.release.opening import PublishedRelease

OF_PRODUCTS = 0.1
OF_CELLS = 0.05
"""By how many deviations of a record's influence on it a number may differ for what no
pair tells: a coefficient in a formula with interactions, and a mean, share or count of
cells. Of 15 public tables, 99 in 100 products and cells differed by less than .049 and
.033 (``benchmarks.beyond_pairs``). Products have twice that: of the first three tables
beside those, one had an interaction of .11.
"""


def is_held(public: PublishedRelease, columns: Sequence[str]) -> bool:
    """Whether a noisy count holds columns together, codes not by groups alone."""
    for law in public.privacy.margins:
        counted = set[str]()
        for axis in law.axes:
            if not axis.groups:
                counted |= {*axis.columns}
        if {*columns} <= counted:
            return True
    return False


def pairs_alone(
    public: PublishedRelease, asked: Question, weight: str | None
) -> Question | None:
    """Return the part of a question that pairs answer; None where they answer it all.

    Of a formula it is that without the interactions that no count holds, and the
    question itself where they have no part in it: summaries, and all with weights.
    """
    weights = [] if weight is None else [weight]
    if isinstance(asked, Formula):
        outcome = [*asked.outcome.columns, *weights]
        terms = tuple(
            term
            for term in asked.terms
            if len(outcome) + len(term) <= 2
            or is_held(
                public, [*outcome, *(name for one in term for name in one.columns)]
            )
        )
        if len(terms) == len(asked.terms):
            return None
        return asked if weights else replace(asked, terms=terms)
    columns = [*asked.columns, *weights]
    return None if len(columns) <= 2 or is_held(public, columns) else asked


def beyond_pairs(
    sets: Sequence[SetRecords], asked: Question, of_pairs: Question, family: Family
) -> FloatArray:
    """Return by how much each number may differ for what no pair tells.

    A number moves by the mean, over records, of its influence times what is missing.
    Where coefficients have a standard error without the interactions, what it grows by
    with them is what they have to do with these.
    """
    allowed = []
    for records in sets:
        names, _, variances = analysed(records, asked, family)
        part = OF_CELLS
        if isinstance(asked, Formula):
            part = OF_PRODUCTS
        if of_pairs is not asked:
            fewer, _, without = analysed(records, of_pairs, family)
            own = dict(zip(fewer, without, strict=True))
            variances = variances - np.array([own.get(name, 0.0) for name in names])
        n_records = records.complete.sum()
        allowed.append(part * np.sqrt(n_records * np.maximum(variances, 0)))
    return np.mean(allowed, axis=0)
