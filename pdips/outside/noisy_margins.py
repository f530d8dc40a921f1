"""What an analyst can do with a public folder alone: estimates and intervals from noisy
margins; post-processing.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, UselessWarning, hint
from pdips.fields.products import NoisyProducts
from pdips.margins.domain import columns_of
from pdips.margins.estimates import NoisyPairs, pooled
from pdips.margins.residuals import ResidualDesign
from pdips.outside.answer import Answer
from pdips.outside.cells import (
    COUNTS,
    SHARES,
    LevelCells,
    Missing,
    Place,
    answer_names,
    summarised,
    untold_by_bins,
)
from pdips.outside.generalized import (
    GlmFamily,
    ScoreModel,
    check_fitted,
    posterior_under_prior,
    sampling_of_ols,
    under_prior,
)
from pdips.outside.published import check_laws, measured_schema, moments_of
from pdips.outside.questions import Expression, Formula, Summary, Terms
from pdips.outside.regression import (
    LEAST_COUNT,
    OPEN,
    Chosen,
    Target,
    TermTable,
    basis_of,
    contrasts_of,
    correlation_of_products,
    crossed,
    fitted,
    grouped,
    least_squares,
    parts_of,
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
        return cls._of(release.document(), release.tables, release.first_set())

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
        n_records = None
        if neighbours == "replace-one":
            n_records = document.n_records or len(records)
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
                f"{column!r} is no column of the release"
                f"{hint(column, self.design.home)}; it has "
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
        centre = chosen.cells(named)
        noise = chosen.noise(named)
        if shares:
            centre = centre / chosen.pairs.n
            # of a share: the noise on its count, less its part of that on the number
            of_count = np.eye(len(centre)) - centre[:, None]
            noise = of_count @ noise @ of_count.T / chosen.pairs.n**2
        covariance = noise
        if target == "population":
            n = chosen.pairs.n
            # no cell is without sampling error
            p = np.clip(centre if shares else centre / n, 1 / n, 1)
            sampling = (np.diag(p) - np.outer(p, p)) / n
            covariance = noise + (sampling if shares else sampling * n**2)
        levels = product(*(self.schema.columns[name].names() for name in named))
        cut = ", ".join(name for name in named if name in self.estimated)
        basis = "measured"
        if cut:
            basis += f"; counts of {cut} estimated, with errors about right"
        return Answer(
            tuple(map(", ".join, levels)),
            centre,
            covariance,
            basis,
            noise=noise,
            limits=SHARES if shares else COUNTS,
        )

    def summarise(
        self, text: str, *, target: Target = "population", missing: Missing = "level"
    ) -> Answer:
        """Return a mean, share, total, count, quantile or correlation, by group.

        Parameters
        ----------
        text : str
            As in ``docs/asking.md``: ``"mean(wage, by=['sex'])"``.
        target : {"population", "table"}
        missing : {"level", "drop"}
            Whether missing is a level of columns with levels, or records that lack
            one are left out.

        Raises
        ------
        InputError
            If no measured margin holds the columns together.
        """
        asked = Summary.read(text, self.schema)
        columns = (*asked.columns,)
        if not columns:
            n = np.array([self.found.n])
            noise = np.array([[self.found.total_variance]])
            basis = "measured" if self.found.total_variance else "public"
            return Answer((text,), n, noise, basis, noise=noise, limits=COUNTS)
        of_products = self._from_products(asked, target)
        if of_products is not None:
            return of_products
        counts = self.total(columns, target=target)
        cells = LevelCells(self.schema, self.estimated, columns)
        return summarised(asked, cells, counts, missing)

    def _from_products(self, asked: Summary, target: Target) -> Answer | None:
        """Return a mean of a number by at most one column, or a correlation, from noisy
        products, if pairs don't hold the number and products do.
        """
        moments = self.moments
        is_asked = all(each.is_plain for each in asked.of) and len(asked.by) < 2
        if moments is None or not is_asked or not self._are_products(asked.columns):
            return None
        of = [each.text for each in asked.of]
        if asked.kind == "correlation" and not asked.by:
            return correlation_of_products(moments, of[0], of[1], target)
        if asked.kind != "mean":
            return None
        fit = least_squares(moments, of[0], asked.by, target)
        groups = np.eye(len(fit.names))
        groups[:, 0] = 1.0
        return fit.contrasts(answer_names(asked), groups)

    def _are_products(self, columns: Mapping[str, Column]) -> bool:
        """Return whether products are of these columns, of which pairs don't hold one,
        and no record was left out for what it lacks of others.
        """
        if self.moments is None:
            return False
        has_open = any(self._is_open(name) for name in columns)
        measured = self.moments.design.names
        lacking = {name for name in measured if self.schema.columns[name].missing}
        return has_open and {*columns} <= {*measured} and lacking <= {*columns}

    def __repr__(self) -> str:
        names = ", ".join(self.schema.columns)
        return (
            f"NoisyMargins({len(self.margins)} margins of "
            f"{len(self.schema.columns)} columns: {shorten(names, 300)})"
        )

    def _read(
        self, formula: Formula, places: Mapping[str, Place] | None = None
    ) -> tuple[Chosen, TermTable]:
        """Return the pairs that a formula takes, and its terms in their order; with
        numbers at a place of their bins, where it isn't the middle.
        """
        at = places or {}
        margins = self
        predictors = dict[str, Terms]()
        of_column = {
            factor.text: next(iter(factor.columns)) for factor in formula.factors
        }
        tied = [
            tuple(dict.fromkeys(of_column[name] for name in interaction))
            for interaction in formula.interactions
        ]
        alone = [(name,) for name in of_column.values()]
        for group in grouped([*tied, *alone]):
            name = group[0]
            if len(group) > 1:
                margins, name = margins._tied(group)
            cells = LevelCells(self.schema, self.estimated, group, at)
            factors = {
                factor.text: cells.terms(factor)
                for factor in formula.factors
                if of_column[factor.text] in group
            }
            own = [some for some in formula.interactions if {*some} <= {*factors}]
            predictors[name] = crossed(factors, own)
        outcome = self._outcome(formula.outcome, at)
        read = [*formula.outcome.columns]
        chosen = margins._alone([*predictors, *read])
        return chosen, TermTable([*predictors.values()], outcome)

    def _outcome(self, outcome: Expression, places: Mapping[str, Place]) -> Terms:
        """Return the outcome's number for each level of its column."""
        if len(outcome.columns) > 1:
            raise InputError(f"{outcome.text!r} reads several columns")
        columns = (*outcome.columns,)
        cells = LevelCells(self.schema, self.estimated, columns, places)
        return cells.terms(outcome)

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
            bases.append(basis_of(size))
        parts = parts_of(len(columns), total=bool(pairs.total_variance))
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
        contrasts = np.hstack([contrasts_of(bases, part) for part in parts])
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
            contrast depends on, and on which level: ``school[high]`` is that level
            against the first one and those after it.

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
        parts = parts_of(len(named), total=bool(self.found.total_variance))
        labels = factors.contrast_labels(known, parts)
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
        asked = Formula.read(formula, self.schema)
        if self.moments is not None and self._takes_moments(asked):
            predictors = [factor.text for factor in asked.factors]
            return least_squares(self.moments, asked.outcome.text, predictors, target)
        chosen, terms = self._read(asked)
        centre, _, noise = chosen.spread(partial(fitted, terms.values), N_REPLICATES)
        covariance = noise
        if target == "population" and np.isfinite(noise).all():
            covariance = noise + sampling_of_ols(chosen, terms, centre)

        def refit(at: Mapping[str, Place]) -> FloatArray:
            moved, own = self._read(asked, at)
            return np.asarray(fitted(own.values, *moved.counts())[0])

        basis = "follows from measured pairs"
        answer = Answer(terms.names, centre, covariance, basis, noise=noise)
        return replace(answer, untold=untold_by_bins(asked.columns, centre, refit))

    def _takes_moments(self, asked: Formula) -> bool:
        """Return whether a formula takes products: it names nothing else, and a number
        that pairs don't hold.
        """
        is_linear = all(factor.is_plain for factor in (asked.outcome, *asked.factors))
        return (
            is_linear and not asked.interactions and self._are_products(asked.columns)
        )

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
        asked = Formula.read(formula, self.schema)
        chosen, terms = self._read(asked)
        check_fitted(terms, family)
        model = ScoreModel.of(terms, family)
        law = "measured" if len(terms.shape) < 3 else "from a model of their pairs"
        basis = f"score measured; law of the predictors {law}"
        centre, draws, noise = chosen.spread(
            model.fit(), N_REPLICATES, model.design.size, tell=False
        )
        n = chosen.pairs.n if target == "population" else np.inf
        if not np.isfinite(noise).all():
            own, alone = posterior_under_prior(chosen, model, n)
            if not alone.all():
                return under_prior(terms.names, own, alone, basis)
            warnings.warn(OPEN, UselessWarning, 2)
            none = pd.DataFrame(draws[:0], columns=[*terms.names])
            return Answer(terms.names, centre, noise, basis, none)
        covariance = noise
        if target == "population":
            law_of_table = model.parts(*chosen.counts())[0][0]
            sampling = model.sampling_covariance(centre, law_of_table, n)
            covariance = noise + sampling
            draws = draws + np.random.default_rng(1).multivariate_normal(
                np.zeros(len(centre)), sampling, len(draws)
            )
        frame = pd.DataFrame(draws, columns=[*terms.names]).dropna(ignore_index=True)
        answer = Answer(terms.names, centre, covariance, basis, frame, noise=noise)
        return self._with_bins(answer, asked, family)

    def _with_bins(self, answer: Answer, asked: Formula, family: GlmFamily) -> Answer:
        def refit(at: Mapping[str, Place]) -> FloatArray:
            moved, own = self._read(asked, at)
            return np.asarray(ScoreModel.of(own, family).fit()(*moved.counts())[0])

        untold = untold_by_bins(asked.columns, answer.estimate, refit)
        return replace(answer, untold=untold)
