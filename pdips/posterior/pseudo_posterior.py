"""pseudo-posterior: the weighted synthesizers of Hu et al. (2022), which bound nothing
for any table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.convergence import converged, require
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Drawn, Variant
from pdips.posterior.censoring import censor_records, check_weights
from pdips.posterior.columns import (
    DrawnParameters,
    Values,
    distinct,
    record_values,
    synthetic_sets,
)
from pdips.posterior.model import (
    ONE_AT_A_TIME,
    UNRECORDED,
    Blueprint,
    ModelMechanism,
    split,
    unconstrained,
)
from pdips.posterior.nuts import far_apart, sample
from pdips.posterior.private_reference import Anchor, zoom
from pdips.posterior.streams import draws_by_name
from pdips.posterior.target import NODES, Grid
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator
from pdips.privacy.loss import (
    Kind,
    Number,
    as_float,
    check_whole,
    choice,
    exact,
    positive,
    spell,
)
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.offers import Offers

Weights = Literal["weighted", "weighted-e"]
WEIGHTS: tuple[Weights, ...] = ("weighted", "weighted-e")

CHAINS = 4
TUNE = 1_000
LEAST_DRAWS = 1_000

# Distinct records from which on it pays to compile the log-likelihood for speed
COMPILED = 2_000
# Of a grid along each axis, in deviations: further if its edge isn't negligible
REACHES = (12.0, 40.0, 160.0)
CORNERS = ((1, 1), (1, -1), (-1, 1), (-1, -1))  # Of a square about a peak
FLAT = 0.05  # Curvature, a nat being 1, below which a direction has none to go by
NEGLIGIBLE = 1e-6  # Probability of a grid's outermost cells
QUANTILES = ("least", "lower quartile", "median", "upper quartile", "greatest")


def check_bounds(bounds: Any) -> FloatArray:
    """Return the largest log-likelihoods of records as doubles: not negative, NaN read
    as infinite.
    """
    found = np.asarray(bounds, dtype=np.float64)
    if found.ndim != 1 or not found.size:
        raise InputError(
            "bounds must have one number for each record: the largest "
            "abs(log-likelihood)"
        )
    found = np.where(np.isnan(found), np.inf, found)
    if (found < 0).any():
        raise InputError("bounds must be absolute values, and one is below 0")
    return found


def linear_weights(
    bounds: Any, *, scale: float = 1.0, shift: float = 0.0
) -> FloatArray:
    """Return the weights of the paper's Weighted: 1 for the record of the smallest
    bound, 0 for that of the largest.
    """
    if not np.isfinite(scale) or scale <= 0:
        raise InputError(f"scale must be finite and above 0, got {scale}")
    if not np.isfinite(shift):
        raise InputError(f"shift must be finite, got {shift}")
    f = check_bounds(bounds)
    known = np.isfinite(f)
    if not known.any():
        return np.zeros(len(f))
    low = f[known].min()
    high = f[known].max()
    # where all bounds are equal none is riskier than another
    linear = np.ones(known.sum())
    if high > low:
        linear = 1 - (f[known] - low) / (high - low)
    weights = np.zeros(len(f))
    weights[known] = np.clip(scale * linear + shift, 0, 1)
    return weights


def weighted_e(weights: Any, bounds: Any, epsilon: Number) -> FloatArray:
    """Return the weights of the paper's Weighted-e: 0 where weight times bound is above
    epsilon / 2.
    """
    f = check_bounds(bounds)
    alpha = check_weights(weights, len(f))
    half = as_float(positive(epsilon, "epsilon")) / 2
    return np.where(_weighed(alpha, f) > half, 0.0, alpha)


def lipschitz_bound(weights: Any, bounds: Any) -> float:
    """Return the paper's local bound Delta = max_i alpha_i f_i, with f of the weighted
    fit.
    """
    f = check_bounds(bounds)
    alpha = check_weights(weights, len(f))
    return float(_weighed(alpha, f).max())


def _weighed(weights: FloatArray, bounds: FloatArray) -> FloatArray:
    # without weight a record has no part, whatever its f
    return weights * np.where(weights == 0, 0.0, bounds)


@dataclass(frozen=True, kw_only=True)
class PseudoPosterior(ModelMechanism):
    """Records drawn from a model whose likelihood counts risky records for less.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        The paper's target, which bounds nothing. ``weighted-e`` drops records by it;
        ``weighted`` doesn't use it.
    n_sets : int
        Number of synthetic sets, all from one draw of the parameters.
    neighbours : {"replace-one"}
        The number of records is public.
    model : path, callable or Source
        The model: a file with ``build_model(data, schema)``, or that function.
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
    Hu et al. (2022), section 2: fit the model, f_i = max over draws of abs(log p(x_i |
    theta)); alpha_i falls linearly from 1 at the least f to 0 at the greatest; fit
    prior(theta) prod_i p(x_i | theta)^alpha_i; ``weighted-e`` puts alpha_i = 0 where
    alpha_i f_i > epsilon / 2. The paper calls this asymptotically differentially
    private with epsilon_x = 2 max_i alpha_i f_i of the second fit. With log-likelihoods
    that the parameters leave unbounded (normal, beta, Bernoulli, ...) no finite epsilon
    holds at any number of records; and the weights depend on all records, so each
    record moves the weights of all others. ``docs/mechanisms/pseudo-posterior.md`` has
    an example.

    Examples
    --------
    >>> schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    >>> PseudoPosterior(epsilon=2, model="normal").privacy_loss(schema).kind
    'asymptotic'
    """

    name: ClassVar[str] = "pseudo-posterior"
    offers: ClassVar[Offers] = Offers(
        public_columns=True, kinds=("asymptotic",), posterior_of="records"
    )
    variants: ClassVar[tuple[Variant, ...]] = ("published",)
    loss_kind: ClassVar[Kind] = "asymptotic"
    variant: ClassVar[str] = "published"

    weights: Weights = "weighted"
    scale: float = 1.0
    shift: float = 0.0
    n_draws: int = 1_000

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.weights, WEIGHTS, "weights")
        linear_weights([1.0], scale=self.scale, shift=self.shift)
        check_whole(self.n_draws, "n_draws", 1, 100_000)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: one draw, with the epsilon that the paper claims; the model
        is tried on stand-ins.
        """
        self.check_schema(schema)
        space = self.space(schema)
        epsilon = exact(self.epsilon, "epsilon")
        space.check(discrete=True)
        if not has_few(space) and not space.discrete:
            space.check_gradient()
        asked = "parameters drawn from the pseudo posterior"
        counts = Sensitivity.of_counts(schema, self.neighbours)
        step = Step(name=asked, sensitivity=counts, price=epsilon, law="distribution")
        claimed: dict[str, Any] = {"sampling": "mcmc", "claim": epsilon}
        return self.planned(
            schema, [step], _statement(self, schema), kind="asymptotic", **claimed
        )

    def shown(self) -> dict[str, Any]:
        return super().shown() | {"variant": self.variant}

    def record_weights(self, bounds: FloatArray) -> FloatArray:
        """Return the weights of records whose largest log-likelihoods in the unweighted
        fit are ``bounds``.
        """
        alpha = linear_weights(bounds, scale=self.scale, shift=self.shift)
        if self.weights == "weighted-e":
            return weighted_e(alpha, bounds, self.epsilon)
        return alpha

    def ask(self, plan: Plan, curator: Curator) -> DrawnParameters:
        """Ask for parameters."""
        [step] = plan.steps
        draws = PseudoDraws(self, self.space(plan.schema))
        with (
            ONE_AT_A_TIME,
            curator.timed("fitting the model, and the pseudo posterior"),
        ):
            curator.draw(step, draws)
            # the answer is the same numbers in a row, without their names and shapes
            released = curator.keep(lambda: draws.made[-1])
        was_drawn_here = bool(draws.made)
        closer = partial(draws.look, released) if was_drawn_here else None
        return DrawnParameters(released, draws.diagnostics, closer)

    def draw(
        self,
        plan: Plan,
        measured: DrawnParameters,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw records from the model at the parameters, which all sets share."""
        draw = self.space(plan.schema).draw
        n_records = public.n_records
        sets = synthetic_sets(
            draw, plan.schema, public, measured.values, n_sets, n_records, rng
        )
        return Drawn(
            sets=sets, diagnostics=measured.diagnostics, closer=measured.closer
        )


class PseudoDraws:
    """Draws from the pseudo posterior of a table: fit, weigh, fit again."""

    def __init__(self, mechanism: PseudoPosterior, space: Blueprint) -> None:
        self._mechanism = mechanism
        self.space = space
        self.made = list[dict[str, NDArray[Any]]]()
        self.diagnostics = dict[str, Any]()

    def __call__(self, table: Table) -> "PseudoDraws":
        """Take a table, which a curator holds."""
        self._table = table
        return self

    def draw(self, bits: RandomBits, runs: int = 1) -> FloatArray:
        """Return independent draws, a number for each entry of a parameter, shape
        (runs, numbers).

        The draws over which risks are taken are made once for all runs, which are
        independent given these.
        """
        mechanism = self._mechanism
        values = self.space.beside(record_values(self._table))
        few = has_few(self.space)
        if runs > 1 and not few:
            raise InputError(
                f"{mechanism.name} is audited with models of one to "
                f"three continuous parameters only"
            )
        fit = GridFit if few else ChainFit
        self._fits = fit(self.space, values, mechanism.n_draws, bits.generator())
        bounds = self._fits.largest(None)
        self._weights = mechanism.record_weights(bounds)
        delta = lipschitz_bound(self._weights, self._fits.largest(self._weights))
        alpha = np.repeat(self._weights, self._fits.counts)
        quantiles = np.quantile(alpha, [0, 0.25, 0.5, 0.75, 1]).tolist()
        self.diagnostics = {
            "fit": self._fits.name,
            "unweighted bound": float(bounds.max()),
            "bound": delta,
            "epsilon_x": 2 * delta,
            "share of weight 0": float((alpha == 0).mean()),
            "weight quantiles": dict(zip(QUANTILES, quantiles, strict=True)),
            "draws": mechanism.n_draws,
            "convergence": self._fits.convergence,
        }
        self.made = self._fits.several(runs)
        return np.array([flat(draw) for draw in self.made])

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        raise InputError(
            "weights from a fit to the table leave no law that could be spelt out"
        )

    def look(self, released: dict[str, NDArray[Any]]) -> Any:
        """Look closer at the last fit."""
        from pdips.posterior import inspection as look

        fits: Any = self._fits
        tree = fits.tree or look.tree_of(fits.several(self._mechanism.n_draws))
        posterior = look.Posterior(
            tree=tree,
            released=[released],
            facts=fits.facts,
            independent=fits.tree is None,
        )
        records = look.InspectedRecords(
            likelihood=self.space.likelihood,
            values=fits.values,
            counts=fits.counts,
            weights=self._weights,
            blueprint=self.space,
        )
        return look.inspect(records, posterior)


def flat(draw: Mapping[str, Any]) -> FloatArray:
    """Return all entries of the parameters of a draw, one after the other."""
    return np.concatenate([np.ravel(value) for value in draw.values()])


def has_few(blueprint: Blueprint) -> bool:
    """Whether a grid takes the parameters of a model."""
    return not blueprint.discrete and blueprint.n_parameters <= max(NODES)


class GridFit:
    """Weighted posteriors of one to three parameters, each on a grid about its peak;
    equal records are one row.

    It reads the whole table and adapts to it, so nothing that it gives is private. Of
    several peaks it sees one.
    """

    name = "grid"
    tree: xr.DataTree | None = None

    def __init__(
        self, space: Blueprint, values: Values, n_draws: int, rng: np.random.Generator
    ) -> None:
        self._space = space
        self._n_draws = n_draws
        self._rng = rng
        self.values, self.counts = distinct(values, None)
        self._mode = None if len(self.counts) > COMPILED else "FAST_COMPILE"

    def largest(self, weights: FloatArray | None, window: float = np.inf) -> FloatArray:
        """Fit with some weights, and return the largest absolute log-likelihood of each
        row over draws.
        """
        self.fit(weights, window)
        points = split(self._space.model, self._flat(self._n_draws))
        return largest(self._space.likelihood.blocks(self.values, points, self._mode))

    def fit(self, weights: FloatArray | None, window: float = np.inf) -> None:
        """Fit with some weights, one a row, or with 1; weighted log-likelihoods are
        kept within the window, nats.
        """
        if weights is None:
            weights = np.ones(len(self.counts))
        self._window = window
        low, high = np.quantile(self._space.prior, [0.001, 0.999], axis=0)
        place = zoom(lambda places: self._log_density(places, weights), low, high)
        for reach in REACHES:
            axes = self._axes(place, weights, high - low)
            edge = self._fit_grid(Anchor(place, axes, reach), weights)
            self.convergence: dict[str, Any] = {"probability at the grid's edge": edge}
            self.facts = {"sampler": self.name, "edge": edge}
            if edge < NEGLIGIBLE:
                break

    def _fit_grid(self, anchor: Anchor, weights: FloatArray) -> float:
        """Work out the probabilities of a grid's cells; return that of its edge."""
        self._grid = Grid(self._space.likelihood, anchor)
        self._index = self._grid.indices()
        base = self._grid.log_weights(self._index)
        log = self._log_density(self._grid.at(self._index), weights, base)
        self._probabilities = np.exp(log - log.max())
        self._probabilities /= self._probabilities.sum()
        is_outermost = self._grid.outermost(self._index)
        return float(self._probabilities[is_outermost].sum())

    def _log_density(
        self, places: FloatArray, weights: FloatArray, base: FloatArray | None = None
    ) -> FloatArray:
        """Return ``base`` (by default the log prior) plus the weighted log-likelihood,
        shape (points,).
        """
        points = split(self._space.model, places)
        likelihood = self._space.likelihood
        total = np.array(likelihood.log_prior(points) if base is None else base)
        kept = weights > 0
        if not kept.any():
            return np.where(np.isfinite(total), total, -np.inf)
        rows = {name: column[kept] for name, column in self.values.items()}
        counts = self.counts[kept]
        alpha = weights[kept]
        window = self._window
        with np.errstate(all="ignore"):
            for some, terms in likelihood.blocks(rows, points, self._mode):
                if np.isinf(window):
                    total[some] += terms @ (alpha * counts)
                    continue
                # no number, or none that is finite, counts as impossible
                weighed = np.nan_to_num(alpha * terms, nan=-np.inf)
                total[some] += np.clip(weighed, -window, window) @ counts
        return np.where(np.isfinite(total), total, -np.inf)

    def _axes(
        self, place: FloatArray, weights: FloatArray, span: FloatArray
    ) -> FloatArray:
        """Return axes about one standard deviation long, by the curvature where the
        density has fallen by a nat.
        """
        n = len(place)
        units = np.eye(n)
        shares = [self._scale(place, move, weights) for move in np.diag(span)]
        steps = np.diag(span * shares)
        pairs = [
            (i * a + j * b) @ steps
            for a, b in product(units, units)
            for i, j in CORNERS
        ]
        near = self._log_density(place + np.array(pairs), weights)
        # mixed second differences: of opposite corners less of the others
        curvature = -near.reshape(n, n, 4) @ [0.25, -0.25, -0.25, 0.25]
        if not np.isfinite(curvature).all():
            return steps
        values, vectors = np.linalg.eigh(curvature)
        if values.min() < FLAT:
            return steps
        return steps @ vectors / np.sqrt(values)

    def _scale(self, place: FloatArray, move: FloatArray, weights: FloatArray) -> float:
        """Return the largest of 1, 1/2, 1/4, ... by which one may go in a direction,
        both ways, and fall by a nat.
        """
        shares = 0.5 ** np.arange(60)
        moves = shares[:, None] * move
        tried = np.concatenate([place[None], place + moves, place - moves])
        logs = self._log_density(tried, weights)
        top, up, down = np.split(logs, [1, 1 + len(shares)])
        fallen = top - np.minimum(up, down)
        return float(shares[np.argmax(fallen < 1)])

    def _flat(self, n: int) -> FloatArray:
        chosen = self._rng.choice(len(self._probabilities), n, p=self._probabilities)
        return self._grid.inside(self._index[chosen], self._rng)

    def several(self, n: int) -> list[dict[str, NDArray[Any]]]:
        """Return n fresh draws of the free variables from the last fit."""
        return self._space.values_of(self._flat(n))


class ChainFit:
    """Weighted posteriors of a model with more parameters, by NUTS."""

    name = "NUTS"

    def __init__(
        self, space: Blueprint, values: Values, n_draws: int, rng: np.random.Generator
    ) -> None:
        self._space = space
        self._rng = rng
        self.values = values
        self._censored = censor_records(space.model, tuple(values), window=np.inf)
        read = {name: values[name] for name in space.likelihood.columns}
        self._censored.update(values=read)
        self._n_draws = n_draws
        self._n_each = max(-(-n_draws // CHAINS), LEAST_DRAWS)
        self.counts = np.ones(self._censored.n_records, dtype=np.int64)

    def largest(self, weights: FloatArray | None) -> FloatArray:
        """Fit with some weights, and return the largest absolute log-likelihood of each
        record over draws.
        """
        self.fit(weights)
        last = CHAINS * self._n_each - 1
        places = np.linspace(0, last, self._n_draws).astype(np.int64)
        draws = {name: value[places] for name, value in self._draws.items()}
        points = unconstrained(self._space.model, draws)
        return largest(self._space.likelihood.blocks(self.values, points))

    def fit(self, weights: FloatArray | None, window: float = np.inf) -> None:
        """Fit with some weights, one a record, or with 1; weighted log-likelihoods are
        kept within the window, nats.
        """
        self._censored.update(
            weights=1.0 if weights is None else weights, window=window
        )
        self.tree = sample(
            self._censored, draws=self._n_each, tune=TUNE, chains=CHAINS, rng=self._rng
        )
        convergence = converged(self.tree, self._space.source.watch)
        require(convergence)
        self.convergence: dict[str, Any] = {"chains": convergence}
        self.facts = {
            "sampler": self.name,
            "convergence": convergence,
            "passed": convergence.passed,
        }
        self._draws = draws_by_name(self.tree)

    def several(self, n: int) -> list[dict[str, NDArray[Any]]]:
        """Return n draws of the last fit, as far apart as they can be."""
        places = far_apart(CHAINS * self._n_each, n, self._rng)
        return [
            {name: value[place] for name, value in self._draws.items()}
            for place in places
        ]


def largest(blocks: Iterable[tuple[slice, FloatArray]]) -> FloatArray:
    """Return max over draws of abs(log-likelihood) of each row, shape (rows,); NaN
    counts as infinite.
    """
    by_block = [np.abs(terms).max(axis=0) for _, terms in blocks]
    bounds = reduce(np.maximum, by_block)
    return np.where(np.isnan(bounds), np.inf, bounds)


def _statement(mechanism: PseudoPosterior, schema: Schema) -> str:
    plural = "s" if mechanism.n_sets > 1 else ""
    rule = "the least risky record counts in full and the riskiest not at all"
    if mechanism.weights == "weighted-e":
        rule = (
            "the least risky record counts in full, and records whose weighted "
            "log-likelihood exceeds half of epsilon count not at all"
        )
    parts = [
        f"{mechanism.name} ({mechanism.weights}) with the paper's target epsilon = "
        f"{spell(exact(mechanism.epsilon, 'epsilon'))} for {mechanism.n_sets} "
        f"synthetic set{plural}.",
        f"Each record's likelihood is raised to a weight between 0 and 1, set by its "
        f"disclosure risk: {rule}.",
        "What the paper claims (004, section 2.1) is asymptotic differential "
        "privacy: the local Lipschitz bound of the "
        "weighted log-likelihoods, computed on the confidential table, contracts "
        "onto the global one over all tables "
        "of the same size as the number of records grows, and twice that bound is "
        "epsilon.",
        "This is no guarantee for this table or any other: no finite epsilon holds "
        "at any number of records, as soon "
        "as the model's log-likelihoods are unbounded over its parameters. The "
        "weights come from a fit to the "
        "confidential table and compare its records, so replacing one record moves "
        "the weights of all others. The "
        "bound is a function of the confidential records, is not protected, and is "
        "not part of this release.",
        "Neighbours in the paper: tables that differ in the values of one record; "
        "the number of records is public.",
        "Parameters are drawn by quadrature or by Markov chains, in floating point: "
        "not exactly.",
    ]
    if not mechanism.source.text:
        parts.append(UNRECORDED)
    if schema.public_columns:
        names = ", ".join(schema.public_columns)
        parts.append(
            f"Public columns, their values copied (not their order) and not "
            f"protected in any way: {names}."
        )
    return " ".join(parts)
