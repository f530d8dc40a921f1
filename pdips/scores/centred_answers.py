"""What is published where covariates are confidential: noisy sums of centred scores as
tables and as groups of a tree, and how they are read again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.inspection import Draws, Posterior, inspect_statistics
from pdips.posterior.model import Blueprint
from pdips.release.release import Closer
from pdips.scores.centred_questions import NAMES, ROUND, opened_sums
from pdips.scores.centred_sums import CentredRound, CentredSums
from pdips.scores.centring import COUNTED, KINDS, Centring, Kind
from pdips.scores.column_cells import inside_cells
from pdips.scores.posterior import PREDICTED, PosteriorDraws, attempt
from pdips.scores.published import (
    GAUSSIAN,
    LAPLACE,
    REFERENCES,
    SUMS,
    WHITENING,
    cell_rows,
    number_of_records,
    parameter_labels,
    reference_rows,
)
from pdips.scores.score_answers import ScoreAnswers
from pdips.scores.sums import Linearised
from pdips.scores.tree import (
    COUNTS,
    PARAMETER,
    SAMPLE,
    SCORES,
    by_chain,
    cell_labels,
    few,
    log_prior_group,
    prior_group,
)

CURVATURE_RADIUS = "curvature_radius"
CURVATURE = "curvature_{}"
SQUARES = "squares"
OTHER = "other_parameter"
COUNTED_RECORDS: Mapping[Kind, str] = {
    "shape": "records in the middle or far out",
    "above": "records above their median",
}


@dataclass(frozen=True, eq=False)
class CentredAnswers(ScoreAnswers):
    """Noisy sums of a model some of whose covariates are confidential."""

    sums: CentredSums

    def tables(self) -> dict[str, pd.DataFrame]:
        sums = self.sums
        labels = parameter_labels(sums.space)
        law = LAPLACE if sums.laplace else GAUSSIAN
        parts = [number_of_records(sums.n_records, sums.n_variance, law)]
        counted = cell_rows(sums.cells)
        counted.insert(0, "step", sums.counts_step)
        parts.append(
            counted.assign(
                noisy=sums.counts,
                noise=law,
                standard_deviation=sums.counts_deviation,
            )
        )
        references = []
        for number, measured in enumerate(sums.rounds, start=1):
            for kind, noisy in measured.noisy.items():
                rows = {
                    "step": ROUND.format(NAMES[kind], number),
                    "of": _names_of(kind, measured.centring, labels),
                    "lower": np.nan,
                    "upper": np.nan,
                    "noisy": noisy,
                    "noise": law,
                    "standard_deviation": measured.deviations[kind],
                }
                parts.append(pd.DataFrame(rows))
            at = measured.centring
            step = ROUND.format(NAMES["scores"], number)
            reference = reference_rows(step, at, labels)
            references.append(reference.assign(curvature_radius=at.curvature_radius))
        tables = {SUMS: pd.concat(parts, ignore_index=True)}
        if references:
            tables[REFERENCES] = pd.concat(references, ignore_index=True)
        return tables

    def closer(
        self, here: Linearised, found: PosteriorDraws, parameters: Sequence[Draws]
    ) -> Closer:
        return lambda: self._check(found, parameters)

    def _check(
        self, found: PosteriorDraws, parameters: Sequence[Draws]
    ) -> tuple[dict[str, Any], xr.DataTree]:
        """Compare noisy counts of outcomes, and the last sums, with those that the
        posterior predicts.
        """
        last = len(found.places) - 1
        places = found.places[np.linspace(0, last, PREDICTED).astype(int)]
        step = ROUND.format(NAMES["scores"], len(self.sums.rounds))
        noisy = {
            self.sums.counts_step: self.sums.counts[self.sums.is_outcome],
            step: self.sums.scores,
        }
        simulated = {
            self.sums.counts_step: self.sums.predicted_counts(places),
            step: self.sums.predicted_scores(places),
        }
        posterior = Posterior(
            tree=found.tree,
            released=parameters,
            facts=found.facts,
            independent="convergence" not in found.facts,
        )
        return inspect_statistics(posterior, simulated, noisy)

    def groups(
        self, here: Linearised | None, found: PosteriorDraws
    ) -> Mapping[str, xr.Dataset]:
        space = self.sums.space
        places = by_chain(found, found.places)
        groups = {
            "prior": attempt(prior_group, space),
            "log_prior": attempt(log_prior_group, space, places),
            "observed_data": attempt(self._observed),
        }
        if here is not None:
            groups["log_likelihood"] = attempt(self._log_likelihood, places)
            groups["noisy_statistics"] = attempt(self._predicted, places)
        return {path: group for path, group in groups.items() if group is not None}

    def _observed(self) -> xr.Dataset:
        """Return the noisy numbers, with the law of their noise."""
        sums = self.sums
        law = LAPLACE if sums.laplace else GAUSSIAN
        labels = parameter_labels(sums.space)

        def about(name: str, units: str, deviation: float) -> dict[str, Any]:
            return {
                "long_name": name,
                "units": units,
                "noise": law,
                "standard_deviation": deviation,
            }

        counted = about(sums.counts_step, "records", sums.counts_deviation)
        variables: dict[str, Any] = {COUNTS: ("cell", sums.counts, counted)}
        for number, measured in enumerate(sums.rounds, start=1):
            for kind, noisy in measured.noisy.items():
                step = ROUND.format(NAMES[kind], number)
                deviation = measured.deviations[kind]
                if kind == "scores":
                    told = about(step, "whitened scores", deviation)
                    variables[SCORES.format(number)] = (PARAMETER, noisy, told)
                    continue
                if kind in COUNTED:
                    told = about(step, "records", deviation)
                    variables[kind] = ((), noisy[0], told)
                    continue
                told = about(step, "products of whitened scores", deviation)
                name = SQUARES if kind == "squares" else CURVATURE.format(number)
                matrix = measured.centring.matrix(noisy)
                variables[name] = ((PARAMETER, OTHER), matrix, told)
        coordinates: dict[str, Any] = {
            "cell": [*cell_labels(sums.cells)],
            PARAMETER: labels,
            OTHER: labels,
        }
        facts = {
            "records": sums.n_records,
            "standard_deviation_of_records": float(np.sqrt(sums.n_variance)),
        }
        return xr.Dataset(variables, coordinates, facts)

    def _of_draws(self, values: FloatArray, name: str) -> xr.Dataset:
        step = ROUND.format(NAMES["scores"], len(self.sums.rounds))
        dims = SAMPLE if values.ndim == len(SAMPLE) else (*SAMPLE, PARAMETER)
        coordinates: dict[str, Any] = {
            "chain": np.arange(len(values)),
            "draw": np.arange(values.shape[1]),
        }
        if values.ndim > len(SAMPLE):
            coordinates[PARAMETER] = parameter_labels(self.sums.space)
        return xr.Dataset({name: (dims, values, {"long_name": step})}, coordinates)

    def _log_likelihood(self, places: FloatArray) -> xr.Dataset:
        flat = places.reshape(-1, places.shape[-1])
        logs = self.sums.log_likelihood(flat).reshape(places.shape[:2])
        return self._of_draws(logs, SCORES.format(len(self.sums.rounds)))

    def _predicted(self, places: FloatArray) -> xr.Dataset:
        some = few(places, places.shape[-1])
        flat = some.reshape(-1, some.shape[-1])
        simulated = self.sums.predicted_scores(flat).reshape(some.shape)
        return self._of_draws(simulated, SCORES.format(len(self.sums.rounds)))

    def beside(self, public: Values, n: int, rng: np.random.Generator) -> Values:
        """Return covariates drawn from the pseudo table, beside public ones; numbers
        anywhere in the cells of its rows.
        """
        sums = self.sums
        rows = rng.choice(sums.rows.n, n, p=sums.weights)
        columns = dict(public)
        first = 0
        for name in sums.space.covariates:
            edges = sums.cells.edges[name]
            size = len(edges) - 1
            shares = sums.rows.shares[rows, first : first + size]
            cell = shares.argmax(axis=1)
            first += size
            column = sums.space.columns[name]
            columns[name] = inside_cells(column, edges[cell], edges[cell + 1], rng)
        return columns

    def made_up(self, n: int, rng: np.random.Generator) -> Values:
        sums = self.sums
        values = sums.cells.draw(sums.counts, sums.counts_deviation, n, rng)
        return {name: values[name] for name in sums.space.synthesized}


@dataclass(frozen=True, eq=False)
class PooledAnswers(CentredAnswers):
    """Noisy sums of several releases of a table: posterior and sets are those of all of
    them, and what is published is what the ``fresh`` one was told.
    """

    fresh: CentredSums

    def tables(self) -> dict[str, pd.DataFrame]:
        return CentredAnswers(self.fresh, None).tables()

    def groups(
        self, here: Linearised | None, found: PosteriorDraws
    ) -> Mapping[str, xr.Dataset]:
        groups = {**super().groups(here, found)}
        own = CentredAnswers(self.fresh, None).groups(None, found)
        if "observed_data" in own:
            groups["observed_data"] = own["observed_data"]
        # predictions of the pooled sums, which aren't among the noisy numbers
        groups.pop("noisy_statistics", None)
        return groups


def _names_of(kind: Kind, at: Centring, labels: Sequence[str]) -> list[str]:
    """Return what each sum of a kind is of: a parameter, or two of them."""
    if kind == "scores":
        return [*labels]
    if kind in COUNTED:
        return [COUNTED_RECORDS[kind]]
    rows, columns = at.pairs
    pairs = zip(rows, columns, strict=True)
    return [f"{labels[row]} x {labels[column]}" for row, column in pairs]


def restored_centred(
    space: Blueprint, tables: Mapping[str, pd.DataFrame], public: Values
) -> CentredSums:
    """Return noisy sums as they were published."""
    opening = tables[SUMS].iloc[0]
    rest = tables[SUMS].iloc[1:]
    by_step = {str(step): rows for step, rows in rest.groupby("step", sort=False)}
    first, counted = next(iter(by_step.items()))
    deviation = float(opening["standard_deviation"])
    is_laplace = rest["noise"].eq(LAPLACE).all()
    of_counts = counted["standard_deviation"].iloc[0]
    sums = opened_sums(
        space,
        counted["noisy"].to_numpy(float),
        float(of_counts),
        (float(opening["noisy"]), deviation**2),
        public,
        laplace=bool(is_laplace),
        step=first,
    )
    rounds = []
    if REFERENCES in tables:
        rounds = [*_rounds(by_step, tables[REFERENCES])]
    return sums.with_rounds(rounds)


def _rounds(
    by_step: Mapping[str, pd.DataFrame], references: pd.DataFrame
) -> Iterator[CentredRound]:
    for number, (_, at) in enumerate(references.groupby("step", sort=False), start=1):
        opening = at.iloc[0]
        prefix = WHITENING.format("")
        whitening = at[[name for name in at if str(name).startswith(prefix)]]
        names = ("place", "radius", CURVATURE_RADIUS)
        arrays = {name: opening[name] for name in names}
        arrays["place"] = at["place"].to_numpy(float)
        arrays["whitening"] = whitening.to_numpy(float)
        centring = Centring.read(arrays, opening["norm"])
        noisy = dict[Kind, FloatArray]()
        deviations = dict[Kind, float]()
        for kind in KINDS:
            rows = by_step.get(ROUND.format(NAMES[kind], number))
            if rows is not None:
                noisy[kind] = rows["noisy"].to_numpy(float)
                deviations[kind] = float(rows["standard_deviation"].iloc[0])
        yield CentredRound(centring, noisy, deviations)
