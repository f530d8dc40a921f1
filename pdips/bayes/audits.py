"""The pairs and events on which posterior mechanisms are audited (SOUNDNESS section 8)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from pdips.bayes import stages
from pdips.bayes.audit_pseudo import pseudo_posterior
from pdips.bayes.columns import Columns
from pdips.bayes.drawing import Scored
from pdips.bayes.posterior import CensoredPosterior
from pdips.bayes.reference import cells_of_counts, counts_of, scale_of
from pdips.bayes.workspace import ONE_AT_A_TIME
from pdips.errors import InputError
from pdips.mechanism import Law, Outcome
from pdips.noise import RandomBits, discrete_laplace
from pdips.pairs import Case, Event, Pair
from pdips.privacy import Neighbours
from pdips.schema import Schema
from pdips.table import Table

__all__ = ["Staged", "censored", "pseudo"]

Build = Callable[..., CensoredPosterior]

COIN = Schema.model_validate({"columns": {"x": {"levels": [0, 1]}}})
NUMBER = Schema.model_validate({"columns": {"x": {"lower": -4, "upper": 4}}})
SHARES = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 1}}})
FAR = Schema.model_validate({"columns": {"y": {"lower": -1000, "upper": 1000}}})

STEEP = 1_000.0
"""Makes every cell of a coin's grid one that is sure of its side."""

LIGHT = 36
"""Nats by which the crowd of a pair makes one side lighter: its mass is 2e-16, and 60 would be cut off."""

pseudo = pseudo_posterior
"""The cases of the pseudo posterior."""


def switch(data: Columns, schema: Schema) -> pm.Model:
    """Return a coin that falls on one side nearly always, which one being unknown."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.Bernoulli("x", logit_p=STEEP * theta, observed=data["x"])
    return model


def coin(data: Columns, schema: Schema) -> pm.Model:
    """Return a coin of unknown bias."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 2)
        pm.Bernoulli("x", logit_p=theta, observed=data["x"])
    return model


def mean(data: Columns, schema: Schema) -> pm.Model:
    """Return numbers of known deviation about an unknown mean."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("x", mu, 1, observed=data["x"])
    return model


def shares(data: Columns, schema: Schema) -> pm.Model:
    """Return the beta model of paper 004 with its priors."""
    with pm.Model() as model:
        phi = pm.Uniform("phi", 0, 1)
        lam = pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=data["y"])
    return model


def narrow(data: Columns, schema: Schema) -> pm.Model:
    """Return numbers of known, small deviation about an unknown mean."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 3)
        pm.Normal("y", theta, 0.3, observed=data["y"])
    return model


@dataclass(frozen=True, kw_only=True)
class Staged(CensoredPosterior):
    """A release in two stages, as far as an audit can follow it: noisy counts, and the second stage at one outcome.

    Parameters
    ----------
    noisy : tuple of int
        An outcome of the first stage, the noisy count of each cell.

    Notes
    -----
    ``law`` has the joint probabilities of that outcome and each cell of the grid, the noise as statistics; ``observe``
    gives the noisy counts of whole releases alone, for every release has another grid.
    """

    noisy: tuple[int, ...]

    def law(self, table: Table) -> Law:
        """Return the exact joint law of the first stage and, at its outcome ``noisy``, of all draws in one cell."""
        counts, scale = counts_of(table), scale_of(table.schema, self.price.stage, self.neighbours)
        found = self.at_outcome(table, np.array(self.noisy)).log_probabilities()
        outcomes = [
            Outcome(
                key=(cell,),
                log_probability=self.n_draws * float(p),
                statistics=tuple(map(int, counts)),
                scales=(scale,) * len(counts),
            )
            for cell, p in enumerate(found)
            if np.isfinite(p)
        ]
        return Law(outcomes=outcomes)

    def at_outcome(self, table: Table, noisy: NDArray[np.int64]) -> Scored:
        """Return the grid of the second stage after some noisy counts."""
        n_records = table.n_records if self.neighbours == "replace-one" else max(int(noisy.sum()), 1)
        with ONE_AT_A_TIME:
            cells = cells_of_counts(table.schema, noisy, self.price.stage, self.neighbours, n_records)
            return self.scored(table, stages.after(self._space(table.schema), cells, {}))

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> NDArray[np.int64]:
        """Return the noisy counts of the first stage, one release a row."""
        counts, scale = counts_of(table), scale_of(table.schema, self.price.stage, self.neighbours)
        return np.asarray(counts + discrete_laplace(scale, n_runs * len(counts), bits).reshape(n_runs, -1))


def censored(build: Build) -> Iterator[Case]:
    """Yield the cases of the censored posterior, with models of their own unless one is asked for."""
    made = build(model=switch)
    if made.model != build(model=coin).model:
        pass
    if made.sampler not in ("auto", "grid"):
        raise InputError(f"the exact grid is what can be audited, not sampler = {made.sampler}")
    if made.variant == "published":
        yield from _published(build)
        return
    yield from _of_a_stage(build)
    staged = _where_allowed(build, model=coin, centre="staged", noisy=(30, 10))
    yield from ()


def _where_allowed(build: Build, **usual: Any) -> CensoredPosterior | None:
    """Return the mechanism with these settings, unless they contradict what the user asked for."""
    try:
        made = build(**usual)
    except InputError:
        return None
    return made if all(getattr(made, name) == value for name, value in usual.items() if name != "model") else None
