"""Columns that a model makes of public ones: looked up by what is public of a record,
so that they go with it wherever it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.posterior.columns import Values


@dataclass(frozen=True, eq=False)
class DerivedColumns:
    """Values that a model reads beside the columns of a schema, each a function of the
    public columns of its record.

    Parameters
    ----------
    columns : mapping of str to Column
        What is known of them: all are public.
    known : mapping of str to ndarray, shape (rows,)
        Public columns as models read them, each combination once.
    values : mapping of str to ndarray, shape (rows,)
        The derived columns there.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    known: Values = field(default_factory=dict, repr=False)
    values: Values = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, columns: Mapping[str, Column], public: Values, values: Values
    ) -> "DerivedColumns":
        """Return columns that are derived from the public ones, given record by record.

        Raises
        ------
        InputError
            If records that agree in all public columns differ in a derived one.
        """
        if not columns:
            return cls()
        if not public:
            raise InputError(
                "the model holds an array with one number a record that follows from "
                "no column, such as the place of a record in the table"
            )
        keys = pd.DataFrame(dict(public))
        number = keys.groupby(list(keys), sort=False, dropna=False).ngroup().to_numpy()
        _, first = np.unique(number, return_index=True)
        derived = {}
        for name, given in values.items():
            chosen = np.asarray(given)[first]
            if not np.array_equal(chosen[number], given):
                raise InputError(
                    "the model reads an array with one number a record that differs "
                    "between records which agree in all public columns: it follows "
                    "from the place of a record in the table, or from random numbers"
                )
            derived[name] = chosen
        known = {name: np.asarray(each)[first] for name, each in public.items()}
        return cls(dict(columns), known, derived)

    def beside(self, values: Values) -> dict[str, NDArray[Any]]:
        """Return columns of records, public ones among them, with the derived ones;
        made-up records may have these already.
        """
        if values.keys() >= self.columns.keys():
            return dict(values)
        known = pd.MultiIndex.from_arrays([*self.known.values()])
        asked = pd.MultiIndex.from_arrays([values[name] for name in self.known])
        place = known.get_indexer(asked)
        if (place < 0).any():
            raise InputError(
                "the model was made for other public records: make it anew of this "
                "table"
            )
        return {**values, **{name: each[place] for name, each in self.values.items()}}

    def widened(self, schema: Schema) -> Schema:
        """Return a schema with the derived columns."""
        if not self.columns:
            return schema
        return schema.model_copy(update={"columns": {**schema.columns, **self.columns}})
