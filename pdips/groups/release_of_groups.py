"""What is published of noisy groups: posterior draws, a table of all groups, and sets
of records. All of it is post-processing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import to_frame
from pdips.groups.families import GroupOutcome
from pdips.groups.hierarchy import Hierarchy
from pdips.groups.hyperparameters import HyperDraws, HyperPosterior
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.quadrature import Common, GroupQuadrature
from pdips.groups.relation import SizeRelation
from pdips.groups.sandwich import widened
from pdips.mechanism import Drawn
from pdips.posterior.columns import Values
from pdips.privacy.curator import timed
from pdips.release.public_draws import MISFIT, MISFIT_BY, PublicDraws
from pdips.release.tree import stored_name

GROUPS = "groups"
GROUP = "group"
EFFECTS = "effects"
RESERVED = ("chain", "draw", "mean", "spread", "sigma")
AVERAGE = (
    "95 % is an average over groups: intervals of groups with extreme rates cover "
    "less, those of others more, and where effects go with sizes those of small groups "
    "less; there, and in a list of top groups, read the direct interval"
)

CHAINS = 4
DRAWS = 1_000
# Numbers of effects in the tree; of more groups there are fewer draws, and of very many
# the table alone
MOST_NUMBERS = 4_000_000
MOST_IN_TREE = 100_000
FEWEST_DRAWS = 40
# Common parameters at which moments of groups are averaged, by numbers of groups
MOMENTS = (2_000_000, 3, 24)
Z = 1.959964
# Of the variance of the groups, the share left from which a group is said to be its
# prior
MOSTLY_PRIOR = 0.9


@dataclass(frozen=True, eq=False)
class GroupResult:
    """The posterior of noisy groups.

    Parameters
    ----------
    noisy : NoisyGroups
        What was measured.
    hierarchy : Hierarchy
        The model's.
    hyper : HyperPosterior
        Of what groups have in common.
    weighted : HyperDraws
        Its draws.
    """

    noisy: NoisyGroups
    hierarchy: Hierarchy
    hyper: HyperPosterior
    weighted: HyperDraws

    @classmethod
    def of(
        cls, noisy: NoisyGroups, hierarchy: Hierarchy, rng: np.random.Generator
    ) -> "GroupResult":
        """Return the posterior of noisy groups and a hierarchy."""
        with timed("integrating over what groups have in common"):
            hyper = HyperPosterior(noisy, hierarchy, rng)
            return cls(noisy, hierarchy, hyper, widened(hyper, hyper.draws()))

    @cached_property
    def quadrature(self) -> GroupQuadrature:
        """Sums over all groups."""
        quadrature = GroupQuadrature(self.noisy)
        centre = self.weighted.weights @ self.weighted.places
        quadrature.locate(self.hyper.common(centre))
        return quadrature

    def sample(
        self, n: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return draws in no order: common parameters, shape (draws, parameters),
        predictors without offsets, shape (draws, effects), or several standard normal
        effects of each, and sizes, shape (draws, groups).
        """
        places = self.weighted.resampled(n, rng)
        alike, counts = np.unique(places, axis=0, return_counts=True)
        predictors = []
        sizes = []
        for place, count in zip(alike, counts, strict=True):
            common = self.hyper.common(place)
            some, some_sizes = self.quadrature.sample(common, int(count), rng)
            predictors.append(some)
            sizes.append(some_sizes)
        order = rng.permutation(n)
        return (
            np.repeat(alike, counts, axis=0)[order],
            np.concatenate(predictors)[order],
            np.concatenate(sizes)[order],
        )

    @cached_property
    def moments(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Posterior mean and deviation of each group's predictor, its expected size,
        and the share of the effects' variance that is left.
        """
        n = self._n_of_moments
        rng = np.random.default_rng(0)  # of post-processing: it protects nothing
        shape = (self.noisy.n_effects, self.noisy.n_within)
        first = np.zeros(shape)
        second = np.zeros(shape)
        sizes = np.zeros(self.noisy.n_groups)
        left = np.zeros(shape)
        for place in self.weighted.resampled(n, rng):
            common = self.hyper.common(place)
            mean, variance, share, expected = self._moments_at(common)
            first += mean / n
            second += (mean**2 + variance) / n
            left += share / n
            sizes += expected / n
        deviation = np.sqrt(np.maximum(second - first**2, 0.0))
        return first.ravel(), deviation.ravel(), sizes, left.ravel()

    def _moments_at(
        self, common: Common
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return mean and variance of predictors and the share of effects' variance
        that is left, shape (effects, groups of each), and sizes, shape (groups,).
        """
        spread = common.spread
        if spread.slopes is None:
            effect, deviation, sizes = self.quadrature.moments(common)
            variance = (deviation**2)[:, None]
            mean = effect[:, None] + spread.offsets
            return mean, variance, variance / spread.variance, sizes
        effects, covariances, sizes = self.quadrature.joint_moments(common)
        loadings = spread.slopes.loadings
        variance = np.einsum("kp,gpq,kq->gk", loadings, covariances, loadings)
        mean = spread.mean + spread.offsets + effects @ loadings.T
        return mean, variance, variance / (loadings**2).sum(axis=1), sizes

    def joint_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return posterior means, shape (groups, effects), and covariances, shape
        (groups, effects, effects), of the effects of each group that has several, as
        the model has them.
        """
        n = self._n_of_moments
        first: Any = 0.0
        second: Any = 0.0
        for place in self.weighted.resampled(n, np.random.default_rng(0)):
            common = self.hyper.common(place)
            slopes = common.spread.slopes
            if slopes is None:
                raise TypeError("groups have one effect each")
            standard, covariances, _ = self.quadrature.joint_moments(common)
            means = slopes.natural(standard)
            first += means / n
            products = means[:, :, None] * means[:, None, :]
            second += (slopes.root @ covariances @ slopes.root.T + products) / n
        return first, second - first[:, :, None] * first[:, None, :]

    def effects_table(self) -> pd.DataFrame:
        """Return what is known of the effects of each group that has several: means,
        standard deviations and correlations.
        """
        means, covariances = self.joint_moments()
        deviations = np.sqrt(np.einsum("gpp->gp", covariances))
        labels = self.noisy.design.labels().iloc[:: self.noisy.n_within]
        names = self.noisy.design.effect_columns
        table = labels[[*names]].reset_index(drop=True)
        terms = self.hierarchy.terms
        for number, term in enumerate(terms):
            table[_free(term, table)] = means[:, number]
            table[_free(f"{term}_sd", table)] = deviations[:, number]
        for one, other in combinations(range(len(terms)), 2):
            both = covariances[:, one, other]
            name = f"{terms[one]}:{terms[other]}_correlation"
            table[name] = both / (deviations[:, one] * deviations[:, other])
        return table

    def misfit(self) -> Mapping[str, Any]:
        """Return how often noisy numbers would contradict as much what the model says
        of effects and sizes, as attributes of the posterior; nothing if it lets them go
        together.
        """
        relation = None
        if not self.hierarchy.has_relation:
            relation = SizeRelation.of(self.hyper, self.weighted)
        if relation is None:
            return {}
        return {MISFIT: relation.misfit, MISFIT_BY: "sizes"}

    @property
    def _n_of_moments(self) -> int:
        """At how many common parameters moments are averaged."""
        budget, fewest, most = MOMENTS
        return int(np.clip(budget // self.noisy.n_groups, fewest, most))

    @cached_property
    def outcome(self) -> GroupOutcome:
        """The law of the outcome at the middle of the posterior."""
        centre = self.weighted.weights @ self.weighted.places
        return self.quadrature.outcome(self.hyper.common(centre))

    def table(self) -> pd.DataFrame:
        """Return all groups: noisy numbers, means with intervals in the outcome's unit,
        and intervals of their own numbers alone.
        """
        noisy = self.noisy
        outcome = self.outcome
        mean, deviation, sizes, left = self.moments
        within = None
        if noisy.design.family == "normal":
            within = float(np.sqrt(outcome.moments(np.zeros(1))[1][0]))
        lower, upper = noisy.direct(within)
        low, high = noisy.design.range
        half = (high - low) / 2
        about = {
            "noisy_records": noisy.sizes,
            "noisy_sum": half * noisy.sums + (low + high) / 2 * noisy.sizes,
            "expected_records": sizes,
            "predictor": mean,
            "predictor_sd": deviation,
            "mean": outcome.natural(mean),
            "lower": outcome.natural(mean - Z * deviation),
            "upper": outcome.natural(mean + Z * deviation),
            "direct_lower": low + half * (lower + 1),
            "direct_upper": low + half * (upper + 1),
            "variance_left": np.minimum(left, 1.0),
        }
        labels = noisy.design.labels()
        for name, values in about.items():
            labels[_free(name, labels)] = values
        return labels

    def draws(self, rng: np.random.Generator) -> tuple[xr.Dataset, FloatArray]:
        """Return posterior draws by the model's names, and the common parameters of
        each.
        """
        n_effects = self.noisy.n_effects
        n = int(np.clip(MOST_NUMBERS // self.noisy.n_groups, FEWEST_DRAWS, DRAWS))
        n -= n % CHAINS
        if n_effects > MOST_IN_TREE:
            places = self.weighted.resampled(DRAWS, rng)
            places = rng.permutation(places)
            n_terms = len(self.hierarchy.terms)
            predictors = np.empty((DRAWS, 0, n_terms) if n_terms else (DRAWS, 0))
        else:
            places, predictors, _ = self.sample(n, rng)
        parameters = places[:, : self.weighted.n_own]
        named = dict(self.hierarchy.named(parameters, predictors))
        variables: dict[str, Any] = {}
        coordinates: dict[str, Any] = {
            "chain": np.arange(CHAINS),
            "draw": np.arange(len(places) // CHAINS),
        }
        for name, values in named.items():
            is_by_group = name in self.hierarchy.effects
            if is_by_group and not predictors.size:
                continue
            shaped = values.reshape(CHAINS, -1, *values.shape[1:])
            own = [*self._dims_of(name, shaped.ndim - 2)]
            if is_by_group:
                own[self.hierarchy.effects[name]] = self.dim
                coordinates |= self._coordinates()
            known = self.hierarchy.coords
            of_others = [dim for dim in own if dim in known and dim != self.dim]
            coordinates |= {dim: [*known[dim]] for dim in of_others}
            variables[stored_name(name)] = (("chain", "draw", *own), shaped)
        about = {"effective": self.weighted.effective, "intervals": AVERAGE}
        return xr.Dataset(variables, coordinates, about), places

    def _dims_of(self, name: str, ndim: int) -> tuple[str, ...]:
        """Return the dimensions of a variable that isn't by effect."""
        unnamed = tuple(f"{stored_name(name)}_dim_{axis}" for axis in range(ndim))
        return self.hierarchy.dims.get(name, unnamed)

    def _coordinates(self) -> dict[str, Any]:
        """Return the labels of effects."""
        labels = self.noisy.design.labels()
        labels = labels.iloc[:: self.noisy.n_within]
        names = self.noisy.design.effect_columns
        whole = labels[names[0]].astype(str)
        for name in names[1:]:
            whole = whole + ":" + labels[name].astype(str)
        if len(names) == 1 and labels[names[0]].dtype.kind in "iuf":
            whole = labels[names[0]]
        return {self.dim: whole.to_numpy()}

    @property
    def dim(self) -> str:
        """What the dimension of groups is called: as their column, if it is one and no
        variable is called so.
        """
        names = self.noisy.design.effect_columns
        taken = (*self.hierarchy.effects, *RESERVED)
        if len(names) == 1 and names[0] not in taken:
            return stored_name(names[0])
        return GROUP

    def others(self, table: pd.DataFrame) -> Mapping[str, xr.Dataset]:
        """Return the other groups of the tree: the table, of not too many groups."""
        if len(table) > MOST_IN_TREE:
            return {}
        design = self.noisy.design
        numbers = table.iloc[:, len(design.groups) :]
        within = tuple(stored_name(name) for name in design.within)
        coordinates = self._coordinates()
        for name, dim in zip(design.within, within, strict=True):
            coordinates[dim] = table[name].unique()
        shape = (design.n_effects, *(len(coordinates[dim]) for dim in within))
        variables = {}
        for number in numbers:
            values = numbers[number].to_numpy().reshape(shape)
            variables[number] = ((self.dim, *within), values)
        return {GROUPS: xr.Dataset(variables, coordinates)}


def drawn_of(
    result: GroupResult,
    n_sets: int,
    n_records: int | None,
    public: tuple[pd.DataFrame, Values],
    rng: np.random.Generator,
) -> Drawn:
    """Return draws, the table of groups, and sets of records."""
    posterior, _ = result.draws(rng)
    table = result.table()
    sets = []
    for number in range(1, n_sets + 1):
        with timed(f"drawing synthetic set {number} of {n_sets}"):
            sets.append(_records(result, n_records, public, rng))
    left = table["variance_left"][:: result.noisy.n_within]
    n_prior = int((left > MOSTLY_PRIOR).sum())
    posterior.attrs |= {"groups_near_prior": n_prior, **result.misfit()}
    facts = {
        "sampler": "quadrature",
        "groups": {
            "n_groups": result.noisy.n_effects,
            "near_prior": n_prior,
            "effective": result.weighted.effective,
        },
    }
    tables = {GROUPS: table}
    if result.hierarchy.terms:
        tables[EFFECTS] = result.effects_table()
    return Drawn(
        sets=sets,
        statistics=tables,
        tables=tables,
        diagnostics=facts,
        posterior_draws=PublicDraws(
            posterior=posterior,
            sampler="quadrature",
            others=partial(result.others, table),
        ),
    )


def _records(
    result: GroupResult,
    n_records: int | None,
    public: tuple[pd.DataFrame, Values],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Return a set at a draw of its own."""
    design = result.noisy.design
    written, columns = public
    places, predictors, sizes = result.sample(1, rng)
    common = result.hyper.common(places[0])
    outcome = result.quadrature.outcome(common)
    if design.membership_public:
        group = design.group_of(columns)
        values: dict[str, Any] = {}
    else:
        if len(written):
            group = _beside(result, columns, sizes[0], rng)
        else:
            total = n_records or max(round(float(sizes.sum())), 1)
            of_each = _rounded(sizes[0], total, rng)
            group = np.repeat(np.arange(design.n_groups), of_each)
            group = rng.permutation(group)
        values = dict(design.columns_of(group))
    predictor = common.spread.predictors(predictors[0], group)
    values[design.outcome] = outcome.draw(predictor, rng)
    return to_frame(design.schema, values, written, rng)


def _beside(
    result: GroupResult, columns: Values, sizes: FloatArray, rng: np.random.Generator
) -> IntArray:
    """Return the group of each record whose public columns are known: one that has
    these, by its size.
    """
    design = result.noisy.design
    of_records = design.public_part_of(columns)
    of_groups = design.public_part_of(design.columns_of(np.arange(design.n_groups)))
    group = np.empty(len(of_records), dtype=np.int64)
    for part in np.unique(of_records):
        rows = np.flatnonzero(of_records == part)
        able = np.flatnonzero(of_groups == part)
        of_each = _rounded(sizes[able], len(rows), rng)
        group[rows] = rng.permutation(np.repeat(able, of_each))
    return group


def _rounded(sizes: FloatArray, total: int, rng: np.random.Generator) -> IntArray:
    """Return whole sizes that add up to a total, each up or down by chance."""
    shares = np.maximum(sizes, 1e-9)
    ends = np.cumsum(shares / shares.sum() * total) + rng.random()
    whole = np.floor(ends).astype(np.int64)
    whole[-1] = total  # whatever rounding did
    return np.diff(np.concatenate([[0], np.minimum(whole, total)]))


def _free(name: str, taken: pd.DataFrame) -> str:
    """Return a name that no group column has."""
    while name in taken:
        name += "_"
    return name
