"""Section 5 of Hu et al. (2022): a number on public covariates by beta regression;
table 2 on a table of one's own.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.convergence import converged
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.posterior.censoring import Censored
from pdips.posterior.columns import record_values
from pdips.posterior.finished_model import censor
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.posterior.nuts import sample
from pdips.posterior.pseudo_posterior import linear_weights, lipschitz_bound, weighted_e
from pdips.posterior.streams import draws_by_name
from pdips.registry import find
from pdips.report.formats import number
from pdips_papers.harness import study
from pdips_papers.harness.printed import figures
from pdips_papers.pseudo import synthesizers as synth

MOST_RECORDS = 2_000
"""Of a larger table each replicate takes as many records at random; the paper's has
1,601.
"""

TRUE = "True ϵ"
RHAT = "R-hat"
KEPT = "Sets released"
SALARY_ROWS = (
    "Lipschitz",
    "Privacy",
    "max-ECDF",
    "avg-ECDF",
    "Mean",
    "Median",
    "15th Q",
    "90th Q",
)
SALARY = figures("salary", "columns")
"""Table 2, by column: 1,601 mathematicians and statisticians of the Survey of Doctoral
Recipients, epsilon 5.
"""

PRINTED = ("Lipschitz", "Privacy", TRUE, *SALARY_ROWS[2:])
CHAINS = 2
DRAWS = 500
TUNE = 500
"""Of each published fit: S = 1,000 draws, as in the simulations."""

ORDER = (
    synth.CONFIDENTIAL,
    synth.UNWEIGHTED,
    synth.WEIGHTED,
    synth.WEIGHTED_E,
    synth.CENSOR_W,
    synth.CENSOR_UW,
    *synth.PHS,
    *synth.STAGED,
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a synthesizer made."""

    column: str
    synthetic: FloatArray | None
    bound: float | None = None
    claimed: float | None = None
    true: float | None = None
    rhat: float | None = None


class Salary(study.Study):
    """``pdips study salary``."""

    name: ClassVar[str] = "salary"
    title: ClassVar[str] = (
        "One number by beta regression on public columns: table 2 of Hu et al. (2022)"
    )
    default_replicates: ClassVar[int] = 4
    data: ClassVar[study.Data] = "required"
    needs: ClassVar[str] = (
        ", a .csv or .parquet file with its schema T.toml beside it: one "
        "confidential number and public columns, "
        "as examples/earnings.parquet of the source has"
    )

    def tasks(self, options: study.Options) -> list[study.Task]:
        """Return one task for each replicate. Reads the table, to refuse a wrong
        one.
        """
        path = Path(str(options.data))
        schema = _schema(path)
        _load(str(path))
        if options.epsilons:
            raise InputError(
                "study salary has the paper's epsilon, 5, and takes no --epsilon"
            )
        digest = hashlib.sha256(schema.to_toml().encode()).hexdigest()
        arguments = {"data": str(path), "schema": digest}
        return [
            study.Task(key=f"replicate={number:03}", arguments=arguments)
            for number in range(options.replicates)
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Synthesize the table, or records of it taken at random, by every form."""
        rng = np.random.default_rng(seed)
        table = subsample(_load(arguments["data"]), rng)
        y = table.frame[confidential_column(table.schema)].to_numpy(dtype=np.float64)
        answers = [Answer(column=synth.CONFIDENTIAL, synthetic=y)]
        answers += PublishedRegressions(table, rng).all()
        answers += sound_answers(table, rng)
        return [row for answer in answers for row in answered(y, answer)]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return means over replicates, beside the paper's figures of its own table."""
        paper = {}
        for column, values in SALARY.items():
            for row, value in zip(SALARY_ROWS, values, strict=True):
                if np.isnan(value):
                    continue
                paper[row, column] = value
                if column == synth.PH:
                    paper[row, synth.PH_LN] = value
        return study.summarise(measurements, paper)[list(study.COLUMNS)]

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Return table 2 with rows and columns as in the paper."""
        unit = {"Privacy": "Privacy ϵ, claimed", TRUE: "ϵ, true; a dash for none"}
        rows = {row: unit.get(row, row) for row in PRINTED}
        columns = {column: column for column in ORDER}
        title = (
            "Table 2. The paper's figures are of its own table: 1,601 salaries "
            "in dollars a year"
        )
        checks = {row: row for row in (RHAT, KEPT) if row in set(table["row"])}
        more = "Chains: the worst R-hat, and share of sets that were released"
        return [
            study.Block(title=title, rows=rows, columns=columns),
            study.Block(title=more, rows=checks, columns=columns, headline=False),
        ]

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Compare the paper's claims with what was found."""
        return claims.judge(study.Figures(table))


def _schema(path: Path) -> Schema:
    schema = study.schema_beside(path, "salary")
    confidential_column(schema)
    return schema


@lru_cache(maxsize=1)
def _load(path: str) -> Table:
    return Table.read(path, _schema(Path(path)))


def subsample(table: Table, rng: np.random.Generator) -> Table:
    """Return ``MOST_RECORDS`` of a table, taken at random without replacement; the
    table itself if it has no more.
    """
    if table.n_records <= MOST_RECORDS:
        return table
    rows = np.sort(rng.choice(table.n_records, size=MOST_RECORDS, replace=False))
    return Table(table.frame.iloc[rows].reset_index(drop=True), table.schema)


def answered(y: np.ndarray, answer: Answer) -> list[dict[str, Any]]:
    """Return what is said of one synthetic set, of the rows of table 2."""
    stated = {
        "Lipschitz": answer.bound,
        "Privacy": answer.claimed,
        TRUE: answer.true,
        RHAT: answer.rhat,
    }
    found = {row: float(value) for row, value in stated.items() if value is not None}
    synthetic = answer.synthetic
    if answer.column in synth.STAGED:
        found[KEPT] = float(synthetic is not None)
    if synthetic is not None:
        if answer.column != synth.CONFIDENTIAL:
            largest, average = synth.ecdf_distances(y, synthetic)
            found |= {"max-ECDF": largest, "avg-ECDF": average}
        found["Mean"] = float(synthetic.mean())
        low, middle, high = np.quantile(synthetic, [0.15, 0.5, 0.9]).tolist()
        found |= {"Median": middle, "15th Q": low, "90th Q": high}
    return [
        {"row": row, "column": answer.column, "value": value}
        for row, value in found.items()
    ]


def confidential_column(schema: Schema) -> str:
    """Return the column to synthesize: one number, beside public columns."""
    names = [name for name, column in schema.columns.items() if not column.public]
    columns = [schema.columns[name] for name in names]
    is_numeric = not any(column.is_categorical or column.integer for column in columns)
    if len(names) != 1 or not is_numeric or not schema.public_columns:
        raise InputError(
            "study salary needs a schema with one confidential column, a number that "
            "isn't integer, and public "
            f"columns; confidential in this one: {', '.join(names) or 'none'}"
        )
    return names[0]


class PublishedRegressions:
    """The published forms of one table: fits by NUTS of one model, compiled once, that
    differ in weights and window.

    Log-likelihoods are those of the number scaled to [0, 1] by its public bounds, as in
    the paper.
    """

    def __init__(self, table: Table, rng: np.random.Generator) -> None:
        self._table = table
        self._rng = rng
        self._name = confidential_column(table.schema)
        column = table.schema.columns[self._name]
        self._lower = float(column.lower or 0)
        self._upper = float(column.upper or 0)
        self._centre = -math.log(self._upper - self._lower)

    @cached_property
    def _blueprint(self) -> Blueprint:
        return Blueprint(as_source("beta_regression"), self._table.schema)

    @cached_property
    def _censored(self) -> Censored:
        model = self._blueprint.build(record_values(self._table))
        return censor(model, window=math.inf, centre=self._centre)

    def refit(
        self, weights: FloatArray, window: float
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return the largest log-likelihoods, shape (records,), a synthetic set from
        one draw, and the worst R-hat.
        """
        self._censored.update(weights=weights, window=window)
        tree = sample(
            self._censored, rng=self._rng, chains=CHAINS, draws=DRAWS, tune=TUNE
        )
        posterior = tree["posterior"].to_dataset()
        logs = self._censored.log_likelihood(draws_by_name(tree))
        largest = np.abs(logs - self._centre).max(axis=0)
        place = {
            dim: int(self._rng.integers(posterior.sizes[dim]))
            for dim in ("chain", "draw")
        }
        one = posterior.isel(place)
        names = [variable.name for variable in self._blueprint.model.free_RVs]
        values = {name: one[name].to_numpy() for name in names}
        return largest, self._drawn(values), max(converged(tree).rhat.values())

    def _drawn(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        public = record_values(self._table, self._table.schema.public_columns)
        n_records = self._table.n_records
        columns = self._blueprint.draw(values, n_records, public, self._rng)
        drawn = np.asarray(columns[self._name], dtype=np.float64)
        return np.clip(drawn, self._lower, self._upper)

    def all(self) -> Iterator[Answer]:
        """Make the posterior without privacy and the four published forms."""
        ones = np.ones(self._table.n_records)
        window = synth.EPSILON / 2
        risks, synthetic, rhat = self.refit(ones, math.inf)
        yield Answer(
            column=synth.UNWEIGHTED,
            synthetic=synthetic,
            bound=float(risks.max()),
            rhat=rhat,
        )
        alpha = linear_weights(risks)
        dropped = weighted_e(alpha, risks, synth.EPSILON)
        yield self._answer(synth.WEIGHTED, alpha, math.inf)
        yield self._answer(synth.WEIGHTED_E, dropped, math.inf)
        yield self._answer(synth.CENSOR_W, alpha, window)
        yield self._answer(synth.CENSOR_UW, ones, window)

    def _answer(self, column: str, weights: FloatArray, window: float) -> Answer:
        largest, synthetic, rhat = self.refit(weights, window)
        bound = min(lipschitz_bound(weights, largest), window)
        claimed = 2 * bound if math.isinf(window) else float(synth.EPSILON)
        true = 2.0 * synth.EPSILON if column == synth.CENSOR_UW else None
        return Answer(
            column=column,
            synthetic=synthetic,
            bound=bound,
            claimed=claimed,
            true=true,
            rhat=rhat,
        )


def sound_answers(table: Table, rng: np.random.Generator) -> Iterator[Answer]:
    """Make the perturbed histogram of the number alone, and our default at the paper's
    target and at 1.
    """
    name = confidential_column(table.schema)
    column = table.schema.columns[name]
    lower = float(column.lower or 0)
    upper = float(column.upper or 0)
    for form in synth.PHS:
        schema = synth.binned_schema(name, lower, upper, table.n_records, form)
        histogram = find("perturbed-histogram")(epsilon=synth.EPSILON)
        release, _ = histogram.release(Table(table.frame[[name]], schema), rng=rng)
        yield Answer(
            column=form,
            synthetic=release.sets[0][name].to_numpy(dtype=np.float64),
            claimed=synth.EPSILON,
            true=synth.EPSILON,
        )
    for label, epsilon in synth.STAGED.items():
        mechanism = find("censored-posterior")(
            epsilon=epsilon, model="beta_regression", draws=DRAWS, tune=TUNE
        )
        try:
            release, _ = mechanism.release(table, rng=rng)
            synthetic = release.sets[0][name].to_numpy(dtype=np.float64)
        except RefusedError:
            synthetic = None
        yield Answer(column=label, synthetic=synthetic, claimed=epsilon, true=epsilon)


# What section 5 says of them.

RANKED = SALARY_ROWS[2:]
claims: study.Claims[study.Figures] = study.Claims("salary")


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{column} {number(value)}" for column, value in values.items())


@claims
def _application_bounds(seen: study.Figures) -> study.Said:
    bounds = {column: seen.at("Lipschitz", column) for column in synth.CLAIMING}
    target = synth.EPSILON / 2
    least = min(bounds[synth.WEIGHTED], bounds[synth.WEIGHTED_E])
    judged = study.PARTLY if least > target else study.FAILS
    return study.say(judged, bounds=_text(bounds), target=number(target))


@claims
def _order(seen: study.Figures) -> study.Said:
    def off(row: str, column: str) -> float:
        value = seen.at(row, column)
        if "ECDF" in row:
            return value
        return abs(value - seen.at(row, synth.CONFIDENTIAL))

    totals = dict.fromkeys((*synth.CLAIMING, synth.PH), 0.0)
    for row in RANKED:
        distances = {column: off(row, column) for column in totals}
        for column, distance in distances.items():
            totals[column] += sum(other <= distance for other in distances.values())
    best = sorted(totals, key=lambda column: totals[column])
    wanted = [synth.WEIGHTED, synth.WEIGHTED_E, synth.CENSOR_W]
    text = f"Sum of ranks over the six utility rows: {_text(totals)}."
    judged = [ours == theirs for ours, theirs in zip(best, wanted, strict=False)]
    return text, judged


@claims
def _inferior(seen: study.Figures) -> study.Said:
    columns = (*synth.CLAIMING, *synth.PHS)
    values = {column: seen.at("max-ECDF", column) for column in columns}
    weighted = (synth.WEIGHTED, synth.WEIGHTED_E, synth.CENSOR_W)
    others = max(values[column] for column in weighted)
    judged = [values[column] > others for column in (synth.CENSOR_UW, *synth.PHS)]
    return study.say(judged, values=_text(values))


@claims
def _ours(seen: study.Figures) -> study.Said:
    staged = {column: seen.at("max-ECDF", column) for column in synth.STAGED}
    published = min(seen.at("max-ECDF", column) for column in synth.CLAIMING)
    return study.say(
        [value <= published for value in staged.values()],
        staged=_text(staged),
        published=number(published),
    )
