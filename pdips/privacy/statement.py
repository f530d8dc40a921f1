"""The paragraph for a disclosure board: the law, whom it protects, and on which assumptions."""

from fractions import Fraction
from typing import Protocol

from pdips.data.schema import Schema
from pdips.privacy.loss import Neighbours, spell

SEEDED = (
    "MADE FROM A SEED, for tests and studies, not for publication: the assumption on random bits below fails, and "
    "against anybody who knows or can guess the seed there is no guarantee."
)


class Stated(Protocol):
    """What a statement is about."""

    @property
    def mechanism(self) -> str: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def neighbours(self) -> Neighbours: ...
    @property
    def n_sets(self) -> int: ...
    @property
    def law(self) -> str: ...


def statement(plan: Stated, *, epsilon: Fraction, delta: Fraction) -> str:
    """Return the paragraph.

    Parameters
    ----------
    plan : Plan
        What will be asked.
    epsilon : Fraction
        Total over all sets.
    delta : Fraction
        Probability of exceeding epsilon; 0 for a pure loss.
    """
    return paragraph(plan.mechanism, plan.schema, plan.neighbours, plan.n_sets, plan.law, epsilon=epsilon, delta=delta)


def paragraph(
    mechanism: str,
    schema: Schema | None,
    neighbours: Neighbours,
    n_sets: int,
    law: str,
    *,
    epsilon: Fraction,
    delta: Fraction,
) -> str:
    """Return the paragraph; without a schema it speaks of one record a person and names no public columns."""
    records, public = (schema.records, schema.public_columns) if schema is not None else (None, ())
    most = records.max_per_person if records is not None else 1
    cap, upto = (f"{most} records", "up to ") if most > 1 else ("one record", "")
    factor = "the probability of any output by a factor of at most e^epsilon"
    if delta:
        factor = (
            "the probability of any set of outputs by a factor of at most e^epsilon and, beyond that, by at most "
            f"delta = {spell(delta)}"
        )
    whom = {
        "replace-one": f"replacing all that one person ({upto}{cap}) contributed by any other values that the schema "
        f"allows changes {factor}; the number of records is public",
        "add-remove": f"adding or removing all that one person ({upto}{cap}) contributed changes {factor}, "
        "for all tables of at least one record; the number of records is "
        "protected too",
    }[neighbours]
    plural = "s" if n_sets > 1 else ""
    parts = [
        f"{mechanism} with epsilon = {spell(epsilon)} in total over {n_sets} synthetic set{plural}: {whom}.",
        law,
        "Assumptions: the schema (levels, bounds, bins, impossible combinations) was fixed from public knowledge; "
        "whether and what to publish was not decided by looking at the confidential table or at unpaid diagnostics; "
        "the random bits of the operating system are unpredictable and were not kept.",
    ]
    if records and records.person is None:
        parts.append(f"That no person has more than {cap} is declared, not checked.")
    elif records:
        parts.append(f"Records without a value in {records.person!r} are taken to be of a different person each.")
    if public:
        parts.append(
            f"Public columns, their values copied (not their order) and not protected in any way: {', '.join(public)}. "
            "Neighbouring tables share them; only the other columns of a person change."
        )
    return " ".join(parts)
