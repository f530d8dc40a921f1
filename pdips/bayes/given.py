"""What a model of noisy statistics is given: the laws of exact statistics, observed as if exact or through their
noise."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips.bayes import centring
from pdips.bayes.sanitizing import Measured
from pdips.bayes.settling import number_of_records, scatter_about, settle
from pdips.bayes.statistics import Counts
from pdips.errors import InputError
from pdips.schema import Schema

FloatArray = NDArray[np.float64]
Likelihood = Literal["noise-aware", "plug-in"]

MOST_TERMS = 4096
"""Values of a count that are summed over one by one; with more, it is a real number."""

DEVIATIONS = 0.5
"""Noise above this many standard deviations of the statistic itself: chains move the statistic about its mean; below,
about its noisy value. It steers chains only."""

NOISY, SCALE, USED = "noisy {}", "scale of {}", "used {}"


class Given:
    """Noisy statistics of a table, in a ``with pm.Model()`` block.

    A model says how the exact statistics are distributed given its parameters. With ``plug-in`` these are the noisy
    ones after post-processing, taken as if exact, as in paper 003. With ``noise-aware`` they are unknown: the law of
    the noise, which is public, says how far the noisy ones may be from them.

    Parameters
    ----------
    measured : Measured
        Noisy statistics.
    likelihood : {"noise-aware", "plug-in"}
        How the model sees them.

    Notes
    -----
    Units: counts are records; sums and products are of u = (x - middle) / half of the public bounds, in [-1, 1].
    What is exact is continuous here where it isn't summed over, with the density exp(-abs(noise) / scale) in place of
    the discrete Laplace probabilities, to which it is proportional on the grid.
    """

    def __init__(self, measured: Measured, likelihood: Likelihood = "noise-aware") -> None:
        self.measured = measured
        self.likelihood: Likelihood = likelihood
        self.used = settle(measured)
        self._counts: dict[str, Any] = {}
        self.latents: list[str] = []

    @property
    def schema(self) -> Schema:
        """The schema of the table."""
        return self.measured.schema

    @property
    def aware(self) -> bool:
        """Whether the model allows for the noise."""
        return self.likelihood == "noise-aware"

    @property
    def n(self) -> Any:
        """Number of records: public under replace-one, otherwise what counts add up to."""
        if self.measured.n_records is not None:
            return float(self.measured.n_records)
        if self._counts:
            return next(iter(self._counts.values())).sum()
        if not self.aware:
            return number_of_records(self.measured, self.used)
        return self.counts(next(part.name for part in self.measured.parts if isinstance(part.statistic, Counts))).sum()

    def noisy(self, name: str) -> FloatArray:
        """Return noisy statistics as they are published, shape (entries,)."""
        return self.measured.value(name)

    def __getitem__(self, name: str) -> FloatArray:
        """Return noisy statistics after post-processing, shape (entries,)."""
        self.measured.part(name)
        return self.used[name]

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
        counts = self.counts(name, p)
        law = pt.sum(counts * pt.log(p) - pt.gammaln(counts + 1)) + pt.gammaln(counts.sum() + 1)
        pm.Potential(f"law of {name}", law)
        return counts

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
        counts, cells = self.counts(name), len(self.used[name])
        total = counts.sum()
        law = pt.sum(pt.gammaln(counts + alpha) - pt.gammaln(counts + 1))
        pm.Potential(f"law of {name}", law + pt.gammaln(total + 1) - pt.gammaln(total + cells * alpha))
        return counts

    def counts(self, name: str, p: Any = None) -> Any:
        """Return exact counts without a law, shape (cells,): the model must state one.

        Parameters
        ----------
        name : str
            A :class:`Counts` statistic.
        p : TensorVariable, shape (cells,), optional
            Probabilities that counts are near to. They steer chains only.
        """
        part = self.measured.part(name)
        if name not in self._counts:
            if not self.aware or not part.n_noised:
                self._counts[name] = self._data(USED.format(name), self.used[name])
            else:
                self._counts[name] = self._unknown_counts(name, p)
        return self._counts[name]

    def _unknown_counts(self, name: str, p: Any = None) -> Any:
        """Return unknown counts: flat, and observed through their noise. They add up to n if that is public."""
        n, deviation, used = self.measured.n_records, self.measured.deviation(name), self.used[name]
        start = np.maximum(np.minimum(used, np.maximum(self.noisy(name), deviation / 2)), 1e-3)
        follow = np.ones(len(start)) if p is None else start / (start + deviation**2)
        step = np.minimum(np.sqrt(follow) * deviation / start, 1.0)
        label, cells = self._unknown(f"moves of {name}"), len(start)
        moved = pm.Normal(label, 0, 1, shape=cells - (n is not None))
        steps = moved if n is None else centring.adding_up(moved)
        place, length, follow = (
            self._data(f"{what} of {name}", each)
            for what, each in (("place", start), ("step", step), ("follow", follow))
        )
        logs = follow * pt.log(place) + length * steps
        if p is not None:
            logs = logs + (1 - follow) * pt.log(p * place.sum())
        counts = pt.exp(logs) if n is None else n * pt.exp(logs) / pt.exp(logs).sum()
        pm.Potential(f"flat {name}", pt.sum(moved**2) / 2 + pt.log(counts).sum())
        self.observe_noise(name, counts)
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
        if not self.aware:
            pm.Potential(f"law of {name}", pm.logp(law, pt.round(self._data(USED.format(name), self.used[name])[0])))
            return
        if n > MOST_TERMS:
            exact = n * pm.Beta(self._unknown(f"share of {name}"), 1, 1, initval=(self.used[name][0] + 0.5) / (n + 1))
            pm.Potential(f"law of {name}", pm.logp(law, exact))
            self.observe_noise(name, pt.stack([exact]))
            return
        terms = np.arange(n + 1)
        noisy, scale = self._noisy(name)
        weights = self._log_density(noisy[0] - terms, scale)
        pm.Potential(f"law of {name}", pt.logsumexp(pm.logp(law, terms) + weights))

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
        single = isinstance(names, str)
        known = (names,) if isinstance(names, str) else tuple(names)
        d, label, entries = len(known), ", ".join(known), len(self.used[known[0]])
        mean, chol = pt.as_tensor(mean).reshape((entries, d)), pt.as_tensor(chol).reshape((d, d))
        between = None if between is None else pt.as_tensor(between).reshape((d,))
        rows = centring.factors(chol, d, times * pt.ones(entries), between)
        standard, exact, density = list[Any](), list[Any](), []
        for place, name in enumerate(known):
            before = zip(rows[place], standard, strict=False)
            centre = mean[:, place] + sum((row * each for row, each in before), start=pt.zeros(entries))
            moved, of = self._sums(name, centre, rows[place][place])
            standard.append(moved)
            exact.append(centre + rows[place][place] * moved)
            density.append(of)
            self.observe_noise(name, exact[place])
        pm.Potential(f"law of {label}", sum(density))
        return exact[0] if single else pt.stack(exact, axis=1)

    def _sums(self, name: str, mean: Any, sd: Any) -> tuple[Any, Any]:
        """Return standardised sums, unknown or not, and their log density."""
        if not self.aware or not self.measured.part(name).n_noised:
            standard = (self._data(USED.format(name), self.used[name]) - mean) / sd
            return standard, -(standard**2).sum() / 2 - pt.log(sd).sum()
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=len(self.used[name]))
        deviation = self._data(f"deviation of {name}", np.asarray(self.measured.deviation(name)))
        return centring.sum_given(self._noisy(name)[0], deviation, moved, mean, sd)

    def wishart(self, names: Sequence[str], df: Any, chol: Any, about: Any = 0.0) -> Any:
        """State that the scatter about the means is Wishart distributed, and return it.

        Parameters
        ----------
        names : sequence of str
            Products of one entry each, those of the lower triangle row by row: xx, yx, yy, ...
        df : TensorVariable
            Degrees of freedom, above the number of columns less 1.
        chol : TensorVariable, shape (d, d); a number for one column
            Lower Cholesky factor of the covariance of a record.
        about : TensorVariable, shape (d, d); a number for one column
            What the products have on top of the scatter: that of the means, sum_k T_k T_k' / n_k.

        Returns
        -------
        TensorVariable, shape (d, d)
        """
        rows, columns = np.tril_indices(int(np.sqrt(2 * len(names))))
        d = rows[-1] + 1
        chol, about = pt.as_tensor(chol).reshape((d, d)), about * pt.ones((d, d))
        label = ", ".join(names)
        if self.aware and any(self.measured.part(name).n_noised for name in names):
            scatter = self._unknown_scatter(names, df, chol, d)
            for name, row, column in zip(names, rows, columns, strict=True):
                self.observe_noise(name, pt.stack([scatter[row, column] + about[row, column]]))
            return scatter
        exact = pt.concatenate([self._data(USED.format(name), self.used[name]) for name in names])
        whole = pt.zeros((d, d))
        whole = pt.set_subtensor(whole[rows, columns], exact)
        whole = pt.set_subtensor(whole[columns, rows], exact)
        scatter = whole - about
        inside = pt.linalg.solve_triangular(chol, scatter, lower=True)
        trace = pt.trace(pt.linalg.solve_triangular(chol, inside.T, lower=True))
        _, log_det = pt.linalg.slogdet(scatter)
        pm.Potential(
            f"law of {label}",
            (df - d - 1) / 2 * log_det - trace / 2 - df * pt.log(pt.diag(chol)).sum() - centring.log_norm(df, d),
        )
        return scatter

    def _unknown_scatter(self, names: Sequence[str], df: Any, chol: Any, d: int) -> Any:
        label = ", ".join(names)
        deviations = np.array([self.measured.deviation(name) for name in names])
        centre = np.linalg.cholesky(scatter_about(self.measured, self.used, names, deviations.max()))
        follow, steps = centring.steering(centre, deviations, number_of_records(self.measured, self.used))
        moved = pm.Normal(self._unknown(f"moves of {label}"), 0, 1, shape=len(names))
        fixed = {"centre": centre, "follow": follow, "steps": steps}
        known = {name: self._data(f"{name} of {label}", each) for name, each in fixed.items()}
        factor, density = centring.scatter_given(moved, chol, df, d=d, **known)
        pm.Potential(f"law of {label}", density)
        return pt.dot(factor, factor.T)

    def gaussian(self, names: Sequence[str], mean: Any, covariance: Any) -> Any:
        """State that exact statistics, all entries one after the other, are jointly normal, and return them.

        Parameters
        ----------
        names : sequence of str
            Statistics.
        mean : TensorVariable, shape (all entries,)
            Given the parameters.
        covariance : TensorVariable, shape (all entries, all entries)
            Given the parameters, positive definite.
        """
        chol, label = pt.linalg.cholesky(covariance), ", ".join(names)
        sizes = [len(self.used[name]) for name in names]
        if self.aware and self._is_loud(names):
            moved = pm.Normal(self._unknown(f"{label} about the mean"), 0, 1, shape=sum(sizes))
            exact = mean + pt.dot(chol, moved)
            for name, part in zip(names, np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]), strict=True):
                self.observe_noise(name, exact[part])
            return exact
        exact = pt.concatenate([self._about_noisy(name) for name in names])
        moved = pt.linalg.solve_triangular(chol, exact - mean, lower=True)
        pm.Potential(f"law of {label}", -(moved**2).sum() / 2 - pt.log(pt.diag(chol)).sum())
        return exact

    @property
    def public(self) -> Mapping[str, NDArray[Any]]:
        """The public columns as models read them, shape (records,): codes of levels, or numbers in their own unit.

        They are the same in neighbouring tables. A model that makes numbers of them hands these to :meth:`fixed`.
        """
        return self.measured.public

    def fixed(self, name: str, values: Any) -> Any:
        """Return public numbers as ``pm.Data``, so that a compiled model serves other public columns too."""
        return self._data(name, values)

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
        deviations = {key: max(self.measured.deviation(key), 1e-9) for key in loads}
        weighted = np.vstack([each / deviations[key] for key, each in loads.items()])
        target = np.concatenate([self.used[key] / deviations[key] for key in loads])
        p = weighted.shape[1]
        precision = weighted.T @ weighted + np.eye(p) / spread**2
        centre = self._data(f"centre of {name}", np.linalg.solve(precision, weighted.T @ target))
        if not self.aware:
            return centre
        root = self._data(f"root of {name}", np.linalg.inv(np.linalg.cholesky(precision)).T)
        moved = pm.Normal(self._unknown(f"moves of {name}"), 0, 1, shape=p)
        pm.Potential(f"flat {name}", (moved**2).sum() / 2)
        found = centre + pt.dot(root, moved)
        for key, each in loads.items():
            self.observe_noise(key, pt.dot(self._data(f"loads of {key}", each), found))
        return found

    def exact(self, name: str) -> Any:
        """Return exact statistics without a law, shape (entries,): the model must state one.

        Unknown ones are the noisy ones less noise, which has its law; plug-in ones are constants.
        """
        return self._about_noisy(name)

    def observe_noise(self, name: str, exact: Any) -> None:
        """State that noisy statistics are these exact ones, shape (entries,), with noise; nothing if noise is
        ignored."""
        part = self.measured.part(name)
        if self.aware and part.n_noised:
            noisy, scale = self._noisy(name)
            pm.Potential(f"noise on {name}", self._log_density((noisy - exact)[: part.n_noised], scale).sum())

    def log_noise(self, name: str, exact: Any) -> FloatArray:
        """Return the log density, up to a constant, of the noisy first entry if the exact one had these values.

        For models that draw from their posterior themselves.

        Parameters
        ----------
        name : str
            A statistic with one noised entry, such as one of two counts.
        exact : array_like
            Values that it may have, in the model's unit.
        """
        noise = (self.noisy(name)[0] - np.asarray(exact, dtype=np.float64)) / self.measured.scale(name)
        density: FloatArray = -np.abs(noise) if self.measured.part(name).law == "laplace" else -(noise**2) / 2
        return density

    def _about_noisy(self, name: str) -> Any:
        part = self.measured.part(name)
        if not self.aware or not part.n_noised:
            return self._data(USED.format(name), self.used[name])
        law = pm.Laplace if part.law == "laplace" else pm.Normal
        noise = law(self._unknown(f"noise on {name}"), 0, 1, shape=len(self.used[name]))
        noisy, scale = self._noisy(name)
        return noisy - scale * noise

    def _is_loud(self, names: Sequence[str]) -> bool:
        """Whether the noise is larger than the statistics vary by themselves, were records spread over half the
        range."""
        n = number_of_records(self.measured, self.used)
        parts = [self.measured.part(name) for name in names]
        own = [np.sqrt(n * part.statistic.spread(self.schema).min()) / 2 for part in parts]
        return any(
            self.measured.deviation(part.name) > DEVIATIONS * each for part, each in zip(parts, own, strict=True)
        )

    def _noisy(self, name: str) -> tuple[Any, Any]:
        noisy = self._data(NOISY.format(name), self.measured.value(name))
        return noisy, self._data(SCALE.format(name), np.asarray(self.measured.scale(name)))

    def _log_density(self, noise: Any, scale: Any) -> Any:
        if self.measured.parts[0].law == "laplace":
            return -pt.abs(noise) / scale
        return -((noise / scale) ** 2) / 2

    def _data(self, name: str, values: Any) -> Any:
        """Return numbers as ``pm.Data``, so that other ones can take their place in a compiled model."""
        model = pm.modelcontext(None)
        return model.named_vars[name] if name in model.named_vars else pm.Data(name, np.asarray(values, dtype=float))

    def _unknown(self, name: str) -> str:
        """Return the name of a variable that stands for something exact or for noise, and remember it."""
        self.latents.append(name)
        return name


def check_proper(model: pm.Model) -> None:
    """Refuse improper priors: a posterior given noisy statistics need not exist under them.

    Raises
    ------
    InputError
        Naming the first one.
    """
    for variable in model.free_RVs:
        if type(variable.owner.op).__name__ in ("FlatRV", "HalfFlatRV"):
            raise InputError(
                f"{variable.name!r} has an improper prior, under which the posterior given noisy statistics need not "
                "exist; give it a proper one"
            )
