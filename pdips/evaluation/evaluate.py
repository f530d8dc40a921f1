"""General utility: every measure on every synthetic set, and on a resample of the table. For inside use only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.coding import numbers
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.deciles import cut
from pdips.evaluation.ecdf import ecdf_distances
from pdips.evaluation.k_marginal import k_marginal
from pdips.evaluation.margins import k_way
from pdips.evaluation.pmse import standardised_pmse
from pdips.evaluation.propensity import Scores, specks
from pdips.evaluation.wasserstein import wasserstein_randomization
from pdips.privacy.curator import Clock

SEED = 0
SPLITS = 100
"""Random re-splits of the Wasserstein randomization."""
MARGINAL = 3
MOST_MARGINS = 1_000
"""Sets of columns that are looked at, drawn at random where there are more: the same for every set."""
WORST = 5
BEST = {f"{MARGINAL}-marginal score": 1000.0}
"""What equal tables score, where it isn't 0."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure on all sets.

    Attributes
    ----------
    name : str
    reading : str
        What its ends mean.
    by_set : tuple of float
        One a set; empty if it can't be worked out.
    mean : float or None
        Over the sets.
    reference : float or None
        The same for records drawn with replacement from the table itself, as many as it has.
    weighted : bool
        Whether records were weighted.
    reason : str or None
        Why it can't be worked out.
    detail : dict
        More of it, for machines.
    best : float
        What equal tables score.
    picture : dict or None
        What its picture needs: shares, never a record.
    """

    name: str
    reading: str
    by_set: tuple[float, ...] = ()
    mean: float | None = None
    reference: float | None = None
    weighted: bool = False
    reason: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    best: float = 0.0
    picture: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return it as plain values, without the picture."""
        found = {**asdict(self), "by_set": list(self.by_set)}
        del found["picture"]
        return found


Figures = dict[str, float]
Job = tuple[Mapping[str, str], bool, Callable[[], tuple[list[Figures], Mapping[str, Any]]]]


def resample(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return as many records drawn with replacement: about as good as synthesis can get."""
    rows = rng.integers(table.n_records, size=table.n_records)
    return table.frame.iloc[rows].reset_index(drop=True)


def general_utility(table: Table, sets: Sequence[pd.DataFrame], clock: Clock | None = None) -> list[Measure]:
    """Measure synthetic sets against the table that they were made from.

    Parameters
    ----------
    table : Table
        The confidential table, not counted.
    sets : sequence of DataFrame
        Synthetic sets of its schema.
    clock : Clock, optional
        Times the measures.

    Returns
    -------
    list of Measure
        SPECKS, pMSE and its ratio to the null, the 3-marginal score, max-ECDF and avg-ECDF (means over columns), total
        variation of one-, two- and three-way margins (means and largest), Wasserstein randomization. One that can't be
        worked out on this schema says why.

    Raises
    ------
    InputError
        If there is no set, or the table is counted.

    Notes
    -----
    Margins and ECDF are weighted where the schema names weights. The resample and the re-splits have a fixed seed, so
    that a second run gives the same figures.
    """
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    if table.counts is not None:
        raise InputError("an evaluation reads records one by one: read the table with counted=False")
    clock = clock or Clock()
    found = []
    for name, (readings, weighted, job) in _jobs(table, sets).items():
        with clock.step(name):
            found += _measured(readings, weighted, job)
    return found


def _jobs(table: Table, sets: Sequence[pd.DataFrame]) -> dict[str, Job]:
    """Return the groups of measures that are worked out together; the last of each one's figures is the reference."""
    weighted = table.schema.records.weight is not None
    every = [*sets, resample(table, np.random.default_rng(SEED))]
    whole = cut(table)
    plain = _Plain(table, every)
    jobs: dict[str, Job] = {
        "SPECKS": ({"SPECKS": "0 can't be told apart, 1 wholly apart"}, False, lambda: _specks(whole, every)),
        "pMSE": (
            {"pMSE": "0 can't be told apart", "pMSE over its null": "about 1 for a right model"},
            False,
            lambda: ([_pmse(*pair) for pair in plain.pairs()], {}),
        ),
        f"{MARGINAL}-marginals": (
            {f"{MARGINAL}-marginal score": "1000 equal, 0 disjoint"},
            False,
            lambda: ([_marginal(*pair) for pair in plain.pairs()], {}),
        ),
        "ECDF": (
            {"max-ECDF": "0 equal, 1 disjoint", "avg-ECDF": "0 equal, 1 disjoint"},
            weighted,
            lambda: _ecdf(table, every, weighted),
        ),
        "Wasserstein randomization": (
            {"Wasserstein ratio": "0 equal, about 1 two samples of one population"},
            False,
            lambda: ([_wasserstein(*pair) for pair in plain.pairs()], {"re-splits": SPLITS}),
        ),
    }
    for k in (1, 2, 3):
        words = {f"TVD of {k}-way margins": "0 equal, 1 disjoint", f"TVD of {k}-way margins, largest": "0 equal"}
        jobs[f"{k}-way margins"] = (words, weighted, lambda k=k: _margins(whole, every, k, weighted))  # type: ignore[misc]
    return jobs


def _measured(readings: Mapping[str, str], weighted: bool, job: Callable[[], Any]) -> list[Measure]:
    try:
        figures, detail = job()
    except InputError as error:
        return [
            Measure(name=name, reading=reading, reason=str(error), best=BEST.get(name, 0.0))
            for name, reading in readings.items()
        ]
    picture = detail.get("picture")
    detail = {key: value for key, value in detail.items() if key != "picture"}
    return [
        Measure(
            name=name,
            reading=reading,
            by_set=tuple(one[name] for one in figures[:-1]),
            mean=float(np.mean([one[name] for one in figures[:-1]])),
            reference=figures[-1][name],
            weighted=weighted,
            detail=detail,
            best=BEST.get(name, 0.0),
            picture=picture,
        )
        for name, reading in readings.items()
    ]


class _Plain:
    """The table and the sets as frames without codes for missing: numbers, and names of levels."""

    def __init__(self, table: Table, every: Sequence[pd.DataFrame]) -> None:
        self._table, self._every = table, every
        self._framed: list[pd.DataFrame] | None = None

    def pairs(self) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
        if self._framed is None:
            self._framed = [self._frame(frame) for frame in (self._table.frame, *self._every)]
        first, *others = self._framed
        return [(first, other) for other in others]

    def _frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        if not len(frame):
            raise InputError("a set has no records")
        schema = self._table.schema
        plain = schema.without_person().model_copy(update={"impossible": ()})
        codes = Table(frame[list(schema.columns)], plain).codes
        return pd.DataFrame(
            {
                name: numbers(name, frame[name], column)
                if column.levels is None
                else np.array(column.names(), dtype=object)[codes[name]]
                for name, column in schema.columns.items()
            }
        )


def _specks(table: Table, every: Sequence[pd.DataFrame]) -> tuple[list[Figures], Mapping[str, Any]]:
    rng = np.random.default_rng(SEED)
    classifier = "logistic"
    try:
        found = specks(table, every, classifier=classifier, rng=rng)
    except InputError:  # too many coefficients
        classifier = "main-effects"
        found = specks(table, every, classifier=classifier, rng=rng)
    figures = [{"SPECKS": value} for value in found.by_set]
    return figures, {"classifier": classifier, "picture": _spread(found.scores[:-1], classifier)}


def _spread(scores: Sequence[Scores], classifier: str) -> Mapping[str, Any] | None:
    """Return the scores of the sets, averaged cell by cell; those of the resample are left out."""
    if not scores:
        return None
    return {
        "classifier": classifier,
        "table": np.mean([one.table for one in scores], axis=0).tolist(),
        "sets": np.mean([one.synthetic for one in scores], axis=0).tolist(),
        "distance": [one.distance for one in scores],
        "at": [one.at for one in scores],
    }


def _pmse(original: pd.DataFrame, other: pd.DataFrame) -> Figures:
    found = standardised_pmse(original, other)
    return {"pMSE": found.pmse, "pMSE over its null": found.ratio}


def _marginal(original: pd.DataFrame, other: pd.DataFrame) -> Figures:
    k = min(MARGINAL, original.shape[1])
    found = k_marginal(original, other, k, n_draws=MOST_MARGINS, rng=np.random.default_rng(SEED))
    return {f"{MARGINAL}-marginal score": found.score}


def _wasserstein(original: pd.DataFrame, other: pd.DataFrame) -> Figures:
    rng = np.random.default_rng(SEED)
    found = wasserstein_randomization(original, other, distance="columns", n_permutations=SPLITS, rng=rng)
    return {"Wasserstein ratio": found.ratio}


def _ecdf(table: Table, every: Sequence[pd.DataFrame], weighted: bool) -> tuple[list[Figures], Mapping[str, Any]]:
    found = [ecdf_distances(table, frame, weighted=weighted) for frame in every]
    figures = [
        {"max-ECDF": float(np.mean([*one.largest.values()])), "avg-ECDF": float(np.mean([*one.average.values()]))}
        for one in found
    ]
    by_column = {
        name: {
            "largest": float(np.mean([one.largest[name] for one in found[:-1]])),
            "average": float(np.mean([one.average[name] for one in found[:-1]])),
        }
        for name in table.schema.columns
    }
    return figures, {"by_column": by_column}


def _margins(
    table: Table, every: Sequence[pd.DataFrame], k: int, weighted: bool
) -> tuple[list[Figures], Mapping[str, Any]]:
    found = [
        k_way(table, [frame], k, weighted=weighted, n_draws=MOST_MARGINS, rng=np.random.default_rng(SEED))
        for frame in every
    ]
    name = f"TVD of {k}-way margins"
    figures = [{name: one["mean"], f"{name}, largest": one["max"]} for one in found]
    apart = {
        columns: float(np.mean([one["by_margin"][columns] for one in found[:-1]])) for columns in found[0]["by_margin"]
    }
    worst = sorted(apart, key=lambda columns: -apart[columns])[:WORST]
    return figures, {"furthest": [{"columns": list(columns), "distance": apart[columns]} for columns in worst]}
