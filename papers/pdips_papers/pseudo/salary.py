"""Section 5 of Hu et al. (2022): a number on public covariates by beta regression; table 2 on a table of one's own."""

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
from pdips.posterior.finished_model import censor, draws_by_name
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.posterior.nuts import sample
from pdips.posterior.pseudo_posterior import linear_weights, lipschitz_bound, weighted_e
from pdips.registry import find
from pdips.report.formats import number
from pdips_papers.harness import study
from pdips_papers.harness.printed import figures
from pdips_papers.pseudo import synthesizers as synth

MOST_RECORDS = 2_000
"""Of a larger table each replicate takes as many records at random; the paper's has 1,601."""

TRUE, RHAT, KEPT = "True ϵ", "R-hat", "Sets released"
SALARY_ROWS = ("Lipschitz", "Privacy", "max-ECDF", "avg-ECDF", "Mean", "Median", "15th Q", "90th Q")
SALARY = figures("salary", "columns")
"""Table 2, by column: 1,601 mathematicians and statisticians of the Survey of Doctoral Recipients, epsilon 5."""

PRINTED = ("Lipschitz", "Privacy", TRUE, *SALARY_ROWS[2:])
CHAINS, DRAWS, TUNE = 2, 500, 500
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
    title: ClassVar[str] = "One number by beta regression on public columns: table 2 of Hu et al. (2022)"
    default_replicates: ClassVar[int] = 4
    data: ClassVar[study.Data] = "required"
    needs: ClassVar[str] = (
        ", a .csv or .parquet file with its schema T.toml beside it: one confidential number and public columns, "
        "as examples/earnings.parquet of the source has"
    )

    def tasks(self, options: study.Options) -> list[study.Task]:
        """Return one task for each replicate. Reads the table, to refuse a wrong one."""
        path = Path(str(options.data))
        schema = _schema(path)
        _load(str(path))
        if options.epsilons:
            raise InputError("study salary has the paper's epsilon, 5, and takes no --epsilon")
        arguments = {"data": str(path), "schema": hashlib.sha256(schema.to_toml().encode()).hexdigest()}
        return [study.Task(key=f"replicate={number:03}", arguments=arguments) for number in range(options.replicates)]

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
        paper = {
            (row, column): value
            for column, values in SALARY.items()
            for row, value in zip(SALARY_ROWS, values, strict=True)
            if not np.isnan(value)
        }
        paper |= {(row, synth.PH_LN): value for (row, column), value in paper.items() if column == synth.PH}
        return study.summarise(measurements, paper)[list(study.COLUMNS)]

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Return table 2 with rows and columns as in the paper."""
        unit = {"Privacy": "Privacy ϵ, claimed", TRUE: "ϵ, true; a dash for none"}
        rows = {row: unit.get(row, row) for row in PRINTED}
        columns = {column: column for column in ORDER}
        title = "Table 2. The paper's figures are of its own table: 1,601 salaries in dollars a year"
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
    """Return ``MOST_RECORDS`` of a table, taken at random without replacement; the table itself if it has no more."""
    if table.n_records <= MOST_RECORDS:
        return table
    rows = np.sort(rng.choice(table.n_records, size=MOST_RECORDS, replace=False))
    return Table(table.frame.iloc[rows].reset_index(drop=True), table.schema)


def answered(y: np.ndarray, answer: Answer) -> list[dict[str, Any]]:
    """Return what is said of one synthetic set, of the rows of table 2."""
    stated = {"Lipschitz": answer.bound, "Privacy": answer.claimed, TRUE: answer.true, RHAT: answer.rhat}
    found = {row: float(value) for row, value in stated.items() if value is not None}
    if answer.column in synth.STAGED:
        found[KEPT] = float(answer.synthetic is not None)
    if answer.synthetic is not None:
        if answer.column != synth.CONFIDENTIAL:
            found["max-ECDF"], found["avg-ECDF"] = synth.ecdf_distances(y, answer.synthetic)
        found["Mean"] = float(answer.synthetic.mean())
        low, middle, high = np.quantile(answer.synthetic, [0.15, 0.5, 0.9])
        found |= {"Median": float(middle), "15th Q": float(low), "90th Q": float(high)}
    return [{"row": row, "column": answer.column, "value": value} for row, value in found.items()]


def confidential_column(schema: Schema) -> str:
    """Return the column to synthesize: one number, beside public columns."""
    names = [name for name, column in schema.columns.items() if not column.public]
    numeric = [name for name in names if not schema.columns[name].is_categorical and not schema.columns[name].integer]
    if len(names) != 1 or numeric != names or not schema.public_columns:
        raise InputError(
            "study salary needs a schema with one confidential column, a number that isn't integer, and public "
            f"columns; confidential in this one: {', '.join(names) or 'none'}"
        )
    return names[0]


class PublishedRegressions:
    """The published forms of one table: fits by NUTS of one model, compiled once, that differ in weights and window.

    Log-likelihoods are those of the number scaled to [0, 1] by its public bounds, as in the paper.
    """

    def __init__(self, table: Table, rng: np.random.Generator) -> None:
        self._table, self._rng = table, rng
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
        tree = sample(self._censored, rng=self._rng, chains=CHAINS, draws=DRAWS, tune=TUNE)
        posterior = tree["posterior"].to_dataset()
        largest = np.abs(self._censored.log_likelihood(draws_by_name(tree)) - self._centre).max(axis=0)
        chain, draw = (int(self._rng.integers(posterior.sizes[each])) for each in ("chain", "draw"))
        one = posterior.isel(chain=chain, draw=draw)
        values = {rv.name: one[rv.name].to_numpy() for rv in self._blueprint.model.free_RVs}
        return largest, self._drawn(values), max(converged(tree).rhat.values())

    def _drawn(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        public = record_values(self._table, self._table.schema.public_columns)
        drawn = self._blueprint.draw(values, self._table.n_records, public, self._rng)[self._name]
        return np.clip(np.asarray(drawn, dtype=np.float64), self._lower, self._upper)

    def all(self) -> Iterator[Answer]:
        """Make the posterior without privacy and the four published forms."""
        ones, window = np.ones(self._table.n_records), synth.EPSILON / 2
        risks, synthetic, rhat = self.refit(ones, math.inf)
        yield Answer(column=synth.UNWEIGHTED, synthetic=synthetic, bound=float(risks.max()), rhat=rhat)
        alpha = linear_weights(risks)
        dropped = weighted_e(alpha, risks, synth.EPSILON)
        for column, weights, half in (
            (synth.WEIGHTED, alpha, math.inf),
            (synth.WEIGHTED_E, dropped, math.inf),
            (synth.CENSOR_W, alpha, window),
            (synth.CENSOR_UW, ones, window),
        ):
            largest, synthetic, rhat = self.refit(weights, half)
            bound = min(lipschitz_bound(weights, largest), half)
            claimed = 2 * bound if math.isinf(half) else float(synth.EPSILON)
            true = 2.0 * synth.EPSILON if column == synth.CENSOR_UW else None
            yield Answer(column=column, synthetic=synthetic, bound=bound, claimed=claimed, true=true, rhat=rhat)


def sound_answers(table: Table, rng: np.random.Generator) -> Iterator[Answer]:
    """Make the perturbed histogram of the number alone, and our default at the paper's target and at 1."""
    name = confidential_column(table.schema)
    column = table.schema.columns[name]
    for form in synth.PHS:
        alone = synth.binned_schema(name, float(column.lower or 0), float(column.upper or 0), table.n_records, form)
        histogram, _ = find("perturbed-histogram")(epsilon=synth.EPSILON).release(
            Table(table.frame[[name]], alone), rng=rng
        )
        yield Answer(
            column=form,
            synthetic=histogram.sets[0][name].to_numpy(dtype=np.float64),
            claimed=synth.EPSILON,
            true=synth.EPSILON,
        )
    for label, epsilon in synth.STAGED.items():
        mechanism = find("censored-posterior")(epsilon=epsilon, model="beta_regression", draws=DRAWS, tune=TUNE)
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
    bounds, target = {column: seen.at("Lipschitz", column) for column in synth.CLAIMING}, synth.EPSILON / 2
    judged = study.PARTLY if min(bounds[synth.WEIGHTED], bounds[synth.WEIGHTED_E]) > target else study.FAILS
    return study.say(judged, bounds=_text(bounds), target=number(target))


@claims
def _order(seen: study.Figures) -> study.Said:
    def off(row: str, column: str) -> float:
        return seen.at(row, column) if "ECDF" in row else abs(seen.at(row, column) - seen.at(row, synth.CONFIDENTIAL))

    columns = (*synth.CLAIMING, synth.PH)
    totals = {
        column: float(sum(off(row, other) <= off(row, column) for other in columns for row in RANKED))
        for column in columns
    }
    best = sorted(totals, key=lambda column: totals[column])
    text = f"Sum of ranks over the six utility rows: {_text(totals)}."
    return text, [
        best[place] == wanted for place, wanted in enumerate((synth.WEIGHTED, synth.WEIGHTED_E, synth.CENSOR_W))
    ]


@claims
def _inferior(seen: study.Figures) -> study.Said:
    values = {column: seen.at("max-ECDF", column) for column in (*synth.CLAIMING, *synth.PHS)}
    others = max(values[column] for column in (synth.WEIGHTED, synth.WEIGHTED_E, synth.CENSOR_W))
    return study.say([values[column] > others for column in (synth.CENSOR_UW, *synth.PHS)], values=_text(values))


@claims
def _ours(seen: study.Figures) -> study.Said:
    staged = {column: seen.at("max-ECDF", column) for column in synth.STAGED}
    published = min(seen.at("max-ECDF", column) for column in synth.CLAIMING)
    return study.say(
        [value <= published for value in staged.values()], staged=_text(staged), published=number(published)
    )
