"""pseudo-posterior: the weighted synthesizers of paper 004, which bound nothing for any table."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run
from pdips.posterior.censoring import censor_records
from pdips.posterior.columns import Values, distinct, record_values
from pdips.posterior.grid import NODES, Grid
from pdips.posterior.model import ONE_AT_A_TIME, UNRECORDED, Blueprint, Workspace, workspace
from pdips.posterior.model_file import BuildModel, Source, as_source
from pdips.posterior.nuts import converged, far_apart, flat_draws, require, sample
from pdips.posterior.parameters import split, unconstrained
from pdips.posterior.private_reference import Anchor, zoom
from pdips.posterior.records import synthetic_sets
from pdips.posterior.weights import linear_weights, lipschitz_bound, weighted_e
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, choice, exact, spell
from pdips.privacy.noise import RandomBits
from pdips.release.release import Closer, Release, RunRecord

Weights = Literal["weighted", "weighted-e"]
WEIGHTS: tuple[Weights, ...] = ("weighted", "weighted-e")

CHAINS, TUNE, LEAST_DRAWS = 4, 1_000, 1_000

COMPILED = 2_000
"""Distinct records from which on it pays to compile the log-likelihood for speed."""

REACHES = (12.0, 40.0, 160.0)
"""How far a grid goes along each axis, in standard deviations: further if its edge isn't negligible."""

FLAT = 0.05
"""Curvature, a nat being 1, below which a direction has none to go by."""

NEGLIGIBLE = 1e-6
"""Probability of a grid's outermost cells."""

QUANTILES = ("least", "lower quartile", "median", "upper quartile", "greatest")


@dataclass(frozen=True, kw_only=True)
class PseudoPosterior:
    """Records drawn from a model whose likelihood counts risky records for less.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        The paper's target, which bounds nothing. ``weighted-e`` drops records by it; ``weighted`` doesn't use it.
    n_sets : int
        Number of synthetic sets, all from one draw of the parameters.
    neighbours : {"replace-one"}
        The number of records is public.
    model : path, callable or Source
        The model: a file with ``build_model(data, schema)``, or that function.
    variant : {"published"}
        There is no sound form of it.
    weights : {"weighted", "weighted-e"}
        Which of the paper's two rules gives the weights.
    scale, shift : float
        The paper's c1 and c2: weights are scale alpha + shift, brought into [0, 1].
    n_draws : int
        Draws S of the parameters over which a record's largest log-likelihood is taken.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Paper 004, section 2: fit the model, f_i = max over draws of abs(log p(x_i | theta)); alpha_i falls linearly from 1
    at the least f to 0 at the greatest; fit prior(theta) prod_i p(x_i | theta)^alpha_i; ``weighted-e`` puts alpha_i = 0
    where alpha_i f_i > epsilon / 2. The paper calls this asymptotically differentially private with
    epsilon_x = 2 max_i alpha_i f_i of the second fit. With log-likelihoods that the parameters leave
    unbounded (normal, beta, Bernoulli, ...) no finite epsilon holds at any number of records; and the weights depend on
    all records, so each record moves the weights of all others. ``docs/mechanisms/pseudo-posterior.md`` has an example.
    """

    name: ClassVar[str] = "pseudo-posterior"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    variants: ClassVar[tuple[Variant, ...]] = ("published",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    model: str | Path | BuildModel | Source | None = None
    variant: Variant = "published"
    weights: Weights = "weighted"
    scale: float = 1.0
    shift: float = 0.0
    n_draws: int = 1_000

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant)
        choice(self.weights, WEIGHTS, "weights")
        if self.model is not None:
            object.__setattr__(self, "model", as_source(self.model))
        linear_weights([1.0], scale=self.scale, shift=self.shift)
        if isinstance(self.n_draws, bool) or not isinstance(self.n_draws, int) or not 1 <= self.n_draws <= 100_000:
            raise InputError(f"n_draws must be a whole number from 1 to 100,000, got {self.n_draws}")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return what the paper claims, of kind "asymptotic"."""
        epsilon = exact(self.epsilon, "epsilon")
        text = _statement(self, schema)
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="asymptotic", sampling="mcmc", statement=text
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the one item; on the way the model is tried on stand-ins, so that its faults cost nothing."""
        space = self._space(schema)
        space.check(discrete=True)
        if not has_few(space.blueprint) and not space.discrete:
            space.check_gradient()
        return (Spend(step="parameters drawn from the pseudo posterior", epsilon=exact(self.epsilon, "epsilon")),)

    def _space(self, schema: Schema) -> Workspace:
        if self.model is None:
            raise InputError(f"{self.name} needs a model: a file with build_model(data, schema), or that function")
        return workspace(as_source(self.model), schema)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {
            "epsilon": as_float(exact(self.epsilon, "epsilon")),
            "n_sets": self.n_sets,
            "neighbours": self.neighbours,
            "variant": self.variant,
            "model": None if self.model is None else as_source(self.model).name,
            "model_source": None if self.model is None else as_source(self.model).text or None,
            "weights": self.weights,
            "scale": self.scale,
            "shift": self.shift,
            "n_draws": self.n_draws,
        }

    def record_weights(self, bounds: FloatArray) -> FloatArray:
        """Return the weights of records whose largest log-likelihoods in the unweighted fit are ``bounds``."""
        alpha = linear_weights(bounds, scale=self.scale, shift=self.shift)
        return weighted_e(alpha, bounds, self.epsilon) if self.weights == "weighted-e" else alpha

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return parameters drawn from the pseudo posterior, shape (runs, numbers), for audits of few parameters.

        The draws over which risks are taken are made once for all runs, which are independent given these.
        """
        space = self._space(table.schema)
        if not has_few(space.blueprint):
            raise InputError(f"{self.name} is audited with models of one to three continuous parameters only")
        with ONE_AT_A_TIME:
            fits = GridFit(space, record_values(table), self.n_draws, bits.generator())
            fits.largest(self.record_weights(fits.largest(None)))
            return np.stack([np.concatenate([np.ravel(v) for v in draw.values()]) for draw in fits.several(n_runs)])

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Fit, weigh, fit again and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Refuses: it holds no losses that bound nothing.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published by who allows ``"asymptotic"``, and what stays inside.

        Raises
        ------
        InputError
            If there is no model, it doesn't fit the schema, or a ledger is given.
        RefusedError
            If the chains don't converge.
        """

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            space = self._space(table.schema)
            parameters, diagnostics, closer = self._fit(space, table, bits.generator(), clock)
            sets = synthetic_sets(space.blueprint.draw, table, parameters, self.n_sets, table.n_records, bits, clock)
            return Drawn(sets=sets, diagnostics=diagnostics, closer=closer)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)

    def _fit(
        self, space: Workspace, table: Table, rng: np.random.Generator, clock: Clock
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any], Closer]:
        """Return one draw of the parameters from the pseudo posterior, what the curator may see, what looks closer."""
        fits = (GridFit if has_few(space.blueprint) else ChainFit)(space, record_values(table), self.n_draws, rng)
        with ONE_AT_A_TIME, clock.step("fitting the model"):
            bounds = fits.largest(None)
        with ONE_AT_A_TIME, clock.step("fitting the pseudo posterior"):
            weights = self.record_weights(bounds)
            weighted = fits.largest(weights)
        delta = lipschitz_bound(weights, weighted)
        alpha = np.repeat(weights, fits.counts)
        diagnostics = {
            "fit": fits.name,
            "unweighted bound": float(bounds.max()),
            "bound": delta,
            "epsilon_x": 2 * delta,
            "share of weight 0": float((alpha == 0).mean()),
            "weight quantiles": dict(zip(QUANTILES, np.quantile(alpha, [0, 0.25, 0.5, 0.75, 1]).tolist(), strict=True)),
            "draws": self.n_draws,
            "convergence": fits.convergence,
        }
        [released] = fits.several(1)

        def closer() -> Any:
            from pdips.posterior import inspection as look

            tree = fits.tree or look.tree_of(fits.several(self.n_draws))
            posterior = look.Posterior(tree=tree, released=[released], facts=fits.facts, independent=fits.tree is None)
            held = {"values": fits.values, "counts": fits.counts, "blueprint": space.blueprint}
            return look.inspect(look.Records(likelihood=space.likelihood, weights=weights, **held), posterior)

        return released, diagnostics, closer


def has_few(blueprint: Blueprint) -> bool:
    """Whether a grid takes the parameters of a model."""
    continuous = all(value.dtype.startswith("float") for value in blueprint.model.value_vars)
    return continuous and blueprint.n_parameters <= max(NODES)


class GridFit:
    """Weighted posteriors of one to three parameters, each on a grid about its peak; equal records are one row.

    It reads the whole table and adapts to it, so nothing that it gives is private. Of several peaks it sees one.
    """

    name = "grid"
    tree: xr.DataTree | None = None

    def __init__(self, space: Workspace, values: Values, n_draws: int, rng: np.random.Generator) -> None:
        self._space, self._n_draws, self._rng = space, n_draws, rng
        self.values, self.counts = distinct(values, None)
        self._mode = None if len(self.counts) > COMPILED else "FAST_COMPILE"

    def largest(self, weights: FloatArray | None) -> FloatArray:
        """Fit with some weights, and return the largest absolute log-likelihood of each row over draws."""
        self.fit(weights)
        return largest(self._space.likelihood.blocks(self.values, self._points(self._flat(self._n_draws)), self._mode))

    def fit(self, weights: FloatArray | None) -> None:
        """Fit with some weights, one a row; without, all are 1."""
        counted = self.counts * (1.0 if weights is None else weights)
        low, high = np.quantile(self._space.prior, [0.001, 0.999], axis=0)
        place = zoom(lambda flat: self._log_density(flat, counted), low, high)
        for reach in REACHES:
            self._grid = Grid(self._space.likelihood, Anchor(place, self._axes(place, counted, high - low), reach))
            self._index = self._grid.indices()
            log = self._log_density(self._grid.at(self._index), counted, self._grid.log_weights(self._index))
            self._probabilities = np.exp(log - log.max())
            self._probabilities /= self._probabilities.sum()
            self.edge = float(self._probabilities[self._grid.outermost(self._index)].sum())
            if self.edge < NEGLIGIBLE:
                break

    def _points(self, flat: FloatArray) -> list[FloatArray]:
        return split(self._space.model, flat)

    def _log_density(self, flat: FloatArray, counted: FloatArray, base: FloatArray | None = None) -> FloatArray:
        """Return ``base`` (by default the log prior) plus the weighted log-likelihood, shape (points,)."""
        points, likelihood, kept = self._points(flat), self._space.likelihood, counted > 0
        found = np.array(likelihood.log_prior(points) if base is None else base)
        rows = {name: column[kept] for name, column in self.values.items()}
        with np.errstate(all="ignore"):
            for some, terms in likelihood.blocks(rows, points, self._mode) if kept.any() else ():
                found[some] += terms @ counted[kept]
        return np.where(np.isfinite(found), found, -np.inf)

    def _axes(self, place: FloatArray, counted: FloatArray, span: FloatArray) -> FloatArray:
        """Return axes about one standard deviation long, by the curvature where the density has fallen by a nat."""
        units = np.eye(len(place))
        steps = np.diag(span * [self._scale(place, move, counted) for move in np.diag(span)])
        pairs = [(i * a + j * b) @ steps for a in units for b in units for i in (1, -1) for j in (1, -1)]
        near = self._log_density(place + np.array(pairs), counted).reshape(len(place), len(place), 4)
        curvature = -near @ [0.25, -0.25, -0.25, 0.25]
        if not np.isfinite(curvature).all():
            return steps
        values, vectors = np.linalg.eigh(curvature)
        return steps if values.min() < FLAT else steps @ vectors / np.sqrt(values)

    def _scale(self, place: FloatArray, move: FloatArray, counted: FloatArray) -> float:
        """Return the largest of 1, 1/2, 1/4, ... by which one may go in a direction, both ways, and fall by a nat."""
        shares = 0.5 ** np.arange(60)
        tried = np.concatenate([place[None], place + shares[:, None] * move, place - shares[:, None] * move])
        top, *fallen = np.split(self._log_density(tried, counted), [1, 1 + len(shares)])
        return float(shares[np.argmax(top - np.minimum(*fallen) < 1)])

    def _flat(self, n: int) -> FloatArray:
        chosen = self._rng.choice(len(self._probabilities), n, p=self._probabilities)
        return self._grid.inside(self._index[chosen], self._rng)

    def several(self, n: int) -> list[dict[str, NDArray[Any]]]:
        """Return n fresh draws of the free variables from the last fit."""
        return self._space.values_of(self._flat(n))

    @property
    def facts(self) -> dict[str, Any]:
        """What there is to say about the last fit."""
        return {"sampler": self.name, "edge": self.edge}

    @property
    def convergence(self) -> dict[str, Any]:
        """How good the last fit is."""
        return {"probability at the grid's edge": self.edge}


class ChainFit:
    """Weighted posteriors of a model with more parameters, by NUTS."""

    name = "NUTS"

    def __init__(self, space: Workspace, values: Values, n_draws: int, rng: np.random.Generator) -> None:
        self._space, self._rng, self.values = space, rng, values
        self._censored = censor_records(space.model, tuple(values), window=np.inf)
        self._censored.update(values={name: values[name] for name in space.likelihood.columns})
        self._n_draws, self._n_each = n_draws, max(-(-n_draws // CHAINS), LEAST_DRAWS)
        self.counts = np.ones(self._censored.n_records, dtype=np.int64)

    def largest(self, weights: FloatArray | None) -> FloatArray:
        """Fit with some weights, and return the largest absolute log-likelihood of each record over draws."""
        self.fit(weights)
        places = np.linspace(0, CHAINS * self._n_each - 1, self._n_draws).astype(np.int64)
        points = unconstrained(self._space.model, {name: value[places] for name, value in self._draws.items()})
        return largest(self._space.likelihood.blocks(self.values, points))

    def fit(self, weights: FloatArray | None, window: float = np.inf) -> None:
        """Fit with some weights, one a record, or with 1; weighted log-likelihoods are kept within the window, nats."""
        self._censored.update(weights=1.0 if weights is None else weights, window=window)
        self.tree = sample(self._censored, draws=self._n_each, tune=TUNE, chains=CHAINS, rng=self._rng)
        found = converged(self.tree, self._space.blueprint.source.watch)
        require(found)
        self.convergence: dict[str, Any] = {"chains": found}
        self.facts = {"sampler": self.name, "convergence": found, "passed": found.passed}
        self._draws = flat_draws(self.tree)

    def several(self, n: int) -> list[dict[str, NDArray[Any]]]:
        """Return n draws of the last fit, as far apart as they can be."""
        places = far_apart(CHAINS * self._n_each, n, self._rng)
        return [{name: value[place] for name, value in self._draws.items()} for place in places]


def largest(blocks: Iterable[tuple[slice, FloatArray]]) -> FloatArray:
    """Return max over draws of abs(log-likelihood) of each row, shape (rows,); NaN counts as infinite."""
    found = reduce(np.maximum, (np.abs(terms).max(axis=0) for _, terms in blocks))
    return np.where(np.isnan(found), np.inf, found)


def _statement(mechanism: PseudoPosterior, schema: Schema | None) -> str:
    plural = "s" if mechanism.n_sets > 1 else ""
    rule = (
        "the least risky record counts in full and the riskiest not at all"
        if mechanism.weights == "weighted"
        else "the least risky record counts in full, and records whose weighted log-likelihood exceeds half of epsilon "
        "count not at all"
    )
    parts = [
        f"{mechanism.name} ({mechanism.weights}) with the paper's target epsilon = "
        f"{spell(exact(mechanism.epsilon, 'epsilon'))} for {mechanism.n_sets} synthetic set{plural}.",
        f"Each record's likelihood is raised to a weight between 0 and 1, set by its disclosure risk: {rule}.",
        "What the paper claims (004, section 2.1) is asymptotic differential privacy: the local Lipschitz bound of the "
        "weighted log-likelihoods, computed on the confidential table, contracts onto the global one over all tables "
        "of the same size as the number of records grows, and twice that bound is epsilon.",
        "This is no guarantee for this table or any other: no finite epsilon holds at any number of records, as soon "
        "as the model's log-likelihoods are unbounded over its parameters. The weights come from a fit to the "
        "confidential table and compare its records, so replacing one record moves the weights of all others. The "
        "bound is a function of the confidential records, is not protected, and is not part of this release.",
        "Neighbours in the paper: tables that differ in the values of one record; the number of records is public.",
        "Parameters are drawn by quadrature or by Markov chains, in floating point: not exactly.",
    ]
    if mechanism.model is not None and not as_source(mechanism.model).text:
        parts.append(UNRECORDED)
    if schema is not None and schema.public_columns:
        names = ", ".join(schema.public_columns)
        parts.append(f"Public columns, their values copied (not their order) and not protected in any way: {names}.")
    return " ".join(parts)
