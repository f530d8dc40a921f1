"""How far one person can move an answer: the only place where a person's cap multiplies
what one record moves.
"""

from dataclasses import dataclass
from fractions import Fraction

from pdips.data.schema import Schema
from pdips.privacy.loss import Neighbours


def n_changed(neighbours: Neighbours) -> int:
    """Return how many records differ between neighbours: one leaves and one comes where
    a record is replaced.
    """
    return 2 if neighbours == "replace-one" else 1


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The most by which one person can move a vector of whole numbers, between
    neighbouring tables.

    Parameters
    ----------
    l1 : Fraction
        Largest sum of absolute differences; for the scores of an election the largest
        difference between what two candidates gain.
    l2_squared : Fraction
        Largest sum of squared differences.

    Examples
    --------
    >>> from pdips import Schema
    >>> schema = Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
    >>> Sensitivity.of_counts(schema, "replace-one").l1
    Fraction(2, 1)
    """

    l1: Fraction
    l2_squared: Fraction

    @classmethod
    def of_counts(
        cls, schema: Schema, neighbours: Neighbours, *, tables: int = 1
    ) -> "Sensitivity":
        """Return the sensitivity of counts where a record is in one place of each of
        ``tables`` histograms.

        Replacing a record takes it from one place and puts it into another; adding or
        removing it changes one. All of a person's records may be in the same place.
        """
        places = n_changed(neighbours)
        return cls.of_record(schema, l1=places * tables, l2_squared=places * tables)

    @classmethod
    def of_record(
        cls,
        schema: Schema,
        *,
        l1: int | Fraction,
        l2_squared: int | Fraction | None = None,
    ) -> "Sensitivity":
        """Return the sensitivity to a person of what one record can move by so much.

        ``l2_squared`` may be left out where only the l1 law uses it: it is at most the
        square of ``l1``.
        """
        cap = schema.records.max_per_person
        squared = Fraction(l1) ** 2 if l2_squared is None else Fraction(l2_squared)
        return cls(l1=cap * Fraction(l1), l2_squared=cap**2 * squared)

    @classmethod
    def of_person(
        cls, *, l1: int | Fraction, l2_squared: int | Fraction | None = None
    ) -> "Sensitivity":
        """Return a sensitivity that was worked out for a person with all of their
        records.
        """
        squared = Fraction(l1) ** 2 if l2_squared is None else Fraction(l2_squared)
        return cls(l1=Fraction(l1), l2_squared=squared)

    @classmethod
    def of_sums(
        cls,
        schema: Schema,
        neighbours: Neighbours,
        most: int,
        *,
        signed: bool = True,
        moves: bool = True,
    ) -> "Sensitivity":
        """Return the sensitivity of sums, by place, of whole numbers of at most
        ``most``, one from each record.

        ``signed`` numbers lie in [-most, most], others in [0, most]. If it ``moves``, a
        record that is replaced may add its number to another place.
        """
        if neighbours == "add-remove" or not (signed or moves):
            return cls.of_record(schema, l1=most)
        # a signed number may go from one end to the other in one place
        squares = 4 if signed else 2
        return cls.of_record(schema, l1=2 * most, l2_squared=squares * most**2)
