"""The mechanism to take where none is named, from public facts alone."""

from typing import Any, NamedTuple

from pdips.data.schema import Schema
from pdips.margins.domain import columns_of
from pdips.margins.views import can_be_laid_out


class Suited(NamedTuple):
    """The mechanism to take where none is named, and why.

    Parameters
    ----------
    name : str
        Of the mechanism.
    why : str
        What decided.
    settings : dict
        That are to be added where they aren't given.
    """

    name: str
    why: str
    settings: dict[str, Any]


def suited(
    schema: Schema, *, has_model: bool = False, in_files: bool = False
) -> Suited:
    """Return the mechanism to take where none is named, and why, from public facts
    alone.

    ``has_model``: whether the user brings a PyMC model; ``in_files``: whether the table
    is a folder of files.

    Examples
    --------
    >>> columns = {name: {"levels": list(range(10))} for name in "abcdefgh"}
    >>> found = suited(Schema.model_validate({"columns": columns}))
    >>> found.name, found.why[:38]
    ('margins', 'it counts pairs of columns, of which 1')
    """
    if has_model:
        return Suited("scores", "it takes any PyMC model of one record", {})
    columns = schema.columns.values()
    if schema.members is not None:
        return Suited("margins", "it takes households with members", {})
    if in_files:
        # each view would read all files once more
        why = "it takes a table in many files, whose pairs are counted in one pass"
        return Suited("margins", why, {"measure": "pairs"})
    if not all(column.is_categorical or column.is_binned for column in columns):
        return Suited("margins", "it needs no bins for numeric columns", {})
    n_cells = columns_of(schema).n_cells
    why = f"it counts pairs of columns, of which {n_cells:,} cells needn't be laid out"
    if can_be_laid_out(schema):
        why = (
            f"it counts views that hold all pairs of columns, and {n_cells:,} cells "
            f"can be laid out"
        )
    return Suited("margins", why, {})
