"""What a model of noisy statistics is given: laws of exact statistics, seen through
their noise or taken as exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.statistics import laws
from pdips.statistics.plan import (
    LEAST_RECORDS,
    NoisyStatistics,
    number_of_records,
    scatter_about,
    settle,
)
from pdips.statistics.statistic import Counts

Likelihood = Literal["noise-aware", "plug-in"]

# Values of a count that are summed over one by one; with more, it is a real number
MOST_TERMS = 4096

USED = "used {}"


@dataclass(frozen=True, eq=False)
class StatisticLaw:
    """A law that a model stated of exact statistics, or of a quantity that its
    parameters make.
    """

    law: str  # the method of Evidence that stated it
    names: tuple[str, ...]  # the statistics, or what the quantity is called
    arguments: Mapping[str, Any]  # what the method was given, as graphs or numbers
    exact: Any = None  # the exact statistics that it returned


class Evidence:
    """Noisy statistics of a table, in a ``with pm.Model()`` block.

    A model says how the exact statistics are distributed given its parameters. With
    ``plug-in`` these are the noisy ones after post-processing, taken as if exact, as in
    Bowen and Liu (2020). With ``noise-aware`` they are unknown: the law of the noise,
    which is public, says how far the noisy ones may be from them.

    Parameters
    ----------
    measured : NoisyStatistics
        Noisy statistics.
    likelihood : {"noise-aware", "plug-in"}
        How the model sees them.

    Notes
    -----
    Units: counts are records; sums and products are of u = (x - middle) / half of the
    public bounds, in [-1, 1]. ``stated`` lists the laws that a model stated, ``terms``
    the potentials that they became and ``latents`` the free variables that stand for
    something exact or for noise: with its priors, they are all of a model that has no
    other potentials (:mod:`pdips.statistics.samplers`). What is exact is continuous
    here where it isn't summed over, with the density exp(-abs(noise) / scale) in place
    of the discrete Laplace probabilities, to which it is proportional on the grid.

    Examples
    --------
    >>> def build_model(given, schema):
    ...     with pm.Model() as model:
    ...         share = pm.Beta("share", 1, 1)
    ...         given.observe("counts", pm.Binomial.dist(given.n, share), given.n)
    ...     return model
    """

    def __init__(
        self, measured: NoisyStatistics, likelihood: Likelihood = "noise-aware"
    ) -> None:
        self.measured = measured
        self.schema = measured.schema
        self.likelihood: Likelihood = likelihood
        self.aware = likelihood == "noise-aware"
        self.used = settle(measured)
        self._counts: dict[str, Any] = {}
        self.latents: list[str] = []
        self.stated: list[StatisticLaw] = []
        self.terms: list[Any] = []
        self.population_columns: tuple[str, ...] = ()
        self.population_law = ("", "")
        self.data: dict[str, FloatArray] = {}

    @property
    def n(self) -> Any:
        """Number of records: public under replace-one, otherwise what counts add
        up to.
        """
        if self.measured.n_records is not None:
            return float(self.measured.n_records)
        if self._counts:
            return next(iter(self._counts.values())).sum()
        return self._counts_of(next(iter(self.measured.of(Counts))).name).sum()

    @property
    def public(self) -> Mapping[str, NDArray[Any]]:
        """The public columns as models read them, shape (records,): codes of levels, or
        numbers in their own unit.

        A model that makes numbers of them hands these to :meth:`fixed`.
        """
        return self.measured.public

    def noisy(self, name: str) -> FloatArray:
        """Return noisy statistics as they are published, shape (entries,)."""
        return self.measured.value(name)

    def __getitem__(self, name: str) -> FloatArray:
        """Return noisy statistics after post-processing, shape (entries,)."""
        self.measured.part(name)
        return self.used[name]

    def law(self, law: str) -> StatisticLaw:
        """Return the first law of a kind that the model stated."""
        return self.laws(law)[0]

    def laws(self, law: str) -> list[StatisticLaw]:
        """Return the laws of a kind that the model stated, in its order."""
        return [each for each in self.stated if each.law == law]

    def multinomial(self, name: str, p: Any) -> Any:
        """State that exact counts are multinomial, and return them.

        Parameters
        ----------
        name : str
            A :class:`Counts` statistic.
        p : TensorVariable, shape (cells,)
            Probabilities, positive.

        Returns
        -------
        TensorVariable, shape (cells,)
            Exact counts, which later laws may depend on; real numbers where they are
            unknown.
        """
        counts = self._counts_of(name, p)
        self._term(f"law of {name}", laws.multinomial(counts, p))
        return self._state("multinomial", (name,), counts, p=pt.as_tensor(p))

    def dirichlet_multinomial(self, name: str, alpha: float) -> Any:
        """State that exact counts are multinomial with shares that have a Dirichlet
        prior, and return them.

        The shares are integrated out. Given the counts they are Dirichlet(alpha +
        counts): a model file draws them in its ``draw_rest``.

        Parameters
        ----------
        name : str
            A :class:`Counts` statistic.
        alpha : float
            Of each cell, above 0.
        """
        counts = self._counts_of(name)
        self._term(
            f"law of {name}",
            laws.dirichlet_multinomial(counts, alpha, len(self.used[name])),
        )
        return self._state("dirichlet_multinomial", (name,), counts, alpha=alpha)

    def _counts_of(self, name: str, p: Any = None) -> Any:
        """Return exact counts: as they are, or flat, seen through their noise, and near
        to ``p`` where that is loud.
        """
        if name in self._counts:
            return self._counts[name]
        n = self.measured.n_records
        used = self.used[name]
        if not self._is_unknown(name):
            self._counts[name] = self.fixed(USED.format(name), used)
            return self._counts[name]
        # A table of one record has no scatter: a total that is counted by itself is
        # above that.
        least = LEAST_RECORDS if n is None and len(used) == 1 else 0
        deviation = self.measured.deviation(name)
        noisy = self.noisy(name) - least
        steering = laws.steering_counts(
            noisy, used - least, deviation, near=p is not None
        )
        n_moves = len(used) - (n is not None)
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=n_moves)
        fixed = {
            what: self.fixed(f"{what} of {name}", values)
            for what, values in steering.items()
        }
        above_least, density = laws.counts_given(moved, p, n, **fixed)
        self._term(f"flat {name}", density)
        counts = above_least + least
        self._noise_on(name, counts)
        self._counts[name] = counts
        return counts

    def observe(self, name: str, law: Any, n: int) -> None:
        """State the law of one exact count, which is summed over.

        Parameters
        ----------
        name : str
            A statistic with one noised entry, such as one of two counts.
        law : TensorVariable
            An unregistered distribution over 0..n, such as ``pm.Binomial.dist(n, p)``.
        n : int
            Largest value.
        """
        self._state("observe", (name,), None, of=law, n=n)
        if not self.aware:
            used = self.fixed(USED.format(name), self.used[name])
            density = pm.logp(law, pt.round(used[0]))
        elif n > MOST_TERMS:
            start = (self.used[name][0] + 0.5) / (n + 1)
            share = pm.Beta(self._unknown(f"share of {name}"), 1, 1, initval=start)
            exact = n * share
            density = pm.logp(law, exact)
            self._noise_on(name, pt.stack([exact]))
        else:
            terms = np.arange(n + 1)
            noisy, scale = self._noisy(name)
            noise_law = self.measured.part(name).law
            weights = laws.noise(noisy[0] - terms, scale, noise_law)
            density = pt.logsumexp(pm.logp(law, terms) + weights)
        self._term(f"law of {name}", density)

    def normal(
        self,
        names: str | Sequence[str],
        mean: Any,
        chol: Any,
        times: Any = 1.0,
        between: Any = None,
    ) -> Any:
        """State that exact sums are normal, and return them.

        Parameters
        ----------
        names : str or sequence of str
            Statistics of the same number of entries.
        mean : TensorVariable, shape (entries, statistics); (entries,) for a single one
            Their means given the parameters.
        chol : TensorVariable, shape (statistics, statistics), or a number
            Lower Cholesky factor of the covariance that one record adds; for a single
            one its standard deviation.
        times : TensorVariable, shape (entries,)
            Records that each entry sums over.
        between : TensorVariable, shape (statistics,), optional
            Standard deviations of the entries' own means, independent normal, which are
            integrated out.

        Returns
        -------
        TensorVariable, of the shape of ``mean``
        """
        columns = (names,) if isinstance(names, str) else tuple(names)
        d = len(columns)
        entries = len(self.used[columns[0]])
        mean = pt.as_tensor(mean).reshape((entries, d))
        chol = pt.as_tensor(chol).reshape((d, d))
        times = times * pt.ones(entries)
        if between is not None:
            between = pt.as_tensor(between).reshape((d,))
        rows = laws.factors(chol, d, times, between)
        standard = list[Any]()
        exact = list[Any]()
        log_density = pt.zeros(())
        for number, name in enumerate(columns):
            *earlier, own = rows[number]
            # of this column given those before it
            before = map(mul, earlier, standard)
            centre = sum(before, start=mean[:, number])
            moved, density = self._sums(name, centre, own)
            standard.append(moved)
            exact.append(centre + own * moved)
            log_density += density
            self._noise_on(name, exact[-1])
        self._term(f"law of {', '.join(columns)}", log_density)
        result = exact[0] if isinstance(names, str) else pt.stack(exact, axis=1)
        arguments = {"mean": mean, "chol": chol, "times": times, "between": between}
        return self._state("normal", columns, result, **arguments)

    def _sums(self, name: str, mean: Any, sd: Any) -> tuple[Any, Any]:
        """Return standardised sums, unknown or not, and their log density."""
        used = self.used[name]
        if not self._is_unknown(name):
            standard = (self.fixed(USED.format(name), used) - mean) / sd
            return standard, -(standard**2).sum() / 2 - pt.log(sd).sum()
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=len(used))
        noise = np.asarray(self.measured.deviation(name))
        deviation = self.fixed(f"deviation of {name}", noise)
        noisy, _ = self._noisy(name)
        return laws.sum_given(noisy, deviation, moved, mean, sd)

    def wishart(
        self, names: Sequence[str], df: Any, chol: Any, about: Any = 0.0
    ) -> Any:
        """State that the scatter about the means is Wishart distributed, and return it.

        Parameters
        ----------
        names : sequence of str
            Products of one entry each, those of the lower triangle row by row: xx, yx,
            yy, ...
        df : TensorVariable
            Degrees of freedom, above the number of columns less 1: refused where it is
            a number that isn't.
        chol : TensorVariable, shape (d, d); a number for one column
            Lower Cholesky factor of the covariance of a record.
        about : TensorVariable, shape (d, d); a number for one column
            What the products have on top of the scatter: that of the means, sum_k T_k
            T_k' / n_k.

        Returns
        -------
        TensorVariable, shape (d, d)

        Raises
        ------
        InputError
            If degrees of freedom are too few.
        """
        rows, columns = np.tril_indices(int(np.sqrt(2 * len(names))))
        d = rows[-1] + 1
        chol = pt.as_tensor(chol).reshape((d, d))
        about = about * pt.ones((d, d))
        label = ", ".join(names)
        if isinstance(df, (int, float)) and df <= d - 1:
            raise InputError(
                f"{label}: too few records for this model (their public number "
                f"leaves {df:g} degrees of "
                f"freedom, and it needs more than {d - 1}); take a larger table or a "
                f"simpler model"
            )
        if any(self._is_unknown(name) for name in names):
            scatter, density = self._unknown_scatter(names, label, df, chol)
            products = scatter + about
            for name, row, column in zip(names, rows, columns, strict=True):
                self._noise_on(name, pt.stack([products[row, column]]))
        else:
            exact = pt.concatenate(
                [self.fixed(USED.format(name), self.used[name]) for name in names]
            )
            scatter = laws.symmetric(exact, d) - about
            density = laws.wishart(scatter, df, chol, d)
        self._term(f"law of {label}", density)
        arguments = {"df": pt.as_tensor(df), "chol": chol, "about": about}
        return self._state("wishart", tuple(names), scatter, **arguments)

    def _unknown_scatter(
        self, names: Sequence[str], label: str, df: Any, chol: Any
    ) -> tuple[Any, Any]:
        """Return a scatter matrix that is seen through noise, and its log density."""
        measured = self.measured
        deviations = np.array([measured.deviation(name) for name in names])
        settled = scatter_about(measured, self.used, names, deviations.max())
        centre = np.linalg.cholesky(settled)
        n_records = number_of_records(measured, self.used)
        follow, steps = laws.steering(centre, deviations, n_records)
        moved = pm.Normal(self._unknown(f"moves of {label}"), 0, 1, shape=len(names))
        fixed = {
            name: self.fixed(f"{name} of {label}", values)
            for name, values in (
                ("centre", centre),
                ("follow", follow),
                ("steps", steps),
            )
        }
        factor, density = laws.scatter_given(moved, chol, df, d=len(centre), **fixed)
        return pt.dot(factor, factor.T), density

    def fixed(self, name: str, values: Any) -> Any:
        """Return public numbers as ``pm.Data``, so that a compiled model serves other
        public columns too.
        """
        model = pm.modelcontext(None)
        self.data[name] = np.asarray(values, dtype=float)
        return (
            model.named_vars[name]
            if name in model.named_vars
            else pm.Data(name, self.data[name])
        )

    def least_squares(
        self, loads: Mapping[str, FloatArray], spread: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return b for which ``loads @ b`` is near the noisy statistics of these names,
        and a root of its covariance.

        Entries of b are roughly as large as ``spread``. Shapes (p,) and (p, p).
        """
        weighted_loads = []
        weighted_values = []
        for name, load in loads.items():
            deviation = max(self.measured.deviation(name), 1e-9)
            weighted_loads.append(load / deviation)
            weighted_values.append(self.used[name] / deviation)
        weighted = np.vstack(weighted_loads)
        values = np.concatenate(weighted_values)
        precision = weighted.T @ weighted + np.eye(weighted.shape[1]) / spread**2
        solution = np.linalg.solve(precision, weighted.T @ values)
        root = np.linalg.inv(np.linalg.cholesky(precision)).T
        return solution, root

    def solved(self, name: str, loads: Mapping[str, FloatArray], spread: float) -> Any:
        """Return the unknown vector b of which statistics are linear functions: flat,
        and seen through their noise.

        Parameters
        ----------
        name : str
            What to call it.
        loads : mapping of str to ndarray, shape (entries, p)
            The statistic of that name is ``loads @ b``; together they determine b, or
            nearly so.
        spread : float
            Roughly how large entries of b are. It steers chains only; plug-in shrinks
            what isn't determined by it.

        Returns
        -------
        TensorVariable, shape (p,)
            Plug-in: the weighted least-squares solution of the noisy ones.
        """
        fitted, fitted_root = self.least_squares(loads, spread)
        centre = self.fixed(f"centre of {name}", fitted)
        if not self.aware:
            return self._state("solved", tuple(loads), centre, loads=loads)
        root = self.fixed(f"root of {name}", fitted_root)
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=len(fitted))
        self._term(f"flat {name}", (moved**2).sum() / 2)
        unknown = centre + pt.dot(root, moved)
        for statistic, load in loads.items():
            fixed = self.fixed(f"loads of {statistic}", load)
            self._noise_on(statistic, pt.dot(fixed, unknown))
        return self._state("solved", tuple(loads), unknown, loads=loads)

    def prior(self, name: str, quantity: Any, law: Any) -> None:
        """State the prior of a quantity that is no variable of its own, in the
        coordinates in which chains move.

        Parameters
        ----------
        name : str
            What to call it.
        quantity : TensorVariable
            Made of variables and exact statistics; the Jacobian from these to it must
            be constant.
        law : TensorVariable
            An unregistered distribution of its shape, or a scalar one for each entry,
            such as ``pm.Normal.dist(0, 1)``.
        """
        self._term(f"prior of {name}", pm.logp(law, quantity).sum())
        self._state("prior", (name,), None, quantity=pt.as_tensor(quantity), of=law)

    def population(self, columns: Sequence[str], mean: Any, covariance: Any) -> None:
        """State which numeric columns of records are jointly normal, for
        :meth:`ridge_fit`.

        Parameters
        ----------
        columns : sequence of str
            Their names.
        mean, covariance : TensorVariable, shape (columns,) and (columns, columns)
            Variables of the model with a name, such as a ``pm.Deterministic``; of u.
        """
        self.population_columns = tuple(columns)
        self.population_law = (str(mean.name), str(covariance.name))

    def ridge_fit(self, name: str, coefficients: Any) -> None:
        """State that a :class:`pdips.statistics.logistic.Logistic` statistic is the fit
        of records with coefficients.

        Its law needs sums over the population and has no density here: chains draw all
        else, and the coefficients are drawn afterwards, one regression after the other
        (:mod:`pdips.statistics.regression`).

        Parameters
        ----------
        name : str
            The statistic.
        coefficients : TensorVariable, shape (logits, coefficients)
            A free variable with one normal prior about 0.

        Raises
        ------
        InputError
            With add-remove, or with the plug-in likelihood.
        """
        if self.measured.n_records is None or not self.aware:
            raise InputError(
                f"{name!r}: ridge fits are for neighbours = replace-one "
                f"and likelihood = noise-aware"
            )
        self._state("ridge_fit", (name,), None, coefficients=pt.as_tensor(coefficients))

    def _is_unknown(self, name: str) -> bool:
        return self.aware and self.measured.part(name).n_noised > 0

    def _noise_on(self, name: str, exact: Any) -> None:
        """State that noisy statistics are these exact ones with noise, where that is
        allowed for.
        """
        if self._is_unknown(name):
            part = self.measured.part(name)
            noisy, scale = self._noisy(name)
            noise = (noisy - exact)[: part.n_noised]
            self._term(f"noise on {name}", laws.noise(noise, scale, part.law).sum())

    def _noisy(self, name: str) -> tuple[Any, Any]:
        noisy = self.fixed(f"noisy {name}", self.measured.value(name))
        scale = np.asarray(self.measured.scale(name))
        return noisy, self.fixed(f"scale of {name}", scale)

    def _term(self, name: str, density: Any) -> None:
        """Add a term to the model's density, and remember that it is one of these."""
        self.terms.append(pm.Potential(name, density))

    def _state(
        self, law: str, names: tuple[str, ...], exact: Any, **arguments: Any
    ) -> Any:
        self.stated.append(StatisticLaw(law, names, arguments, exact))
        return exact

    def _unknown(self, name: str) -> str:
        """Return the name of a variable that stands for something exact or for noise,
        and remember it.
        """
        self.latents.append(name)
        return name
