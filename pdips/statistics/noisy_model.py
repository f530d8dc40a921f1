"""What a model of noisy statistics is given: laws of exact statistics, seen through their noise or taken as exact."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.statistics import laws
from pdips.statistics.plan import LEAST_RECORDS, NoisyStatistics, number_of_records, scatter_about, settle
from pdips.statistics.statistic import Counts

Likelihood = Literal["noise-aware", "plug-in"]

MOST_TERMS = 4096  # Values of a count that are summed over one by one; with more, it is a real number
FAR = 1e9  # The variance of an entry that says nothing
LEAST_VARIANCE = 1e-6  # Added to statistics' (in records, or units u, squared): rounding makes none negative

USED = "used {}"


@dataclass(frozen=True, eq=False)
class StatisticLaw:
    """A law that a model stated of exact statistics, or of a quantity that its parameters make."""

    law: str  # the method of Evidence that stated it
    names: tuple[str, ...]  # the statistics, or what the quantity is called
    arguments: Mapping[str, Any]  # what the method was given, as graphs or numbers
    exact: Any = None  # the exact statistics that it returned


class Evidence:
    """Noisy statistics of a table, in a ``with pm.Model()`` block.

    A model says how the exact statistics are distributed given its parameters. With ``plug-in`` these are the noisy
    ones after post-processing, taken as if exact, as in Bowen and Liu (2020). With ``noise-aware`` they are unknown:
    the law of the noise, which is public, says how far the noisy ones may be from them.

    Parameters
    ----------
    measured : NoisyStatistics
        Noisy statistics.
    likelihood : {"noise-aware", "plug-in"}
        How the model sees them.

    Notes
    -----
    Units: counts are records; sums and products are of u = (x - middle) / half of the public bounds, in [-1, 1].
    ``stated`` lists the laws that a model stated, ``terms`` the potentials that they became and ``latents`` the free
    variables that stand for something exact or for noise: with its priors, they are all of a model that has no other
    potentials (:mod:`pdips.statistics.samplers`).
    What is exact is continuous here where it isn't summed over, with the density exp(-abs(noise) / scale) in place of
    the discrete Laplace probabilities, to which it is proportional on the grid.

    Examples
    --------
    >>> def build_model(given, schema):
    ...     with pm.Model() as model:
    ...         share = pm.Beta("share", 1, 1)
    ...         given.observe("counts", pm.Binomial.dist(given.n, share), given.n)
    ...     return model
    """

    def __init__(self, measured: NoisyStatistics, likelihood: Likelihood = "noise-aware") -> None:
        self.measured, self.schema = measured, measured.schema
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
        """Number of records: public under replace-one, otherwise what counts add up to."""
        if self.measured.n_records is not None:
            return float(self.measured.n_records)
        if self._counts:
            return next(iter(self._counts.values())).sum()
        return self._counts_of(next(iter(self.measured.of(Counts))).name).sum()

    @property
    def public(self) -> Mapping[str, NDArray[Any]]:
        """The public columns as models read them, shape (records,): codes of levels, or numbers in their own unit.

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
            Exact counts, which later laws may depend on; real numbers where they are unknown.
        """
        counts = self._counts_of(name, p)
        self._term(f"law of {name}", laws.multinomial(counts, p))
        return self._state("multinomial", (name,), counts, p=pt.as_tensor(p))

    def dirichlet_multinomial(self, name: str, alpha: float) -> Any:
        """State that exact counts are multinomial with shares that have a Dirichlet prior, and return them.

        The shares are integrated out. Given the counts they are Dirichlet(alpha + counts): a model file draws them in
        its ``draw_rest``.

        Parameters
        ----------
        name : str
            A :class:`Counts` statistic.
        alpha : float
            Of each cell, above 0.
        """
        counts = self._counts_of(name)
        self._term(f"law of {name}", laws.dirichlet_multinomial(counts, alpha, len(self.used[name])))
        return self._state("dirichlet_multinomial", (name,), counts, alpha=alpha)

    def _counts_of(self, name: str, p: Any = None) -> Any:
        """Return exact counts: as they are, or flat, seen through their noise, and near to ``p`` where that is loud."""
        if name in self._counts:
            return self._counts[name]
        n, used = self.measured.n_records, self.used[name]
        if not self._is_unknown(name):
            self._counts[name] = self.fixed(USED.format(name), used)
            return self._counts[name]
        # A table of one record has no scatter: a total that is counted by itself is above that.
        least = LEAST_RECORDS if n is None and len(used) == 1 else 0
        deviation = self.measured.deviation(name)
        fixed = laws.steering_counts(self.noisy(name) - least, used - least, deviation, near=p is not None)
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=len(used) - (n is not None))
        known = {what: self.fixed(f"{what} of {name}", each) for what, each in fixed.items()}
        counts, density = laws.counts_given(moved, p, n, **known)
        self._term(f"flat {name}", density)
        self._noise_on(name, counts + least)
        self._counts[name] = counts + least
        return self._counts[name]

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
            density = pm.logp(law, pt.round(self.fixed(USED.format(name), self.used[name])[0]))
        elif n > MOST_TERMS:
            exact = n * pm.Beta(self._unknown(f"share of {name}"), 1, 1, initval=(self.used[name][0] + 0.5) / (n + 1))
            density = pm.logp(law, exact)
            self._noise_on(name, pt.stack([exact]))
        else:
            terms, (noisy, scale) = np.arange(n + 1), self._noisy(name)
            weights = laws.noise(noisy[0] - terms, scale, self.measured.part(name).law)
            density = pt.logsumexp(pm.logp(law, terms) + weights)
        self._term(f"law of {name}", density)

    def normal(self, names: str | Sequence[str], mean: Any, chol: Any, times: Any = 1.0, between: Any = None) -> Any:
        """State that exact sums are normal, and return them.

        Parameters
        ----------
        names : str or sequence of str
            Statistics of the same number of entries.
        mean : TensorVariable, shape (entries, statistics); (entries,) for a single one
            Their means given the parameters.
        chol : TensorVariable, shape (statistics, statistics), or a number
            Lower Cholesky factor of the covariance that one record adds; for a single one its standard deviation.
        times : TensorVariable, shape (entries,)
            Records that each entry sums over.
        between : TensorVariable, shape (statistics,), optional
            Standard deviations of the entries' own means, independent normal, which are integrated out.

        Returns
        -------
        TensorVariable, of the shape of ``mean``
        """
        known = (names,) if isinstance(names, str) else tuple(names)
        d, entries = len(known), len(self.used[known[0]])
        mean, chol = pt.as_tensor(mean).reshape((entries, d)), pt.as_tensor(chol).reshape((d, d))
        between = None if between is None else pt.as_tensor(between).reshape((d,))
        rows = laws.factors(chol, d, times * pt.ones(entries), between)
        standard, exact, density = list[Any](), list[Any](), []
        for place, name in enumerate(known):
            before = zip(rows[place], standard, strict=False)
            centre = mean[:, place] + sum((row * each for row, each in before), start=pt.zeros(entries))
            moved, of = self._sums(name, centre, rows[place][place])
            standard.append(moved)
            exact.append(centre + rows[place][place] * moved)
            density.append(of)
            self._noise_on(name, exact[place])
        self._term(f"law of {', '.join(known)}", sum(density))
        found = exact[0] if isinstance(names, str) else pt.stack(exact, axis=1)
        arguments = {"mean": mean, "chol": chol, "times": times * pt.ones(entries), "between": between}
        return self._state("normal", known, found, **arguments)

    def _sums(self, name: str, mean: Any, sd: Any) -> tuple[Any, Any]:
        """Return standardised sums, unknown or not, and their log density."""
        if not self._is_unknown(name):
            standard = (self.fixed(USED.format(name), self.used[name]) - mean) / sd
            return standard, -(standard**2).sum() / 2 - pt.log(sd).sum()
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=len(self.used[name]))
        deviation = self.fixed(f"deviation of {name}", np.asarray(self.measured.deviation(name)))
        return laws.sum_given(self._noisy(name)[0], deviation, moved, mean, sd)

    def wishart(self, names: Sequence[str], df: Any, chol: Any, about: Any = 0.0) -> Any:
        """State that the scatter about the means is Wishart distributed, and return it.

        Parameters
        ----------
        names : sequence of str
            Products of one entry each, those of the lower triangle row by row: xx, yx, yy, ...
        df : TensorVariable
            Degrees of freedom, above the number of columns less 1: refused where it is a number that isn't.
        chol : TensorVariable, shape (d, d); a number for one column
            Lower Cholesky factor of the covariance of a record.
        about : TensorVariable, shape (d, d); a number for one column
            What the products have on top of the scatter: that of the means, sum_k T_k T_k' / n_k.

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
        chol, about = pt.as_tensor(chol).reshape((d, d)), about * pt.ones((d, d))
        label = ", ".join(names)
        if isinstance(df, (int, float)) and df <= d - 1:
            raise InputError(
                f"{label}: too few records for this model (their public number leaves {df:g} degrees of "
                f"freedom, and it needs more than {d - 1}); take a larger table or a simpler model"
            )
        if any(self._is_unknown(name) for name in names):
            deviations = np.array([self.measured.deviation(name) for name in names])
            centre = np.linalg.cholesky(scatter_about(self.measured, self.used, names, deviations.max()))
            follow, steps = laws.steering(centre, deviations, number_of_records(self.measured, self.used))
            moved = pm.Normal(self._unknown(f"moves of {label}"), 0, 1, shape=len(names))
            fixed = {"centre": centre, "follow": follow, "steps": steps}
            known = {name: self.fixed(f"{name} of {label}", each) for name, each in fixed.items()}
            factor, density = laws.scatter_given(moved, chol, df, d=d, **known)
            scatter = pt.dot(factor, factor.T)
            for name, row, column in zip(names, rows, columns, strict=True):
                self._noise_on(name, pt.stack([scatter[row, column] + about[row, column]]))
        else:
            exact = pt.concatenate([self.fixed(USED.format(name), self.used[name]) for name in names])
            scatter = laws.symmetric(exact, d) - about
            density = laws.wishart(scatter, df, chol, d)
        self._term(f"law of {label}", density)
        return self._state("wishart", tuple(names), scatter, df=pt.as_tensor(df), chol=chol, about=about)

    def gaussian(self, names: Sequence[str], mean: Any, covariance: Any) -> None:
        """State that exact statistics, all entries one after the other, are jointly normal, and integrate them out.

        Parameters
        ----------
        names : sequence of str
            Statistics.
        mean, covariance : TensorVariable, shape (all entries,) and (all entries, all entries)
            Given the parameters; the covariance is nonnegative definite.

        Notes
        -----
        A Laplace law is a normal one whose variance is exponential (Andrews and Mallows, Scale mixtures of normal
        distributions, 1974): given these variances, one for each noised entry, noisy statistics are normal too. Where
        counts add up to a public number, the last of them says nothing more and is left aside.
        """
        self._state("gaussian", tuple(names), None, mean=mean, covariance=covariance)
        values, variances = zip(*(self._spread_by_noise(name) for name in names), strict=True)
        whole = covariance + pt.diag(pt.concatenate(variances) + LEAST_VARIANCE)
        self._term(f"law of {', '.join(names)}", pm.logp(pm.MvNormal.dist(mean, whole), pt.concatenate(values)))

    def _spread_by_noise(self, name: str) -> tuple[Any, Any]:
        """Return a statistic as the model sees it, and the variances that noise adds to its entries."""
        part, size = self.measured.part(name), len(self.used[name])
        if not self._is_unknown(name):
            adds_up = isinstance(part.statistic, Counts) and self.measured.n_records is not None
            own = np.where(np.arange(size) < size - adds_up, 0, FAR)
            return self.fixed(USED.format(name), self.used[name]), pt.as_tensor(own)
        noisy, scale = self._noisy(name)
        if part.law == "gaussian":
            own = scale**2 * pt.ones(part.n_noised)
        else:
            own = 2 * scale**2 * pm.Exponential(self._unknown(f"variances on {name}"), 1.0, shape=part.n_noised)
        return noisy, pt.concatenate([own, pt.full((size - part.n_noised,), FAR)])

    def poisson_total(self, name: str) -> Any:
        """Return the number of records: as it is, or where it is protected the mean of a Poisson law, which is flat.

        Parameters
        ----------
        name : str
            The :class:`Counts` that say it. Sums over records are compound Poisson then: their covariance is made of
            uncentred second moments.
        """
        start = number_of_records(self.measured, self.used)
        if self.measured.n_records is not None or not self.aware:
            return self.fixed("number of records", np.asarray(start))
        if not isinstance(self.measured.part(name).statistic, Counts):
            raise InputError(f"{name!r} must count records where their number is protected")
        noise = self.measured.deviation(name) * math.sqrt(len(self.used[name]))
        step = min(math.hypot(noise, math.sqrt(start)) / start, 1.0)
        base, width = self.fixed("start of records", start), self.fixed("step of records", step)
        moved = pm.Normal(self._unknown("moves of records"), 0, 1)
        self._term("flat records", moved**2 / 2 + width * moved)
        return base * pt.exp(width * moved)

    def fixed(self, name: str, values: Any) -> Any:
        """Return public numbers as ``pm.Data``, so that a compiled model serves other public columns too."""
        model, self.data[name] = pm.modelcontext(None), np.asarray(values, dtype=float)
        return model.named_vars[name] if name in model.named_vars else pm.Data(name, self.data[name])

    def least_squares(self, loads: Mapping[str, FloatArray], spread: float) -> tuple[FloatArray, FloatArray]:
        """Return b for which ``loads @ b`` is near the noisy statistics of these names, and a root of its covariance.

        Entries of b are roughly as large as ``spread``. Shapes (p,) and (p, p).
        """
        deviations = {name: max(self.measured.deviation(name), 1e-9) for name in loads}
        weighted = np.vstack([each / deviations[name] for name, each in loads.items()])
        values = np.concatenate([self.used[name] / deviations[name] for name in loads])
        precision = weighted.T @ weighted + np.eye(weighted.shape[1]) / spread**2
        return np.linalg.solve(precision, weighted.T @ values), np.linalg.inv(np.linalg.cholesky(precision)).T

    def solved(self, name: str, loads: Mapping[str, FloatArray], spread: float) -> Any:
        """Return the unknown vector b of which statistics are linear functions: flat, and seen through their noise.

        Parameters
        ----------
        name : str
            What to call it.
        loads : mapping of str to ndarray, shape (entries, p)
            The statistic of that name is ``loads @ b``; together they determine b, or nearly so.
        spread : float
            Roughly how large entries of b are. It steers chains only; plug-in shrinks what isn't determined by it.

        Returns
        -------
        TensorVariable, shape (p,)
            Plug-in: the weighted least-squares solution of the noisy ones.
        """
        found, spread_of = self.least_squares(loads, spread)
        centre = self.fixed(f"centre of {name}", found)
        if not self.aware:
            return self._state("solved", tuple(loads), centre, loads=loads)
        root = self.fixed(f"root of {name}", spread_of)
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=len(found))
        self._term(f"flat {name}", (moved**2).sum() / 2)
        found = centre + pt.dot(root, moved)
        for key, each in loads.items():
            self._noise_on(key, pt.dot(self.fixed(f"loads of {key}", each), found))
        return self._state("solved", tuple(loads), found, loads=loads)

    def prior(self, name: str, quantity: Any, law: Any) -> None:
        """State the prior of a quantity that is no variable of its own, in the coordinates in which chains move.

        Parameters
        ----------
        name : str
            What to call it.
        quantity : TensorVariable
            Made of variables and exact statistics; the Jacobian from these to it must be constant.
        law : TensorVariable
            An unregistered distribution of its shape, or a scalar one for each entry, such as ``pm.Normal.dist(0, 1)``.
        """
        self._term(f"prior of {name}", pm.logp(law, quantity).sum())
        self._state("prior", (name,), None, quantity=pt.as_tensor(quantity), of=law)

    def population(self, columns: Sequence[str], mean: Any, covariance: Any) -> None:
        """State which numeric columns of records are jointly normal, for :meth:`ridge_fit`.

        Parameters
        ----------
        columns : sequence of str
            Their names.
        mean, covariance : TensorVariable, shape (columns,) and (columns, columns)
            Variables of the model with a name, such as a ``pm.Deterministic``; of u.
        """
        self.population_columns, self.population_law = tuple(columns), (str(mean.name), str(covariance.name))

    def ridge_fit(self, name: str, coefficients: Any) -> None:
        """State that a :class:`pdips.statistics.logistic.Logistic` statistic is the fit of records with coefficients.

        Its law needs sums over the population and has no density here: chains draw all else, and the coefficients are
        drawn afterwards, one regression after the other (:mod:`pdips.statistics.regression`).

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
            raise InputError(f"{name!r}: ridge fits are for neighbours = replace-one and likelihood = noise-aware")
        self._state("ridge_fit", (name,), None, coefficients=pt.as_tensor(coefficients))

    def _is_unknown(self, name: str) -> bool:
        return self.aware and self.measured.part(name).n_noised > 0

    def _noise_on(self, name: str, exact: Any) -> None:
        """State that noisy statistics are these exact ones with noise, where that is allowed for."""
        if self._is_unknown(name):
            part, (noisy, scale) = self.measured.part(name), self._noisy(name)
            self._term(f"noise on {name}", laws.noise((noisy - exact)[: part.n_noised], scale, part.law).sum())

    def _noisy(self, name: str) -> tuple[Any, Any]:
        noisy = self.fixed(f"noisy {name}", self.measured.value(name))
        return noisy, self.fixed(f"scale of {name}", np.asarray(self.measured.scale(name)))

    def _term(self, name: str, density: Any) -> None:
        """Add a term to the model's density, and remember that it is one of these."""
        self.terms.append(pm.Potential(name, density))

    def _state(self, law: str, names: tuple[str, ...], exact: Any, **arguments: Any) -> Any:
        self.stated.append(StatisticLaw(law, names, arguments, exact))
        return exact

    def _unknown(self, name: str) -> str:
        """Return the name of a variable that stands for something exact or for noise, and remember it."""
        self.latents.append(name)
        return name
