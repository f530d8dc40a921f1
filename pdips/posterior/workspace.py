"""All that a model of one schema needs compiled, kept for the next release of the same kind."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.anchors import initial, prior_draws, unconstrained
from pdips.posterior.censoring import Censored, censor_records
from pdips.posterior.columns import stand_ins
from pdips.posterior.density import Density
from pdips.posterior.grid import constrained, split
from pdips.posterior.model import STAND_INS, Blueprint, Source
from pdips.posterior.model_checks import check_company, on_stand_ins
from pdips.posterior.prior import prior_of
from pdips.posterior.records import to_frame

MOST_KEPT = 4

N_POINTS, N_STARTS = 3, 16
"""Draws from the prior at which records are compared, and from which NUTS is tried to start."""

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

    def check(self, *, discrete: bool = False) -> None:
        """Refuse, on stand-ins, what would fail or mislead once records are there; tried once for each workspace.

        Parameters
        ----------
        discrete : bool
            Whether parameters may be discrete.

        Raises
        ------
        InputError
            If a parameter is discrete, belongs to a single record or can't be drawn from its prior; if the model of
            many records isn't that of one, repeated; if records can't be drawn; or for what
            ``likelihood.censor_records`` refuses.
        """
        if self.discrete and not discrete:
            raise InputError(
                f"parameter {self.discrete[0]!r} is discrete, and grids and NUTS take real numbers; sum it out, as "
                "pm.Mixture does"
            )
        self.remembered(("checked",), self._check)

    @property
    def discrete(self) -> list[str]:
        """Names of the parameters that are no real numbers."""
        return [value.name for value in self.model.value_vars if not value.dtype.startswith("float")]

    def _check(self) -> None:
        schema, model = self.blueprint.schema, self.model
        censored = self._censored()
        with on_stand_ins("the prior"):
            many = self.blueprint.has_record_parameters
        if many:
            raise InputError("the model has parameters for single records; integrate them out, as a mixture does")
        start = np.median(self.prior, axis=0)
        check_company(model, self.blueprint.build, schema, self._points(np.stack([start, *self.prior[:N_POINTS]])))
        with on_stand_ins("the log-likelihood"):
            censored.log_likelihood({name: [value] for name, value in self.values_of(start[None])[0].items()})
        self._draw(start)

    def _censored(self) -> Censored:
        with on_stand_ins("the log-likelihood"):
            public = self.blueprint.source.public_potentials
            return censor_records(self.model, self.blueprint.schema.columns, window=1.0, public_potentials=public)

    def _points(self, flat: FloatArray) -> list[dict[str, Any]]:
        known = self.model.value_vars
        columns = [part.astype(value.dtype) for value, part in zip(known, split(self.model, flat), strict=True)]
        return [dict(zip([value.name for value in known], row, strict=True)) for row in zip(*columns, strict=True)]

    def _draw(self, flat: FloatArray) -> None:
        """Draw records at some parameters, beside stand-ins for public columns, and bring them into the schema."""
        schema, rng = self.blueprint.schema, np.random.default_rng(0)
        filled = stand_ins(schema, STAND_INS)
        public = {name: filled[name] for name in schema.public_columns}
        with on_stand_ins("the observed variables"):
            drawn = self.blueprint.draw(self.values_of(flat[None])[0], STAND_INS, public, rng)
            wrong = [name for name, values in drawn.items() if np.shape(values) != (STAND_INS,)]
            if wrong:
                raise InputError(f"what the model draws of {wrong[0]!r} isn't one value a record")
            to_frame(schema, drawn, pd.DataFrame(public), rng)

    def check_prior(self) -> None:
        """Refuse a prior that rejection can't draw from.

        Raises
        ------
        InputError
            See :func:`pdips.posterior.prior.prior_of`.
        """
        with on_stand_ins("the prior"):
            self.remembered(("rows",), lambda: prior_of(self.model)(2, np.random.default_rng(0)))

    def check_gradient(self) -> None:
        """Refuse, on stand-ins, a model without a finite log density and gradient anywhere that NUTS could start.

        Raises
        ------
        InputError
            If there is none at the middle of the prior, the model's own starting point, or some draws from the prior.
        """
        self.remembered(("gradient",), self._check_gradient)

    def _check_gradient(self) -> None:
        model = self._censored().model
        with on_stand_ins("the gradient of the log density"), np.errstate(all="ignore"):
            function = model.logp_dlogp_function(ravel_inputs=True, mode="FAST_COMPILE")
            function.set_extra_values({})
            tried = [np.median(self.prior, axis=0), initial(self.model), *self.prior[:N_STARTS]]
            found = any(np.isfinite(value) and np.isfinite(slope).all() for value, slope in map(function, tried))
        if not found:
            raise InputError(
                "the model's log density or its gradient is not a finite number at any of the points tried; look for "
                "logarithms and roots of what may be 0 or negative"
            )

    @cached_property
    def density(self) -> Density:
        """The log density of one record, compiled."""
        return Density(self.model, columns=self.blueprint.schema.columns)

    @cached_property
    def prior(self) -> FloatArray:
        """Draws from the prior, shape (draws, parameters), in unconstrained space."""
        with on_stand_ins("the prior"):
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
    key = (source.key, schema.to_toml())
    with ONE_AT_A_TIME:
        if key not in _kept:
            while len(_kept) >= MOST_KEPT:
                _kept.pop(next(iter(_kept)))
            _kept[key] = Workspace(Blueprint(source, schema))
        return _kept[key]
