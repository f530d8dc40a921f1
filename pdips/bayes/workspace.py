"""All that a model of one schema needs compiled, kept for the next release of the same kind."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.bayes.anchors import prior_draws, unconstrained
from pdips.bayes.density import Density
from pdips.bayes.grid import constrained
from pdips.bayes.likelihood import censor
from pdips.bayes.model_file import Blueprint, Source
from pdips.errors import InputError
from pdips.schema import Schema

FloatArray = NDArray[np.float64]

MOST_KEPT = 4

ONE_AT_A_TIME = threading.RLock()
"""Compiled functions hold points between calls, which two threads can't share; audits run side by side."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """A model with what is compiled of it; nothing of a table.

    Parameters
    ----------
    blueprint : Blueprint
        The model of tables of one schema.
    """

    blueprint: Blueprint

    @property
    def model(self) -> Any:
        """The ``pm.Model`` of stand-ins."""
        return self.blueprint.model

    def check(self) -> None:
        """Refuse, on stand-ins, discrete parameters and a likelihood that can't be censored record by record.

        Raises
        ------
        InputError
            If the model is one of these; see also ``likelihood.censor``.
        """
        discrete = [value.name for value in self.model.value_vars if not value.dtype.startswith("float")]
        if discrete:
            raise InputError(
                f"parameter {discrete[0]!r} is discrete, and grids and NUTS take real numbers; sum it out, as "
                "pm.Mixture does"
            )
        if not self._checked:
            try:
                censor(self.model, window=1.0)
            except IndexError:
                raise InputError(
                    "the model looks something up by a column, and values that the schema allows lie beyond it; make "
                    "what is looked up as long as the column has levels or whole numbers"
                ) from None
            self._checked.append(True)

    @cached_property
    def _checked(self) -> list[bool]:
        return []

    @cached_property
    def density(self) -> Density:
        """The log density of one record, compiled."""
        return Density(self.model, columns=self.blueprint.schema.columns)

    @cached_property
    def prior(self) -> FloatArray:
        """Draws from the prior, shape (draws, parameters), in unconstrained space."""
        return prior_draws(self.model)

    def remembered[T](self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what was made for a key of public settings, or make it."""
        if key not in self._memory:
            self._memory[key] = make()
        found: T = self._memory[key]
        return found

    @cached_property
    def _memory(self) -> dict[tuple[Any, ...], Any]:
        return {}

    def values_of(self, flat: FloatArray) -> list[dict[str, FloatArray]]:
        """Return parameters as values of the free variables, in the model's own units."""
        return constrained(self.model, flat)

    def parameters_of(self, values: dict[str, Any]) -> FloatArray:
        """Return values of the free variables as parameters in unconstrained space.

        Raises
        ------
        InputError
            If they aren't those of the model, or lie outside their support.
        """
        wanted = [variable.name for variable in self.model.free_RVs]
        if sorted(values) != sorted(wanted):
            raise InputError(f"the reference must give values for {', '.join(wanted)}; it gives {', '.join(values)}")
        found = unconstrained(self.model, values)
        if not np.isfinite(found).all():
            raise InputError("the reference has values that the model's priors exclude")
        return found


_kept: dict[tuple[Any, ...], Workspace] = {}


def workspace(source: Source, schema: Schema) -> Workspace:
    """Return the workspace of a model and a schema, made once."""
    key = (source.build if not source.text else source.text, schema.to_toml())
    with ONE_AT_A_TIME:
        if key not in _kept:
            while len(_kept) >= MOST_KEPT:
                _kept.pop(next(iter(_kept)))
            _kept[key] = Workspace(Blueprint(source, schema))
        return _kept[key]
