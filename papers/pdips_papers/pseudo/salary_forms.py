"""The synthesizers of paper 004, section 5, on a table with one confidential number: published and sound."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.histogram.laplace import PerturbedHistogram
from pdips.posterior.censored_posterior import CensoredPosterior
from pdips.posterior.censoring import Censored
from pdips.posterior.columns import record_values
from pdips.posterior.finished_model import censor
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.posterior.nuts import converged, sample
from pdips.posterior.weights import linear_weights, lipschitz_bound, weighted_e
from pdips_papers.pseudo.censored_forms import CENSOR_UW, CENSOR_W, PH, UNWEIGHTED, WEIGHTED, WEIGHTED_E

EPSILON = 5
"""The paper's target."""

STAGED = {"staged, ϵ = 5": 5, "staged, ϵ = 1": 1}
"""The default form of ``censored-posterior``, by its column in the table: true epsilon."""

CHAINS, DRAWS, TUNE = 2, 500, 500
"""Of each published fit: S = 1,000 draws, as in the simulations."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a synthesizer made.

    Parameters
    ----------
    column : str
        Column of the study's table.
    synthetic : ndarray, shape (records,), optional
        One synthetic set; None if the chains did not agree, so that nothing was released.
    bound : float, optional
        Lipschitz bound.
    claimed, true : float, optional
        What is said to be spent, and what is.
    rhat : float, optional
        The worst R-hat of the fit.
    """

    column: str
    synthetic: FloatArray | None
    bound: float | None = None
    claimed: float | None = None
    true: float | None = None
    rhat: float | None = None


def confidential_column(schema: Schema) -> str:
    """Return the column to synthesize: one number, beside public columns.

    Raises
    ------
    InputError
        If the schema is of another kind.
    """
    names = [name for name, column in schema.columns.items() if not column.public]
    numeric = [name for name in names if not schema.columns[name].is_categorical and not schema.columns[name].integer]
    if len(names) != 1 or numeric != names or not schema.public_columns:
        raise InputError(
            "study salary needs a schema with one confidential column, a number that isn't integer, and public "
            f"columns; confidential in this one: {', '.join(names) or 'none'}"
        )
    return names[0]


class Published:
    """The published forms of one table: fits by NUTS of one model, compiled once, that differ in weights and window.

    Log-likelihoods are those of the number scaled to [0, 1] by its public bounds, as in the paper.

    Parameters
    ----------
    table : Table
        The table.
    rng : numpy.random.Generator
        Randomness.
    chains, draws, tune : int
        Of each fit.
    """

    def __init__(
        self, table: Table, rng: np.random.Generator, *, chains: int = CHAINS, draws: int = DRAWS, tune: int = TUNE
    ) -> None:
        self._table, self._rng = table, rng
        self._settings = (chains, draws, tune)
        self._name = confidential_column(table.schema)
        column = table.schema.columns[self._name]
        self._lower, self._upper = float(column.lower or 0), float(column.upper or 0)
        self._centre = -math.log(self._upper - self._lower)

    @cached_property
    def _blueprint(self) -> Blueprint:
        return Blueprint(as_source("beta_regression"), self._table.schema)

    @cached_property
    def _censored(self) -> Censored:
        model = self._blueprint.build(record_values(self._table))
        return censor(model, window=math.inf, centre=self._centre)

    def refit(self, weights: FloatArray, window: float) -> tuple[FloatArray, FloatArray, float]:
        """Return the largest log-likelihoods, shape (records,), a synthetic set from one draw, and the worst R-hat."""
        self._censored.update(weights=weights, window=window)
        chains, draws, tune = self._settings
        tree = sample(self._censored, rng=self._rng, chains=chains, draws=draws, tune=tune)
        posterior = tree["posterior"].to_dataset()
        largest = np.abs(self._censored.log_likelihood(posterior) - self._centre).max(axis=0)
        chain, draw = (int(self._rng.integers(posterior.sizes[each])) for each in ("chain", "draw"))
        one = posterior.isel(chain=chain, draw=draw)
        values = {rv.name: one[rv.name].to_numpy() for rv in self._blueprint.model.free_RVs}
        return largest, self._drawn(values), worst_rhat(tree)

    def _drawn(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        public = record_values(self._table, self._table.schema.public_columns)
        drawn = self._blueprint.draw(values, self._table.n_records, public, self._rng)[self._name]
        return np.clip(np.asarray(drawn, dtype=np.float64), self._lower, self._upper)

    def all(self) -> Iterator[Answer]:
        """Make the posterior without privacy and the four published forms."""
        ones, window = np.ones(self._table.n_records), EPSILON / 2
        risks, synthetic, rhat = self.refit(ones, math.inf)
        yield Answer(column=UNWEIGHTED, synthetic=synthetic, bound=float(risks.max()), rhat=rhat)
        alpha = linear_weights(risks)
        dropped = weighted_e(alpha, risks, EPSILON)
        for column, weights, half in (
            (WEIGHTED, alpha, math.inf),
            (WEIGHTED_E, dropped, math.inf),
            (CENSOR_W, alpha, window),
            (CENSOR_UW, ones, window),
        ):
            largest, synthetic, rhat = self.refit(weights, half)
            bound = min(lipschitz_bound(weights, largest), half)
            claimed = 2 * bound if math.isinf(half) else float(EPSILON)
            true = 2.0 * EPSILON if column == CENSOR_UW else None
            yield Answer(column=column, synthetic=synthetic, bound=bound, claimed=claimed, true=true, rhat=rhat)


def worst_rhat(tree: xr.DataTree) -> float:
    """Return the largest R-hat of any parameter."""
    return max(converged(tree).rhat.values())


def sound(table: Table, rng: np.random.Generator) -> Iterator[Answer]:
    """Make the perturbed histogram of the number alone, and our default at the paper's target and at 1."""
    name = confidential_column(table.schema)
    column = table.schema.columns[name]
    bins = int(np.ceil(np.sqrt(table.n_records)))
    alone = Schema.model_validate({"columns": {name: {"lower": column.lower, "upper": column.upper, "bins": bins}}})
    histogram, _ = PerturbedHistogram(epsilon=EPSILON).release(Table(table.frame[[name]], alone), rng=rng)
    yield Answer(column=PH, synthetic=_values(histogram.sets[0], name), claimed=EPSILON, true=EPSILON)
    for label, epsilon in STAGED.items():
        mechanism = CensoredPosterior(epsilon=epsilon, model="beta_regression", draws=DRAWS, tune=TUNE)
        try:
            release, _ = mechanism.release(table, rng=rng)
            synthetic = _values(release.sets[0], name)
        except RefusedError:
            synthetic = None
        yield Answer(column=label, synthetic=synthetic, claimed=epsilon, true=epsilon)


def _values(frame: pd.DataFrame, name: str) -> FloatArray:
    return frame[name].to_numpy(dtype=np.float64)
