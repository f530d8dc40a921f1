"""From noisy sums to a posterior, synthetic sets and what is published: all of it
post-processing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.mechanism import Drawn
from pdips.posterior.columns import Values, to_frame
from pdips.posterior.inspection import Draws
from pdips.posterior.nuts import Sampler, far_apart
from pdips.privacy.curator import timed
from pdips.release.public_draws import PublicDraws
from pdips.release.release import Closer
from pdips.scores.first_search import kit_of, one_at_a_time
from pdips.scores.noisy_likelihood import NoisySums
from pdips.scores.posterior import (
    PosteriorDraws,
    attempt,
    posterior_draws,
    predictive_check,
)
from pdips.scores.published import SUMS, Known, published
from pdips.scores.sums import Linearised, MeasuredSums
from pdips.scores.tree import public_groups, published_posterior, with_dims

# Draws from the posterior, then from the prior, that replace one at which no records
# can be drawn
OTHERS = 20


@dataclass(frozen=True, kw_only=True)
class DrawingSettings:
    """How draws and sets are made."""

    schema: Schema
    n_sets: int
    n_records: int | None
    draws: int
    tune: int
    chains: int
    sampler: Sampler


@dataclass(frozen=True, eq=False)
class ScoreAnswers(ABC):
    """What the curator told: noisy counts and sums with their laws, and the sums near
    the parameters that they make most probable.
    """

    sums: MeasuredSums
    near: Linearised | None  # None where nothing is known near any parameters

    @abstractmethod
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the noisy numbers, and what they are numbers of, as tables."""

    @abstractmethod
    def closer(
        self, here: Linearised, found: PosteriorDraws, parameters: Sequence[Draws]
    ) -> Closer:
        """Return what compares the noisy numbers with those that the posterior
        predicts.
        """

    @abstractmethod
    def groups(
        self, here: Linearised | None, found: PosteriorDraws
    ) -> Mapping[str, xr.Dataset]:
        """Return the other groups of the tree, by path."""

    @abstractmethod
    def beside(self, public: Values, n: int, rng: np.random.Generator) -> Values:
        """Return the covariates of the records of a synthetic set."""

    @abstractmethod
    def made_up(self, n: int, rng: np.random.Generator) -> Values:
        """Return outcomes drawn each by itself, as noisy counts have them."""


@dataclass(frozen=True, eq=False)
class SimulatedAnswers(ScoreAnswers):
    """Noisy sums of a model whose covariates are all public."""

    sums: NoisySums

    def tables(self) -> dict[str, pd.DataFrame]:
        return published(self.sums)

    def linearised(self, here: Linearised | None) -> Linearised | None:
        """Return all that was measured near some parameters, not the last sums
        alone.
        """
        if here is None:
            return None
        return attempt(self.sums.linearised, here.place, self.sums.simulator.cycle)

    def closer(
        self, here: Linearised, found: PosteriorDraws, parameters: Sequence[Draws]
    ) -> Closer:
        return lambda: predictive_check(
            self.sums, self.linearised(here) or here, found, parameters
        )

    def groups(
        self, here: Linearised | None, found: PosteriorDraws
    ) -> Mapping[str, xr.Dataset]:
        return public_groups(self.sums, self.linearised(here), found)

    def beside(self, public: Values, n: int, rng: np.random.Generator) -> Values:
        return public

    def made_up(self, n: int, rng: np.random.Generator) -> Values:
        counted = self.sums.measurements[0]
        cells = kit_of(self.sums.space).cells
        return cells.draw(counted.noisy, counted.deviation, n, rng)


def drawn(
    answers: ScoreAnswers,
    settings: DrawingSettings,
    public: Known,
    rng: np.random.Generator,
) -> Drawn:
    """Return draws from the posterior, synthetic sets, and what is published."""
    sums = answers.sums
    last = sums.last_scores
    with one_at_a_time(sums.space), timed("drawing from the posterior"):
        here = None
        if answers.near is not None:
            near = attempt(last.mode, answers.near.place) or answers.near
            here = attempt(last.precise, near.place)
        posterior = posterior_draws(
            sums,
            here,
            rng,
            settings.draws,
            draws=settings.draws,
            tune=settings.tune,
            chains=settings.chains,
            sampler=settings.sampler,
        )
    posterior = attempt(with_dims, sums.space, posterior) or posterior
    sets, parameters, n_undrawn = _sets(answers, settings, posterior, public, rng)
    noisy_sums = posterior.facts["noisy_sums"] | {"undrawn": n_undrawn}
    facts = {**posterior.facts, "noisy_sums": noisy_sums}
    posterior = replace(posterior, facts=facts)
    tables = answers.tables()
    return Drawn(
        sets=sets,
        statistics={SUMS: tables[SUMS]},
        tables=tables,
        diagnostics=facts,
        closer=answers.closer(here, posterior, parameters) if here else None,
        posterior_draws=PublicDraws(
            posterior=published_posterior(posterior, sums.space.outside),
            sampler=facts["sampler"],
            others=partial(answers.groups, here, posterior),
        ),
    )


def _sets(
    answers: ScoreAnswers,
    settings: DrawingSettings,
    posterior: PosteriorDraws,
    public: Known,
    rng: np.random.Generator,
) -> tuple[list[pd.DataFrame], list[Draws], int]:
    """Return sets of records at draws far apart, the parameters of each, and at how
    many draws there were no records.
    """
    beside, covariates = public
    space = answers.sums.space
    n_records = settings.n_records or len(beside)
    n_records = n_records or max(round(answers.sums.n_records), 1)
    places = posterior.places
    sets = []
    parameters = []
    n_undrawn = 0
    chosen = places[far_apart(len(places), settings.n_sets, rng)]
    for number, place in enumerate(chosen, start=1):
        with timed(f"drawing synthetic set {number} of {settings.n_sets}"):
            others = places[rng.integers(len(places), size=OTHERS)]
            tried = np.concatenate([place[None], others, space.prior[:OTHERS]])
            read = answers.beside(covariates, n_records, rng)
            values, records, n_failed = _records(answers, tried, n_records, read, rng)
            records = {name: read[name] for name in space.covariates} | dict(records)
            sets.append(to_frame(settings.schema, records, beside, rng))
        parameters.append(values)
        n_undrawn += n_failed
    return sets, parameters, n_undrawn


def _records(
    answers: ScoreAnswers,
    places: FloatArray,
    n: int,
    read: Values,
    rng: np.random.Generator,
) -> tuple[Draws, Values, int]:
    """Return the first parameters at which the model draws records, these records, and
    how many came before.

    If there are none each column is drawn by itself, as its noisy counts have it.
    """
    space = answers.sums.space
    for n_failed, place in enumerate(places):
        [values] = space.values_of(place[None])
        found = attempt(space.draw, values, n, read, rng)
        if found is not None:
            return values, found, n_failed
    return values, answers.made_up(n, rng), len(places)
