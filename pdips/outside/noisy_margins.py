"""What an analyst can do with a public folder alone: estimates and intervals from noisy margins; post-processing."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from scipy.special import expit

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema, read_formula, terms_of
from pdips.data.table import Table
from pdips.errors import InputError, UselessWarning
from pdips.margins.domain import columns_of
from pdips.margins.estimates import NoisyPairs, pooled
from pdips.margins.residuals import ResidualDesign
from pdips.margins.sums import PRODUCTS, NoisyProducts
from pdips.outside.answer import Answer
from pdips.outside.regression import (
    LEAST_COUNT,
    OPEN,
    Chosen,
    Target,
    TermTable,
    crossed,
    grouped,
    joint,
    least_squares,
    maximum,
    posterior,
    read_interactions,
    solved,
    sums,
)
from pdips.privacy.loss import Neighbours, choice
from pdips.registry import find
from pdips.release import VERSION
from pdips.release.documents import PrivacyDocument
from pdips.release.folder import read_tables
from pdips.release.noisy_margins import (
    MeasuredMargin,
    known_margin,
    noise_variance,
    unstacked,
    with_groups,
    with_product,
)
from pdips.release.release import Release

N_REPLICATES = 1_000  # Fresh draws of the noise: a standard error from them is off by about 2 %
MOST_FITTED = 20_000  # Cells of the predictors of a generalized linear model
N_LAWS = 200  # Fresh draws of the noise for its covariance, where a prior is needed


@dataclass(frozen=True, eq=False)
class NoisyMargins:
    """The noisy counts of a release, as data with a known law of noise: what they say of columns and pairs of them.

    They are pooled by generalised least squares (:func:`pdips.margins.pairs.pooled`).

    Parameters
    ----------
    schema : Schema
        Of the release.
    design : ResidualDesign
        What was measured.
    found : NoisyPairs
        Unbiased estimates of all pairs of levels.
    estimated : tuple of str
        Numeric columns without bins, whose counts of intervals were worked out from finer ones, and aren't unbiased.
    margins : tuple of MeasuredMargin
        The noisy counts one by one, each with the law of its noise.
    moments : NoisyProducts, optional
        Noisy sums of products of some columns, as ``pairs`` measures with ``products``.

    Examples
    --------
    >>> schema = Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "ab"}})
    >>> table = Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1] * 100}), schema)
    >>> release, _ = Pairs(epsilon=1_000).release(table)
    >>> NoisyMargins.of(release).share(["a"]).summary()["estimate"].round(2).tolist()
    [0.5, 0.5]
    """

    schema: Schema
    design: ResidualDesign
    found: NoisyPairs
    estimated: tuple[str, ...] = ()
    margins: tuple[MeasuredMargin, ...] = ()
    moments: NoisyProducts | None = None

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a public folder.

        Raises
        ------
        InputError
            If it holds no release with noisy margins, or margins that aren't those of its ``privacy.json``; or if its
            laws of noise aren't those that its settings give.
        """
        document, frames = read_tables(folder, "margins", "synthetic_1", "products", "caps")
        if not {"margins", "synthetic_1"} <= {*frames}:
            raise InputError(f"{folder} holds no noisy margins")
        return cls._of(document, frames, frames["synthetic_1"])

    @classmethod
    def of(cls, release: Release) -> Self:
        """Take the margins of a release in memory."""
        if "margins" not in release.tables:
            raise InputError(f"a release of {release.mechanism} holds no noisy margins")
        return cls._of(release.document(), release.tables, release.sets[0])

    @classmethod
    def _of(cls, document: PrivacyDocument, tables: Mapping[str, pd.DataFrame], records: pd.DataFrame) -> Self:
        try:
            measured = unstacked(document.margins, tables["margins"])
        except (KeyError, TypeError, ValueError):  # names or numbers of rows that no release has
            raise InputError("margins and privacy.json don't belong together: one of them was changed") from None
        check_laws(document)
        schema, moments = document.table_schema, None
        n_records = len(records) if document.privacy.neighbours == "replace-one" else None
        if document.mechanism == "pairs" and {"products", "caps"} <= {*tables}:
            made = find(document.mechanism)(**settings_of(document))
            if (asked := made.moments(schema)) is not None:
                moments = NoisyProducts.read(asked, made.plan(schema).named(PRODUCTS), n_records, tables)
        measured, columns = with_groups(measured, schema.columns)
        axes = {axis.columns[0]: axis for each in measured for axis in each.law.axes}
        for name, column in schema.columns.items():
            if not column.is_categorical and not column.is_binned:
                if name not in axes:
                    raise InputError(f"no margin holds {name!r}, a numeric column without bins")
                edges = (*axes[name].lower, float(column.upper or 0.0))
                columns[name] = column.model_copy(update={"bin_edges": edges})
        tied = any(axis.codes for axis in axes.values())
        schema = schema.model_copy(update={"columns": columns, **({} if tied else {"impossible": (), "rule": ()})})
        public = schema.public_columns
        known = Table(records[list(public)], Schema(columns={k: schema.columns[k] for k in public})) if public else None
        cut = tuple(name for name, axis in axes.items() if axis.lower)
        measured += [known_margin(each) for each in schema.known_totals(weighted=False) if each.n_records == n_records]
        found = cls.pooled(schema, document.privacy.neighbours, measured, n_records, known, cut)
        return replace(found, moments=moments)

    @classmethod
    def pooled(
        cls,
        schema: Schema,
        neighbours: Neighbours,
        margins: Sequence[MeasuredMargin],
        n_records: int | None,
        known: Table | None = None,
        estimated: tuple[str, ...] = (),
    ) -> Self:
        """Return what margins of the columns of a schema say, given its public columns and a public number."""
        design = ResidualDesign(columns_of(schema), neighbours, "laplace")
        return cls(schema, design, pooled(design, margins, n_records, known), estimated, tuple(margins))

    def _block(self, column: str) -> int:
        """Return the block that holds a column."""
        if column not in self.design.home:
            raise InputError(f"{column!r} is no column of the release; it has {', '.join(self.design.home)}")
        return self.design.home[column][0]

    def _is_tied(self, column: str) -> bool:
        return len(self.design.blocks[self._block(column)].columns) > 1

    def _levels(self, column: str) -> FloatArray:
        """Return which levels of its block have which level of a column, shape (levels of block, levels)."""
        chosen = self.design.blocks[self._block(column)].levels[:, self.design.home[column][1]]
        return np.equal.outer(chosen, np.arange(self.schema.columns[column].n_levels)).astype(np.float64)

    def _tied(self, group: Sequence[str]) -> "tuple[NoisyMargins, str]":
        """Return what margins say where some columns are one, of all combinations of their levels; and its name."""
        if any(self._is_tied(name) or name in self.estimated for name in group):
            raise InputError(f"{', '.join(group)}: columns without bins, or tied by structural zeros, can't be crossed")
        if self.schema.public_columns:
            raise InputError("a release with public columns answers questions about one column or two")
        margins, columns, name = with_product(self.margins, self.schema.columns, group)
        schema = self.schema.model_copy(update={"columns": columns})
        n_records = None if self.found.total_variance else int(self.found.n_records)
        return self.pooled(schema, self.design.neighbours, margins, n_records, estimated=self.estimated), name

    def _alone(self, columns: Sequence[str]) -> Chosen:
        """Return the pairs of some columns."""
        self_blocks = sorted({self._block(column) for column in columns})
        sizes, starts = self.design.sizes, self.design.offsets
        kept = np.concatenate([np.arange(starts[k], starts[k] + sizes[k]) for k in self_blocks])
        offsets: IntArray = np.concatenate([[0], np.cumsum(sizes[self_blocks])])
        counts, variance = self.found.counts[np.ix_(kept, kept)], self.found.variance[np.ix_(self_blocks, self_blocks)]
        alone = replace(self.found, offsets=offsets, counts=counts, variance=variance)
        if not np.isfinite(alone.variance).all():
            asked = ", ".join(name for column in columns for name in column.split(":"))
            two = "" if any(":" in column for column in columns) else "each two of "
            raise InputError(f"no measured margin holds {two}{asked} together")
        home = {column: self_blocks.index(self._block(column)) for column in columns}
        levels = np.zeros((offsets[-1], sum(self.schema.columns[column].n_levels for column in home)))
        places, start = dict[str, slice](), 0
        for column, block in home.items():
            own = self._levels(column)
            places[column] = slice(start, start + own.shape[1])
            levels[offsets[block] : offsets[block + 1], places[column]] = own
            start += own.shape[1]
        return Chosen(alone, home, places, levels)

    def share(self, columns: Sequence[str] | str, *, target: Target = "population") -> Answer:
        """Return the share of each level of a column, or of each combination of several columns.

        Parameters
        ----------
        columns : str or sequence of str
            One column or more. Every two are known from a release of ``pairs``; more where a margin holds them all.
        target : {"population", "table"}
            Of the population that the table is a random sample of, or of the table itself.

        Returns
        -------
        Answer
            A number for each level, in the order of the schema.

        Raises
        ------
        InputError
            If a column isn't in the release, or no measured margin holds all that are named.
        """
        return self._counted(columns, target, shares=True)

    def total(self, columns: Sequence[str] | str, *, target: Target = "table") -> Answer:
        """Return numbers of records, as :meth:`share` shares; of the population those that a table may expect."""
        return self._counted(columns, target, shares=False)

    def _counted(self, columns: Sequence[str] | str, target: Target, *, shares: bool) -> Answer:
        choice(target, ("table", "population"), "target")
        named = [columns] if isinstance(columns, str) else list(columns)
        if not named or len(set(named)) < len(named):
            raise InputError("name one column, or several that differ")
        if len(named) > 2:
            tied, name = self._tied(named)
            return tied._counted([name], target, shares=shares)
        chosen = self._alone(named)

        def reads(counts: FloatArray, n: FloatArray) -> FloatArray:
            if len(named) == 1:
                found = np.diagonal(counts, axis1=1, axis2=2)
            else:
                found = counts[:, chosen.places[named[0]], chosen.places[named[1]]].reshape(len(counts), -1)
            return found / n[:, None] if shares else found

        centre, _, covariance = chosen.spread(reads, N_REPLICATES)
        if target == "population":
            n = chosen.pairs.n
            p = np.clip(centre if shares else centre / n, 1 / n, 1)  # no cell is without sampling error
            sampling = (np.diag(p) - np.outer(p, p)) / n
            covariance = covariance + (sampling if shares else sampling * n**2)
        names = [self.schema.columns[name].names() for name in named]
        cut = [name for name in named if name in self.estimated]
        basis = f"measured; counts of {', '.join(cut)} estimated, with errors about right" if cut else "measured"
        return Answer(tuple(map(", ".join, product(*names))), centre, covariance, basis)

    def _scores(self, column: str) -> tuple[list[str], FloatArray]:
        """Return the terms that stand for a column, and their values for each of its levels: of a bin its middle."""
        terms, found = terms_of(self.schema, column), self.schema.columns[column]
        if column in self.estimated:
            why = "has no bins, so no value stands for one of its intervals"
            raise InputError(f"{column!r} {why}: fit the sets, or have the products of all columns measured")
        if terms != (column,):
            return list(terms), np.eye(found.n_levels)[:, 1:]
        values = found.levels or [(a + b) / 2 for a, b in pairwise(found.edges)]
        return [column], np.array(values, dtype=np.float64)[:, None]

    def _read(self, formula: str) -> tuple[Chosen, TermTable]:
        """Return the pairs that a formula takes, and its terms in their order."""
        plain, interactions = read_interactions(formula)
        outcome, predictors = read_formula(plain, self.schema)
        margins, terms = self, {name: self._scores(name) for name in [*predictors, outcome]}
        for group in grouped(interactions):
            margins, name = margins._tied(group)
            own = [some for some in interactions if {*some} <= {*group}]
            terms = {name: crossed({one: terms.pop(one) for one in group}, own)} | terms
        *given, last = terms.values()
        return margins._alone(list(terms)), TermTable(given, last)

    def _coordinates(self, columns: Sequence[str]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return contrasts of the cells of some columns, shape (cells, contrasts), their noisy values and variances.

        The noise on orthonormal contrasts is independent: on those of a column, of a pair, and on the sum of all cells.
        """
        chosen = self._alone(columns)
        pairs, counts = chosen.pairs, chosen.counts()[0][0]
        if len(chosen.home) < len(columns) or any(map(self._is_tied, columns)):
            raise InputError("a factor takes columns that differ and that no structural zeros tie together")
        sizes = [self.schema.columns[column].n_levels for column in columns]
        bases = [np.linalg.qr(np.eye(size)[:, 1:] - 1 / size)[0] for size in sizes]
        parts = [(), *((k,) for k in range(len(columns))), *combinations(range(len(columns)), 2)]
        if not pairs.total_variance:
            parts = parts[1:]
        contrasts, seen, variances = list[FloatArray](), list[FloatArray](), list[FloatArray]()
        for part in parts:
            each: FloatArray = np.ones((1, 1))
            for k, basis in enumerate(bases):
                own: FloatArray = basis if k in part else np.ones((len(basis), 1))
                each = np.asarray(np.kron(each, own), dtype=np.float64)
            contrasts.append(each)
            one, other = (columns[part[0]], columns[part[-1]]) if part else (columns[0], columns[0])
            table = counts[chosen.places[one], chosen.places[other]]
            if len(part) < 2:
                found = np.diagonal(table) @ bases[part[0]] if part else np.array([pairs.n_records])
            else:
                found = (bases[part[0]].T @ table @ bases[part[1]]).ravel()
            seen.append(found)
            variance = pairs.variance[chosen.home[one], chosen.home[other]] if part else pairs.total_variance
            variances.append(np.full(len(found), variance))
        return np.hstack(contrasts), np.concatenate(seen), np.concatenate(variances)

    def factor(
        self, columns: Sequence[str], expected: Any, *, target: Target = "population", name: str = "margins"
    ) -> Any:
        """Add what the noisy margins say of some columns to the PyMC model in context: a normal law of them jointly.

        Parameters
        ----------
        columns : sequence of str
            Two or more; each two of them measured together.
        expected : tensor_like
            The number of records expected in each cell of the columns, shape (levels, levels, ...) or flat: shares
            times the number of records.
        target : {"population", "table"}
            Whether ``expected`` is of the population, from which the table was sampled: records are multinomial, or
            Poisson where their number is protected. Or of the table itself, as when several releases of it are pooled.
        name : str
            Of the variable.

        Returns
        -------
        TensorVariable
            The noisy contrasts: their covariance is that of the noise, and for ``target="population"`` of sampling.

        Raises
        ------
        InputError
            If no margin holds two of the columns, or structural zeros tie them together.
        """
        choice(target, ("table", "population"), "target")
        import pymc as pm
        import pytensor.tensor as pt

        contrasts, seen, variances = self._coordinates(columns)
        cells = pt.flatten(pt.as_tensor(expected))
        mean = cells @ contrasts
        covariance = np.diag(np.maximum(variances, LEAST_COUNT))
        if target == "population":
            covariance = covariance + (contrasts.T * cells) @ contrasts
            if not self.found.total_variance:
                covariance = covariance - pt.outer(mean, mean) / self.found.n
        return pm.MvNormal(name, mean, covariance, observed=seen)

    def ols(self, formula: str, *, target: Target = "population") -> Answer:
        """Fit a linear regression to the noisy pairs, which hold all that its Gram matrix needs.

        Parameters
        ----------
        formula : str
            Columns, as in ``"income ~ age + sex"``. Numbers and bins (by their middle) are one term; other columns have
            one for each level but the first; an outcome of two levels counts its second. Interactions, as in
            ``"income ~ age + sex * school"``, take margins of three columns or more: of ``steps`` or a full table.
            Numbers without bins, or that may be missing, take a release that measured ``products`` of all columns;
            records that lack one of these are left out, and numbers beyond their caps count as these.
        target : {"population", "table"}
            The coefficients of the population, with sampling error on top of the noise's (its variance is the same for
            all records, or that of shares for an outcome of two levels), or of the table.

        Returns
        -------
        Answer
            The intercept and a number for each term.

        Raises
        ------
        InputError
            If the formula names what isn't in the release, or what no measured margin holds.
        """
        choice(target, ("table", "population"), "target")
        if self.moments is not None and self._takes_moments(formula, self.moments):
            return least_squares(self.moments, *read_formula(formula, self.moments.design.complete), target)
        chosen, terms = self._read(formula)
        values, n_levels = terms.values, len(terms.outcome[1])

        def reads(counts: FloatArray, n: FloatArray) -> FloatArray:
            both = sums(values, counts, n)
            return solved(both[:, :-1, :-1], both[:, :-1, -1])

        centre, _, covariance = chosen.spread(reads, N_REPLICATES)
        if target == "population" and np.isfinite(covariance).all():
            counts, n = chosen.counts()
            both = sums(values, counts, n)[0]
            inverse = np.linalg.inv(both[:-1, :-1])
            if n_levels == 2 and math.prod(terms.shape) <= MOST_FITTED:
                design = terms.cells()
                mean = np.clip(design @ centre, 0, 1)
                spread = joint(terms.shape, counts)[0] * mean * (1 - mean)
                covariance = covariance + inverse @ ((design * spread[:, None]).T @ design) @ inverse * n
            else:
                residual = max(both[-1, -1] - centre @ both[:-1, -1], 0.0) / max(n[0] - len(centre), 1)
                covariance = covariance + residual * inverse
        return Answer(terms.names, centre, covariance, "follows from measured pairs")

    def _takes_moments(self, formula: str, moments: NoisyProducts) -> bool:
        """Return whether a formula takes products: it names nothing else, and a number that pairs don't hold."""
        names = [name.strip() for part in formula.split("~") for name in part.split("+") if name.strip() != "1"]
        open_ = {
            n for n in names if n in self.estimated or (n in self.schema.columns and self.schema.columns[n].missing)
        }
        return bool(open_) and {*names} <= {*moments.design.names}

    def glm(self, formula: str, *, family: Literal["binomial", "poisson"], target: Target = "population") -> Answer:
        """Fit a generalized linear model with its canonical link to the noisy score, X'y.

        The score is in the pairs of the outcome with each predictor. The law of the predictors is the table of maximum
        entropy that agrees with their noisy pairs. Fresh noise on the margins moves both together, once a draw
        (perturbed optimisation).

        Parameters and errors are those of :meth:`ols`, with ``family`` for outcomes of two levels or counts, and
        at most 20,000 cells of the predictors together. The answer has ``draws``. Where noise often leaves no finite
        fit, or predictors separate the outcome, they are of the posterior given the noisy score under a normal prior
        (standard deviation 2.5 for standardised predictors, 5 for the intercept at their means), intervals are its
        quantiles, and ``basis`` names coefficients that only the prior speaks of. If all are, intervals are the whole
        line, with a warning.
        """
        choice(target, ("table", "population"), "target")
        choice(family, ("binomial", "poisson"), "family")
        chosen, terms = self._read(formula)
        values, n_levels = terms.values, len(terms.outcome[1])
        if family == "binomial" and n_levels != 2:
            raise InputError(f"family 'binomial' needs an outcome of two levels, and this one has {n_levels}")
        if math.prod(terms.shape) > MOST_FITTED:
            raise InputError(f"the predictors have more than {MOST_FITTED:,} cells together: take fewer")
        design = terms.cells()
        middle, width = design.mean(axis=0), np.maximum(design.std(axis=0), 1e-9)
        middle[0], width[0] = 0.0, 1.0
        standard = (design - middle) / width

        def parts(counts: FloatArray, n: FloatArray) -> tuple[FloatArray, FloatArray]:
            score = sums(values, counts, n)[:, :-1, -1] / n[:, None]
            return joint(terms.shape, counts), (score - middle * score[:, :1]) / width

        def as_given(found: FloatArray) -> FloatArray:
            found = found / width
            found[..., 0] -= found @ middle
            return found

        def reads(counts: FloatArray, n: FloatArray) -> FloatArray:
            return as_given(maximum(standard, *parts(counts, n), family))

        law = "measured" if len(terms.shape) < 3 else "from a model of their pairs"
        basis = f"score measured; law of the predictors {law}"
        centre, draws, covariance = chosen.spread(reads, N_REPLICATES, design.size, tell=False)
        if not np.isfinite(covariance).all():
            n = chosen.pairs.n if target == "population" else np.inf
            again = [parts(*each) for each in chosen.again(N_LAWS, design.size, 3)]
            laws, scores = (np.concatenate(each) for each in zip(*again, strict=True))
            found, alone = posterior(standard, parts(*chosen.counts()), (laws, scores), n, family)
            if not alone.all():
                draws = as_given(found)
                basis += "; posterior under a normal prior"
                if alone.any():
                    basis += f", which is all there is for {', '.join(np.array(terms.names)[alone])}"
                frame = pd.DataFrame(draws, columns=list(terms.names))
                return Answer(terms.names, draws.mean(axis=0), np.cov(draws.T), basis, frame, skewed=True)
            warnings.warn(OPEN, UselessWarning, 2)
        if target == "population" and np.isfinite(covariance).all():
            linear = design @ centre
            weight = expit(linear) * expit(-linear) if family == "binomial" else np.exp(linear)
            laws, _ = parts(*chosen.counts())
            sampling = np.linalg.inv((design * (laws[0] * weight)[:, None]).T @ design * chosen.pairs.n)
            covariance = covariance + sampling
            draws = draws + np.random.default_rng(1).multivariate_normal(np.zeros(len(centre)), sampling, len(draws))
        known = draws if np.isfinite(covariance).all() else draws[:0]
        frame = pd.DataFrame(known, columns=list(terms.names)).dropna(ignore_index=True)
        return Answer(terms.names, centre, covariance, basis, frame)


def check_laws(document: PrivacyDocument) -> None:
    """Refuse laws of noise that settings and price don't give, or that contradict what the file says elsewhere.

    Settings are tried where they are those of this version and need neither a model file nor the number of records.
    A file that was changed throughout, price included, isn't noticed.
    """
    known = {each.scale for each in document.noise}
    planned = document.mechanism in ("pairs", "steps", "laplace-sanitizer", "universal-histogram")
    if planned and document.software.get("pdips") == VERSION:
        plan, known = find(document.mechanism)(**settings_of(document)).plan(document.table_schema), set()
        for step in plan.steps:
            weights = [1] if step.image is None else np.unique(step.image.weights).tolist()
            own = [step.image.scale(step, weight) if step.image else step.parameter for weight in weights]
            known |= {float(each) ** (0.5 if step.law == "gaussian" else 1) for each in own}
    for law in (each for each in document.margins if each.law != "estimate"):
        variance = noise_variance(law.law, law.scale)
        if not np.isclose(list(known), law.scale, rtol=1e-9).any() or not np.isclose(law.variance, variance, rtol=1e-6):
            raise InputError("a law of noise in privacy.json isn't that of its settings: one of them was changed")


def settings_of(document: PrivacyDocument) -> dict[str, Any]:
    """Return the settings of a release, without a delta of pure losses.

    Where ``pairs`` says nothing of second counts or products, there were none.
    """
    given = {name: value for name, value in document.settings.items() if name != "delta" or value}
    return {**({"second_share": 0, "products": ()} if document.mechanism == "pairs" else {}), **given}
