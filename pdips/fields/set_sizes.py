"""How many records a set has that is drawn in chunks, and which schemas allow it."""

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Number, exact

ALL = "all"
MOST_DRAWN = 1_000_000_000


def check_set_size(
    records: Number | None, sets: str | None, weighted: tuple[str, ...]
) -> None:
    """Refuse what is neither a whole number of records, nor a share of the table's, nor
    ``"all"``; and what it doesn't go with.
    """
    if records is None:
        return
    if sets == "posterior" or weighted:
        raise InputError(
            "records goes with sets=fitted, without weighted: sets that carry the "
            "noise, and sums, stand for as many records as the table has"
        )
    if records == ALL:
        return
    size = exact(records, "records")
    is_count = size.denominator == 1 and 1 <= size <= MOST_DRAWN
    if not is_count and not 0 < size < 1:
        raise InputError(
            f"records must be a whole number up to {MOST_DRAWN:,}, a share of the "
            f"table's between 0 and 1, or {ALL!r}, got {records!r}"
        )


def set_size(records: Number, n_records: int) -> int:
    """Return the number of records of a set, beside a table of a public or noisy number
    of them; at least one.
    """
    if records == ALL:
        return max(n_records, 1)
    size = exact(records, "records")
    return int(size) if size >= 1 else max(round(size * n_records), 1)


def check_chunks(schema: Schema, records: Number | None) -> None:
    """Refuse a schema that says something of a set as a whole, which chunks can't keep,
    for sets of a number of ``records`` of their own.
    """
    if records is None:
        return
    whole = {
        "public columns": schema.public_columns,
        "public totals": schema.total,
        "members": schema.members,
    }
    for what, is_there in whole.items():
        if is_there:
            raise InputError(
                f"records draws sets in chunks, and the schema has {what}, which hold "
                f"for a set as a whole: leave records out"
            )
