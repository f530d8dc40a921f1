"""What an analyst can do with a public folder alone: estimates and intervals from noisy
margins; post-processing.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Schema, read_formula, terms_of
from pdips.data.table import Table
from pdips.errors import InputError, UselessWarning
from pdips.fields.products import NoisyProducts
from pdips.margins.domain import columns_of
from pdips.margins.estimates import NoisyPairs, pooled
from pdips.margins.residuals import ResidualDesign
from pdips.outside.answer import Answer
from pdips.outside.generalized import NoisyScore, ScoreModel, joint
from pdips.outside.published import check_laws, measured_schema, moments_of
from pdips.outside.regression import (
    LEAST_COUNT,
    OPEN,
    Chosen,
    Target,
    TermTable,
    crossed,
    grouped,
    least_squares,
    read_interactions,
    solved,
    sums,
)
from pdips.privacy.loss import Neighbours, choice
from pdips.release.documents import PrivacyDocument
from pdips.release.folder import read_tables
from pdips.release.noisy_margins import (
    MeasuredMargin,
    known_margin,
    unstacked,
    with_groups,
    with_product,
)
from pdips.release.release import Release

# Fresh draws of the noise: a standard error from them is off by about 2 %
N_REPLICATES = 1_000
MOST_FITTED = 20_000  # Cells of the predictors of a generalized linear model
N_LAWS = 200  # Fresh draws of the noise for its covariance, where a prior is needed


@dataclass(frozen=True, eq=False)
class NoisyMargins:
    """The noisy counts of a release, as data with a known law of noise: what they say
    of columns and pairs of them.

    They are pooled by generalised least squares
    (:func:`pdips.margins.estimates.pooled`).

    Parameters
    ----------
    schema : Schema
        Of the release.
    design : ResidualDesign
        What was measured.
    found : NoisyPairs
        Unbiased estimates of all pairs of levels.
    estimated : tuple of str
        Numeric columns without bins, whose counts of intervals were worked out from
        finer ones, and aren't unbiased.
    margins : tuple of MeasuredMargin
        The noisy counts one by one, each with the law of its noise.
    moments : NoisyProducts, optional
        Noisy sums of products of some columns, as ``margins`` measures with
        ``products``.

    Examples
    --------
    >>> schema = Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "ab"}}
    ... )
    >>> table = Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1] * 100}), schema)
    >>> release, _ = Margins(epsilon=1_000).release(table)
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
            If it holds no release with noisy margins, or margins that aren't those of
            its ``privacy.json``; or if its laws of noise aren't those that its settings
            give.
        """
        document, frames = read_tables(
            folder, "margins", "synthetic_1", "products", "caps"
        )
        if not {"margins", "synthetic_1"} <= {*frames}:
            raise InputError(f"{folder} holds no noisy margins")
        return cls._of(document, frames, frames["synthetic_1"])

    @classmethod
    def of(cls, release: Release) -> Self:
        """Take the margins of a release in memory."""
        if not release.margins:
            raise InputError(f"a release of {release.mechanism} holds no noisy margins")
        return cls._of(release.document(), release.tables, release.sets[0])

    @classmethod
    def _of(
        cls,
        document: PrivacyDocument,
        tables: Mapping[str, pd.DataFrame],
        records: pd.DataFrame,
    ) -> Self:
        try:
            measured = unstacked(document.margins, tables["margins"])
        # names or numbers of rows that no release has
        except (KeyError, TypeError, ValueError):
            raise InputError(
                "margins and privacy.json don't belong together: one of "
                "them was changed"
            ) from None
        check_laws(document)
        neighbours = document.privacy.neighbours
        n_records = len(records) if neighbours == "replace-one" else None
        measured, columns = with_groups(measured, document.table_schema.columns)
        axes = {axis.columns[0]: axis for each in measured for axis in each.law.axes}
        schema = measured_schema(document.table_schema, columns, axes)
        public = schema.public_columns
        known = None
        if public:
            of_public = Schema(columns={name: schema.columns[name] for name in public})
            known = Table(records[list(public)], of_public)
        measured += [
            known_margin(total)
            for total in schema.known_totals(weighted=False)
            if total.n_records == n_records
        ]
        cut = tuple(name for name, axis in axes.items() if axis.lower)
        noisy = cls.pooled(schema, neighbours, measured, n_records, known, cut)
        return replace(noisy, moments=moments_of(document, tables, n_records))

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
        """Return what margins of the columns of a schema say, given its public columns
        and a public number.
        """
        design = ResidualDesign(columns_of(schema), neighbours, "laplace")
        return cls(
            schema,
            design,
            pooled(design, margins, n_records, known),
            estimated,
            tuple(margins),
        )

    def _block(self, column: str) -> int:
        """Return the block that holds a column."""
        if column not in self.design.home:
            raise InputError(
                f"{column!r} is no column of the release; it has "
                f"{', '.join(self.design.home)}"
            )
        return self.design.home[column][0]

    def _is_tied(self, column: str) -> bool:
        return len(self.design.blocks[self._block(column)].columns) > 1

    def _levels(self, column: str) -> FloatArray:
        """Return which levels of its block have which level of a column of the release,
        shape (levels of block, levels).
        """
        block, place = self.design.home[column]
        own = self.design.blocks[block].levels[:, place]
        levels = np.arange(self.schema.columns[column].n_levels)
        return np.equal.outer(own, levels).astype(np.float64)

    def _tied(self, group: Sequence[str]) -> "tuple[NoisyMargins, str]":
        """Return what margins say where some columns are one, of all combinations of
        their levels; and its name.
        """
        if any(self._is_tied(name) or name in self.estimated for name in group):
            raise InputError(
                f"{', '.join(group)}: columns without bins, or tied by "
                f"structural zeros, can't be crossed"
            )
        if self.schema.public_columns:
            raise InputError(
                "a release with public columns answers questions about "
                "one column or two"
            )
        margins, columns, name = with_product(self.margins, self.schema.columns, group)
        schema = self.schema.model_copy(update={"columns": columns})
        n_records = None if self.found.total_variance else int(self.found.n_records)
        return self.pooled(
            schema, self.design.neighbours, margins, n_records, estimated=self.estimated
        ), name

    def _alone(self, columns: Sequence[str]) -> Chosen:
        """Return the pairs of some columns."""
        blocks = sorted({self._block(column) for column in columns})
        sizes = self.design.sizes
        starts = self.design.offsets
        kept = np.concatenate(
            [np.arange(starts[k], starts[k] + sizes[k]) for k in blocks]
        )
        offsets: IntArray = np.concatenate([[0], np.cumsum(sizes[blocks])])
        counts = self.found.counts[np.ix_(kept, kept)]
        variance = self.found.variance[np.ix_(blocks, blocks)]
        pairs = replace(self.found, offsets=offsets, counts=counts, variance=variance)
        if not np.isfinite(pairs.variance).all():
            asked = ", ".join(name for column in columns for name in column.split(":"))
            two = "" if any(":" in column for column in columns) else "each two of "
            raise InputError(f"no measured margin holds {two}{asked} together")
        home = {column: blocks.index(self._block(column)) for column in columns}
        n_levels = sum(self.schema.columns[column].n_levels for column in home)
        levels = np.zeros((offsets[-1], n_levels))
        places = dict[str, slice]()
        start = 0
        for column, block in home.items():
            own = self._levels(column)
            places[column] = slice(start, start + own.shape[1])
            levels[offsets[block] : offsets[block + 1], places[column]] = own
            start += own.shape[1]
        return Chosen(pairs, home, places, levels)

    def share(
        self, columns: Sequence[str] | str, *, target: Target = "population"
    ) -> Answer:
        """Return the share of each level of a column, or of each combination of several
        columns.

        Parameters
        ----------
        columns : str or sequence of str
            One column or more. Every two are known from a release of ``margins``; more
            where a margin holds them all.
        target : {"population", "table"}
            Of the population that the table is a random sample of, or of the table
            itself.

        Returns
        -------
        Answer
            A number for each level, in the order of the schema.

        Raises
        ------
        InputError
            If a column isn't in the release, or no measured margin holds all that are
            named.
        """
        return self._counted(columns, target, shares=True)

    def total(
        self, columns: Sequence[str] | str, *, target: Target = "table"
    ) -> Answer:
        """Return numbers of records, as :meth:`share` shares; of the population those
        that a table may expect.
        """
        return self._counted(columns, target, shares=False)

    def _counted(
        self, columns: Sequence[str] | str, target: Target, *, shares: bool
    ) -> Answer:
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
                numbers = np.diagonal(counts, axis1=1, axis2=2)
            else:
                first, second = (chosen.places[name] for name in named)
                numbers = counts[:, first, second].reshape(len(counts), -1)
            return numbers / n[:, None] if shares else numbers

        centre, _, covariance = chosen.spread(reads, N_REPLICATES)
        if target == "population":
            n = chosen.pairs.n
            # no cell is without sampling error
            p = np.clip(centre if shares else centre / n, 1 / n, 1)
            sampling = (np.diag(p) - np.outer(p, p)) / n
            covariance = covariance + (sampling if shares else sampling * n**2)
        levels = product(*(self.schema.columns[name].names() for name in named))
        cut = ", ".join(name for name in named if name in self.estimated)
        basis = "measured"
        if cut:
            basis += f"; counts of {cut} estimated, with errors about right"
        return Answer(tuple(map(", ".join, levels)), centre, covariance, basis)

    def _scores(self, column: str) -> tuple[list[str], FloatArray]:
        """Return the terms that stand for a column, and their values for each of its
        levels: of a bin its middle.
        """
        terms = terms_of(self.schema, column)
        found = self.schema.columns[column]
        if column in self.estimated:
            why = "has no bins, so no value stands for one of its intervals"
            raise InputError(
                f"{column!r} {why}: fit the sets, or have the products "
                f"of all columns measured"
            )
        if terms != (column,):
            return list(terms), np.eye(found.n_levels)[:, 1:]
        values = found.levels or [(a + b) / 2 for a, b in pairwise(found.edges)]
        return [column], np.array(values, dtype=np.float64)[:, None]

    def _read(self, formula: str) -> tuple[Chosen, TermTable]:
        """Return the pairs that a formula takes, and its terms in their order."""
        plain, interactions = read_interactions(formula)
        outcome, predictors = read_formula(plain, self.schema)
        margins = self
        terms = {name: self._scores(name) for name in [*predictors, outcome]}
        for group in grouped(interactions):
            margins, name = margins._tied(group)
            own = [some for some in interactions if {*some} <= {*group}]
            terms = {name: crossed({one: terms.pop(one) for one in group}, own)} | terms
        *given, last = terms.values()
        return margins._alone(list(terms)), TermTable(given, last)

    def _coordinates(
        self, columns: Sequence[str]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return contrasts of the cells of some columns, shape (cells, contrasts),
        their noisy values and variances.

        The noise on orthonormal contrasts is independent: on those of a column, of a
        pair, and on the sum of all cells.
        """
        chosen = self._alone(columns)
        pairs = chosen.pairs
        counts = chosen.counts()[0][0]
        if len(chosen.home) < len(columns) or any(map(self._is_tied, columns)):
            raise InputError(
                "a factor takes columns that differ and that no "
                "structural zeros tie together"
            )
        bases = []
        for column in columns:
            size = self.schema.columns[column].n_levels
            bases.append(np.linalg.qr(np.eye(size)[:, 1:] - 1 / size)[0])
        parts = _parts_of(len(columns), total=bool(pairs.total_variance))
        values = list[FloatArray]()
        variances = list[float]()
        for part in parts:
            if not part:
                values.append(np.array([pairs.n_records]))
                variances.append(pairs.total_variance)
                continue
            one = columns[part[0]]
            other = columns[part[-1]]
            table = counts[chosen.places[one], chosen.places[other]]
            if len(part) == 1:
                values.append(np.diagonal(table) @ bases[part[0]])
            else:
                values.append((bases[part[0]].T @ table @ bases[part[1]]).ravel())
            home = chosen.home
            variances.append(float(pairs.variance[home[one], home[other]]))
        contrasts = np.hstack([_contrasts(bases, part) for part in parts])
        sizes = [len(each) for each in values]
        return contrasts, np.concatenate(values), np.repeat(variances, sizes)

    def factor(
        self,
        columns: Sequence[str] | str,
        expected: Any,
        *,
        dims: Sequence[str] | None = None,
        target: Target = "population",
        name: str = "margins",
    ) -> Any:
        """Add what the noisy margins say of some columns to the PyMC model in context:
        a normal law of them jointly.

        Parameters
        ----------
        columns : str or sequence of str
            One or more; each two of them measured together.
        expected : tensor_like
            The number of records expected in each cell of the columns, shape (levels,
            levels, ...) or flat: shares times the number of records.
        dims : sequence of str, optional
            The dims of ``expected``, one for each column in the same order. Their
            labels must be the column's levels in the order of the schema. Left out,
            those of ``expected`` where it is a named variable of the model.
        target : {"population", "table"}
            Whether ``expected`` is of the population, from which the table was sampled:
            records are multinomial, or Poisson where their number is protected. Or of
            the table itself, as when several releases of it are pooled.
        name : str
            Of the variable; its dim is called ``NAME_contrast``.

        Returns
        -------
        TensorVariable
            The noisy contrasts: their covariance is that of the noise, and for
            ``target="population"`` of sampling. Labels of its dim say which columns a
            contrast depends on.

        Raises
        ------
        InputError
            If no margin holds two of the columns, or structural zeros tie them
            together; if ``expected`` or its dims don't have the columns' levels; or if
            there is no model in context.
        """
        choice(target, ("table", "population"), "target")
        # imports PyMC
        from pdips.outside import factors

        named = [columns] if isinstance(columns, str) else list(columns)
        contrasts, seen, variances = self._coordinates(named)
        known = {each: self.schema.columns[each] for each in named}
        factors.model_in_context()
        cells = factors.check_expected(known, expected, dims)
        mean = cells @ contrasts
        covariance = np.diag(np.maximum(variances, LEAST_COUNT))
        if target == "population":
            covariance = covariance + (contrasts.T * cells) @ contrasts
            if not self.found.total_variance:
                covariance = covariance - mean[:, None] * mean / self.found.n
        parts = _parts_of(len(named), total=bool(self.found.total_variance))
        sizes = [column.n_levels for column in known.values()]
        labels = factors.contrast_labels(named, parts, sizes)
        return factors.observe_contrasts(name, labels, seen, (mean, covariance))

    def ols(self, formula: str, *, target: Target = "population") -> Answer:
        """Fit a linear regression to the noisy pairs, which hold all that its Gram
        matrix needs.

        Parameters
        ----------
        formula : str
            Columns, as in ``"income ~ age + sex"``. Numbers and bins (by their middle)
            are one term; other columns have one for each level but the first; an
            outcome of two levels counts its second. Interactions, as in ``"income ~ age
            + sex * school"``, take margins of three columns or more: of views or a
            full table. Numbers without bins, or that may be missing, take a release
            that measured ``products`` of all columns; records that lack one of these
            are left out, and numbers beyond their caps count as these.
        target : {"population", "table"}
            The coefficients of the population, with sampling error on top of the
            noise's (its variance is the same for all records, or that of shares for an
            outcome of two levels), or of the table.

        Returns
        -------
        Answer
            The intercept and a number for each term.

        Raises
        ------
        InputError
            If the formula names what isn't in the release, or what no measured margin
            holds.
        """
        choice(target, ("table", "population"), "target")
        if self.moments is not None and self._takes_moments(formula, self.moments):
            outcome, predictors = read_formula(formula, self.moments.design.complete)
            return least_squares(self.moments, outcome, predictors, target)
        chosen, terms = self._read(formula)
        values = terms.values

        def reads(counts: FloatArray, n: FloatArray) -> FloatArray:
            both = sums(values, counts, n)
            return solved(both[:, :-1, :-1], both[:, :-1, -1])

        centre, _, covariance = chosen.spread(reads, N_REPLICATES)
        if target == "population" and np.isfinite(covariance).all():
            covariance = covariance + _sampling_of_ols(chosen, terms, centre)
        return Answer(terms.names, centre, covariance, "follows from measured pairs")

    def _takes_moments(self, formula: str, moments: NoisyProducts) -> bool:
        """Return whether a formula takes products: it names nothing else, and a number
        that pairs don't hold.
        """
        _, _, right = formula.partition("~")
        written = [*formula.partition("~")[:1], *right.split("+")]
        names = {name.strip() for name in written} - {"1"}
        open_names = [name for name in names if self._is_open(name)]
        return bool(open_names) and names <= {*moments.design.names}

    def _is_open(self, name: str) -> bool:
        """Return whether pairs don't hold a number: it has no bins, or may be
        missing.
        """
        if name in self.estimated:
            return True
        return name in self.schema.columns and self.schema.columns[name].missing

    def glm(
        self,
        formula: str,
        *,
        family: Literal["binomial", "poisson"],
        target: Target = "population",
    ) -> Answer:
        """Fit a generalized linear model with its canonical link to the noisy score,
        X'y.

        The score is in the pairs of the outcome with each predictor. The law of the
        predictors is the table of maximum entropy that agrees with their noisy pairs.
        Fresh noise on the margins moves both together, once a draw (perturbed
        optimisation).

        Parameters and errors are those of :meth:`ols`, with ``family`` for outcomes of
        two levels or counts, and at most 20,000 cells of the predictors together. The
        answer has ``draws``. Where noise often leaves no finite fit, or predictors
        separate the outcome, they are of the posterior given the noisy score under a
        normal prior (standard deviation 2.5 for standardised predictors, 5 for the
        intercept at their means), intervals are its quantiles, and ``basis`` names
        coefficients that only the prior speaks of. If all are, intervals are the whole
        line, with a warning.
        """
        choice(target, ("table", "population"), "target")
        choice(family, ("binomial", "poisson"), "family")
        chosen, terms = self._read(formula)
        n_levels = len(terms.outcome[1])
        if family == "binomial" and n_levels != 2:
            raise InputError(
                f"family 'binomial' needs an outcome of two levels, and "
                f"this one has {n_levels}"
            )
        if math.prod(terms.shape) > MOST_FITTED:
            raise InputError(
                f"the predictors have more than {MOST_FITTED:,} cells "
                f"together: take fewer"
            )
        model = ScoreModel.of(terms, family)
        law = "measured" if len(terms.shape) < 3 else "from a model of their pairs"
        basis = f"score measured; law of the predictors {law}"
        centre, draws, covariance = chosen.spread(
            model.fit(), N_REPLICATES, model.design.size, tell=False
        )
        names = list(terms.names)
        n = chosen.pairs.n if target == "population" else np.inf
        if not np.isfinite(covariance).all():
            own, alone = _posterior(chosen, model, n)
            if not alone.all():
                return _under_prior(terms.names, own, alone, basis)
            warnings.warn(OPEN, UselessWarning, 2)
            none = pd.DataFrame(draws[:0], columns=names)
            return Answer(terms.names, centre, covariance, basis, none)
        if target == "population":
            laws, _ = model.parts(*chosen.counts())
            sampling = model.sampling_covariance(centre, laws[0], n)
            covariance = covariance + sampling
            draws = draws + np.random.default_rng(1).multivariate_normal(
                np.zeros(len(centre)), sampling, len(draws)
            )
        frame = pd.DataFrame(draws, columns=names).dropna(ignore_index=True)
        return Answer(terms.names, centre, covariance, basis, frame)


def _parts_of(n_columns: int, *, total: bool) -> list[tuple[int, ...]]:
    """Return the columns of each kind of contrast: none for the sum of all cells, one,
    or two.
    """
    parts: list[tuple[int, ...]] = [()] if total else []
    for size in (1, 2):
        parts += combinations(range(n_columns), size)
    return parts


def _contrasts(bases: Sequence[FloatArray], part: Sequence[int]) -> FloatArray:
    """Return the contrasts of all cells that belong to some columns, constant over the
    others; shape (cells, contrasts).
    """
    contrasts: FloatArray = np.ones((1, 1))
    for k, basis in enumerate(bases):
        own = basis if k in part else np.ones((len(basis), 1))
        contrasts = np.asarray(np.kron(contrasts, own), dtype=np.float64)
    return contrasts


def _sampling_of_ols(
    chosen: Chosen, terms: TermTable, coefficients: FloatArray
) -> FloatArray:
    """Return the covariance that sampling of records gives to coefficients."""
    counts, n = chosen.counts()
    both = sums(terms.values, counts, n)[0]
    inverse = np.linalg.inv(both[:-1, :-1])
    if len(terms.outcome[1]) == 2 and math.prod(terms.shape) <= MOST_FITTED:
        design = terms.cells()
        mean = np.clip(design @ coefficients, 0, 1)
        spread = joint(terms.shape, counts)[0] * mean * (1 - mean)
        middle = (design * spread[:, None]).T @ design
        return np.asarray(inverse @ middle @ inverse * n)
    squares = max(both[-1, -1] - coefficients @ both[:-1, -1], 0.0)
    residual = squares / max(n[0] - len(coefficients), 1)
    return np.asarray(residual * inverse)


def _under_prior(
    names: tuple[str, ...], draws: FloatArray, alone: BoolArray, basis: str
) -> Answer:
    """Return draws of a posterior as an answer, which says what only the prior speaks
    of.
    """
    basis += "; posterior under a normal prior"
    if alone.any():
        of_prior = ", ".join(np.array(names)[alone])
        basis += f", which is all there is for {of_prior}"
    frame = pd.DataFrame(draws, columns=list(names))
    covariance = np.cov(draws.T)
    return Answer(names, draws.mean(axis=0), covariance, basis, frame, skewed=True)


def _posterior(
    chosen: Chosen, model: ScoreModel, n: float
) -> tuple[FloatArray, BoolArray]:
    """Return draws of the coefficients under a normal prior, in the columns' units, and
    which are the prior's alone.
    """
    laws = []
    scores = []
    for counts in chosen.again(N_LAWS, model.design.size, 3):
        law, score = model.parts(*counts)
        laws.append(law)
        scores.append(score)
    law, score = model.parts(*chosen.counts())
    noisy = NoisyScore(
        design=model.standard,
        family=model.family,
        law=law[0],
        score=score[0],
        laws=np.concatenate(laws),
        scores=np.concatenate(scores),
        n=n,
    )
    draws, alone = noisy.posterior()
    return model.in_own_units(draws), alone
