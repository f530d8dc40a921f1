"""Statistics of a table with noise: which part of the budget each gets, and what
post-processing makes of them.

Post-processing reads noisy statistics and public facts: ``noisy`` and ``used`` are
published side by side.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, PlanError
from pdips.margins.consistency import simplex_projection
from pdips.margins.forecast import Forecast
from pdips.posterior.columns import public_columns, stand_ins
from pdips.posterior.columns import to_frame as to_records
from pdips.privacy.curator import Curator, Drawing, noisy_counts
from pdips.privacy.loss import Neighbours, Number, exact, positive
from pdips.privacy.noise import RandomBits
from pdips.privacy.noise_sum import NoiseSum
from pdips.privacy.plan import Plan, Step
from pdips.statistics.forecast import statistic_errors
from pdips.statistics.logistic import Logistic
from pdips.statistics.statistic import Counts, Products, Scatter, Sums, measured_once

Law = Literal["laplace", "gaussian"]

RECORDS = "n"  # What the public number of records is called among the statistics
MADE_UP = 1000
# Stand-ins on which a model is tried, without public columns and with them
MOST_PUBLIC = 10_000
DIGITS = 10**6  # Shares of an optimal budget are rounded to this part of one
# In units of half the range squared: no deviation is below a hundredth of half its
# range
LEAST_VARIANCE = 1e-4
# Of a table whose number of records is noisy and counted by itself: a single one has no
# scatter
LEAST_RECORDS = 2


Statistic = Counts | Sums | Products | Scatter | Logistic
"""What can be asked of a table: for each of these the sensitivity, in the whole units
of ``measure``, is proved.
"""

SHIPPED: tuple[type, ...] = get_args(Statistic)


def shipped(statistics: Any, model: str = "the model") -> dict[str, Statistic]:
    """Return statistics by name as new objects of the shipped types, read once; refuse
    anything else.

    The guarantee rests on the sensitivity of each statistic, which is proved for these
    types alone (``docs/proofs/modips.md``). So the type must be one of them exactly: a
    subclass could measure something else at the price of its parent. What is returned
    is made anew from plain fields: neither methods set on an instance nor a mapping or
    a string that changes between reads can get in.
    """
    named = list(statistics.items()) if isinstance(statistics, Mapping) else []
    if not named:
        raise InputError(
            f"{model}: statistics(schema) must return statistics by "
            f"name, and at least one"
        )
    return {name: _copied(name, each, model) for name, each in named}


def _copied(name: Any, statistic: Any, model: str) -> Statistic:
    if type(name) is not str or not name:
        raise InputError(
            f"{model}: statistics(schema) returns {name!r}, which is no "
            f"name of a statistic"
        )
    kind = type(statistic)
    if kind not in SHIPPED:
        names = ", ".join(each.__name__ for each in SHIPPED)
        raise InputError(
            f"{model}: statistics(schema) returns {name!r}, which is none of {names} "
            f"itself; the sensitivity of other "
            "statistics, and of subclasses of these, isn't proved: declare what you "
            "need by these types"
        )
    several = {field.name: get_origin(field.type) is tuple for field in fields(kind)}
    attributes = vars(statistic)
    if sorted(attributes) != sorted(several):
        raise InputError(
            f"{model}: statistic {name!r} has attributes that a "
            f"{kind.__name__} doesn't have"
        )
    label = f"{model}: {name!r}"
    plain = {}
    for field_name, is_tuple in several.items():
        value = attributes[field_name]
        plain[field_name] = _plain(field_name, value, is_tuple, label)
    copy: Statistic = kind(**plain)
    return copy


def _plain(field: str, value: Any, several: bool, label: str) -> Any:
    """Return the value of a field, one name of a column or several, as plain Python
    objects; ``kappa`` is a number.
    """
    if field == "kappa":
        if type(value) not in (int, float, str, Fraction):
            raise InputError(f"{label}: kappa must be a number")
        return value
    if not several:
        if type(value) is not str:
            raise InputError(f"{label}: {field} must be the name of a column")
        return value
    if type(value) not in (tuple, list) or any(type(each) is not str for each in value):
        raise InputError(
            f"{label}: {field} must be names of columns, such as "
            f"{field}=('a', 'b') or {field}=('a',)"
        )
    return tuple(value)


@dataclass(frozen=True, kw_only=True)
class StatisticPart:
    """One statistic of a plan, and the noise on each of its entries."""

    name: str
    statistic: Statistic
    law: Law
    # what is asked of the table, and at which price; None for what is public
    step: Step | None
    n_noised: int  # how many entries get noise, from the first
    # whether one more count follows from these and the public number of records
    follows: bool = False

    @property
    def scale(self) -> Fraction:
        """Of the discrete Laplace law in whole units, or sigma^2 of the discrete
        Gaussian one; 0 for what is public.
        """
        return Fraction(0) if self.step is None else self.step.parameter

    def noise(self, n: int, bits: RandomBits) -> IntArray:
        """Draw noise for all noised entries of ``n`` runs, shape (n, n_noised)."""
        nothing = np.zeros(self.n_noised, dtype=np.int64)
        if self.step is None:
            return np.tile(nothing, (n, 1))
        return noisy_counts(nothing, None, self.step, bits, n)

    def ask(self, curator: Curator) -> IntArray:
        """Return the statistic with its noise, shape (entries,), in whole units."""
        if self.step is None:
            if self.follows:
                return np.array([curator.n_records])
            return self.statistic.measure(curator.public).ravel()
        noisy = curator.count(
            self.step,
            lambda table: measured_once(self.statistic, table)[: self.n_noised],
        )
        if len(noisy) != self.n_noised:  # published ones may be another model's
            raise PlanError(f"{self.step.name!r} has other numbers than were asked for")
        if not self.follows:
            return noisy
        # the last of two counts follows from the first and the public total, so it
        # tells nothing more
        return np.append(noisy, curator.n_records - noisy.sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyStatistics:
    """Noisy statistics: public from here on."""

    schema: Schema
    neighbours: Neighbours
    parts: tuple[StatisticPart, ...]
    values: Mapping[str, IntArray]  # noisy statistics in whole units, shape (entries,)
    n_records: int | None  # public number of records; None under add-remove
    # public columns as models read them, and as they are written, in one order
    public: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    public_frame: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def settled(self) -> dict[str, FloatArray]:
        """What post-processing makes of the noisy statistics; see :func:`settle`."""
        return settle(self)

    def part(self, name: str) -> StatisticPart:
        for part in self.parts:
            if part.name == name:
                return part
        declared = ", ".join(part.name for part in self.parts)
        raise InputError(
            f"the model asks for statistic {name!r}, which its statistics(schema) "
            f"doesn't declare: {declared}"
        )

    def value(self, name: str) -> FloatArray:
        """Return noisy statistics in the model's unit, shape (entries,)."""
        return np.asarray(
            self.values[name] * self.part(name).statistic.unit(self.schema)
        )

    def deviation(self, name: str) -> float:
        """Return the standard deviation of the noise on each noised entry, in the
        model's unit.
        """
        step = self.part(name).step
        return 0.0 if step is None else step.noise.standard_deviation

    def scale(self, name: str) -> float:
        """Return the scale of Laplace noise, or the standard deviation of Gaussian
        noise, in the model's unit.
        """
        step = self.part(name).step
        return 0.0 if step is None else step.noise.scale

    def of(self, *kinds: type) -> Iterable[StatisticPart]:
        """Return the parts whose statistics are of some types."""
        return (part for part in self.parts if isinstance(part.statistic, kinds))


@dataclass(frozen=True, kw_only=True)
class StatisticPlan(Forecast):
    """What is measured of tables of one schema, and how the budget is divided over it.

    Statistics have the names that the model gives them. The budget gives each that
    isn't public the same share ("equal"), makes the sum over statistics of relative
    variances smallest ("optimal"), or names shares that add up to 1.
    """

    schema: Schema
    neighbours: Neighbours
    statistics: Mapping[str, Statistic]
    budget: str | Mapping[str, Number]
    amount: Fraction  # epsilon of one sanitization; or rho, for Gaussian noise
    law: Law  # of the noise

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", shipped(self.statistics))
        if self.neighbours == "replace-one" and RECORDS in self.statistics:
            raise InputError(
                f"{RECORDS!r} is what the public number of records is "
                f"called; rename that statistic"
            )
        if isinstance(self.budget, Mapping):
            given = {
                str(name): positive(share, f"the share of {name}")
                for name, share in list(self.budget.items())
            }
            object.__setattr__(self, "budget", given)
        for statistic in self.statistics.values():
            statistic.check(self.schema)
        if not self._costly:
            raise InputError(
                "the model's statistics are all public or say nothing: "
                "there is nothing to release"
            )
        self.parts  # noqa: B018 - a budget that is none is refused, too

    def errors_of(self, plan: Plan, words: str) -> dict[str, NoiseSum]:
        """Return the error of a statistic by name, or of margins that are counted."""
        return statistic_errors(self, words)

    @property
    def _costly(self) -> list[str]:
        """The statistics that a person can move."""
        return [
            name
            for name, each in self.statistics.items()
            if each.sensitivity(self.schema, self.neighbours).l1 > 0
        ]

    @property
    def shares(self) -> dict[str, Fraction]:
        """The part of the budget of each statistic."""
        costly = self._costly
        if isinstance(self.budget, Mapping):
            given = {
                name: exact(share, f"the share of {name}")
                for name, share in self.budget.items()
            }
            if sorted(given) != sorted(costly) or sum(given.values()) != 1:
                raise InputError(
                    f"budget must give shares that add up to 1 for each "
                    f"of {', '.join(costly)}"
                )
            return {name: given.get(name, Fraction(0)) for name in self.statistics}
        weights = dict.fromkeys(costly, 1)
        if self.budget != "equal":
            wanted = {name: self._wanted(self.statistics[name]) for name in costly}
            total = sum(wanted.values())
            for name in costly:
                weights[name] = max(round(DIGITS * wanted[name] / total), 1)
        whole = sum(weights.values())
        return {name: Fraction(weights.get(name, 0), whole) for name in self.statistics}

    def _wanted(self, statistic: Statistic) -> float:
        """Return the weight of a statistic, which makes the sum of relative variances
        smallest.

        That of an entry is the variance of its noise over its own when records spread
        evenly over the schema; that of a statistic, the mean over its entries, so that
        one with many cells doesn't take all. Noise of scale D / e_c (Laplace) on
        statistic c makes the sum of a_c / e_c^2 smallest under sum e_c = e at e_c
        proportional to a_c^(1/3), a_c = D^2 times the mean of reciprocal variances;
        Gaussian noise, a_c / rho_c, at a_c^(1/2).
        """
        unit = statistic.unit(self.schema)
        mean_reciprocal = (1 / statistic.spread(self.schema)).mean()
        sensitivity = statistic.sensitivity(self.schema, self.neighbours)
        if self.law == "laplace":
            squared = (float(sensitivity.l1) * unit) ** 2
            return float((squared * mean_reciprocal) ** (1 / 3))
        squared = float(sensitivity.l2_squared) * unit**2
        return math.sqrt(squared * mean_reciprocal)

    @cached_property
    def parts(self) -> tuple[StatisticPart, ...]:
        """The statistics with their noise."""
        return tuple(self._part(name, share) for name, share in self.shares.items())

    def _part(self, name: str, share: Fraction) -> StatisticPart:
        """Return a statistic with the noise that its share of the budget buys."""
        statistic = self.statistics[name]
        n_entries = math.prod(statistic.shape(self.schema))
        n_noised = n_entries
        follows = False
        if isinstance(statistic, Counts):
            n_noised = statistic.n_noised(self.schema, self.neighbours)
            follows = n_noised == n_entries - 1
        sensitivity = statistic.sensitivity(self.schema, self.neighbours)
        step = None
        if sensitivity.l1 > 0:
            step = Step(
                name=f"noise on {name}",
                sensitivity=sensitivity,
                price=self.amount * share,
                law=self.law,
                counts=name,
                unit=statistic.unit(self.schema),
            )
        return StatisticPart(
            name=name,
            statistic=statistic,
            law=self.law,
            step=step,
            n_noised=0 if step is None else n_noised,
            follows=follows,
        )

    def priced(self, **settings: Any) -> Plan:
        """Return what is asked of the table with its price; ``settings`` are those of
        :class:`Plan`.
        """
        steps = tuple(part.step for part in self.parts if part.step is not None)
        given = {"mechanism": "modips", "law": "", **settings}
        return Plan(
            schema=self.schema,
            neighbours=self.neighbours,
            steps=steps,
            design=self,
            **given,
        )

    def ask(self, curator: Curator) -> NoisyStatistics:
        """Ask a curator all statistics, in order: what comes out is paid for."""
        values = {part.name: part.ask(curator) for part in self.parts}
        n_records = curator.n_records if curator.n_public else None
        noisy = self._noisy(values, n_records)
        if not self.schema.public_columns:
            return noisy
        # sorted: the table's own order tells nothing
        frame, public = public_columns(curator.public)
        return replace(noisy, public=public, public_frame=frame)

    def _noisy(
        self, values: Mapping[str, IntArray], n_records: int | None
    ) -> NoisyStatistics:
        return NoisyStatistics(
            schema=self.schema,
            neighbours=self.neighbours,
            parts=self.parts,
            values=values,
            n_records=n_records,
        )

    def sanitize(self, table: Table, bits: RandomBits) -> NoisyStatistics:
        """Return noisy statistics of a table that is no confidential one, such as
        made-up records.
        """
        return self.ask(Drawing(self.priced(), table, bits))

    def tried(self, n_records: int | None = None) -> NoisyStatistics:
        """Return noisy statistics of stand-ins, measured and noised as a table's are,
        to try a model on.

        Stand-ins and noise are functions of the schema, the settings and the number of
        records, where it is public. For more than ``MADE_UP`` records without public
        columns, statistics of so many are scaled.
        """
        n = MADE_UP
        if n_records is not None and self.neighbours == "replace-one":
            n = n_records
        rows = min(n, MOST_PUBLIC if self.schema.public_columns else MADE_UP)
        values = stand_ins(self.schema, rows)
        rng = np.random.default_rng(0)
        frame = to_records(self.schema, values, pd.DataFrame(), rng)
        person = self.schema.records.person
        if person is not None:
            frame[person] = np.arange(rows)
        table = Table(frame, self.schema)
        noisy = self.sanitize(table, RandomBits(np.random.default_rng(0)))
        if self.schema.public_columns or n <= rows:
            return noisy
        scaled = dict(noisy.values)
        for part in noisy.of(Counts, Sums, Products, Scatter):
            values_of_all = scaled[part.name] * (n / rows)
            scaled[part.name] = np.rint(values_of_all).astype(np.int64)
        return replace(noisy, values=scaled, n_records=noisy.n_records and n)


def to_frame(measured: NoisyStatistics) -> pd.DataFrame:
    """Return noisy statistics as a table to be published, beside what post-processing
    made of them.

    First the number of records, ``n``, where it is public. Then one row an entry:
    ``statistic``, ``cell`` (levels, "; " between them), ``noisy`` and ``used`` in the
    model's unit (records, or sums of u = (x - middle) / half of the public bounds),
    ``noise`` (law), ``scale`` and ``standard_deviation`` of the noise in the same unit.
    """
    frames = []
    if measured.n_records is not None:
        n = float(measured.n_records)
        number = {"statistic": RECORDS, "cell": "", "noisy": n, "used": n}
        without_noise = {"noise": "none", "scale": 0.0, "standard_deviation": 0.0}
        frames.append(pd.DataFrame([{**number, **without_noise}]))
    for part in measured.parts:
        name = part.name
        n_entries = len(measured.values[name])
        noised = np.arange(n_entries) < part.n_noised
        columns = {
            "statistic": name,
            "cell": _cells(part, measured.schema) or [""] * n_entries,
            "noisy": measured.value(name),
            "used": measured.settled[name],
            "noise": np.where(noised, f"discrete {part.law}", "none"),
            "scale": np.where(noised, measured.scale(name), 0.0),
            "standard_deviation": np.where(noised, measured.deviation(name), 0.0),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _cells(part: StatisticPart, schema: Schema) -> list[str]:
    """Return the cell of each entry, in words; none where there is only one."""
    cells = []
    for row in part.statistic.labels(schema).to_dict("records"):
        levels = [f"{name} = {level}" for name, level in row.items()]
        cells.append("; ".join(levels))
    return cells


def settle(measured: NoisyStatistics) -> dict[str, FloatArray]:
    """Return what plug-in models use in place of exact statistics, and where
    noise-aware chains start.

    Counts are moved to the nearest that are at least 0 (at least 1 where sums are taken
    in the same cells) and add up to n; sums to at most one a record; the matrix of sums
    of squares and products about the cells' means to the nearest one that is positive.
    In the model's units, shape (entries,).
    """
    used = {part.name: _counts(measured, part) for part in measured.of(Counts)}
    total = number_of_records(measured, used)
    for part in measured.parts:
        noisy = measured.value(part.name)
        kind = type(part.statistic)
        if kind is Sums:
            most = _sizes(measured, part, used, total)
            used[part.name] = np.clip(noisy, -most, most)
        elif kind is Scatter:
            used[part.name] = np.clip(noisy, LEAST_VARIANCE * total, total)
        elif kind is Products:
            used[part.name] = np.clip(noisy, -total, total)
        elif kind is not Counts:
            used[part.name] = noisy
    return used | _positive_products(measured, used, total)


def _positive_products(
    measured: NoisyStatistics, used: Mapping[str, FloatArray], total: float
) -> dict[str, FloatArray]:
    """Return products whose matrix about the cells' means is positive, where all
    squares and sums of their columns were measured.
    """
    name_of = {_of(part): part.name for part in measured.of(Products) if not _by(part)}
    columns = sorted({column for pair in name_of for column in pair})
    summed = {_of(part) for part in measured.of(Sums)}
    whole = all(column in summed and (column, column) in name_of for column in columns)
    if not columns or not whole:
        return {}
    about = np.zeros((len(columns), len(columns)))
    of_means = {}
    entry_of = {}
    for pair, name in name_of.items():
        row, column = (columns.index(each) for each in pair)
        of_means[name] = _of_means(measured, used, pair)
        entry_of[name] = (row, column)
        about[row, column] = used[name][0] - of_means[name]
        about[column, row] = about[row, column]
    nearest = nearest_positive(about, LEAST_VARIANCE * total)
    return {
        name: np.array([nearest[entry] + of_means[name]])
        for name, entry in entry_of.items()
    }


def number_of_records(
    measured: NoisyStatistics, used: Mapping[str, FloatArray]
) -> float:
    """Return the public number of records, or what noisy counts say of it, at
    least 1.
    """
    if measured.n_records is not None:
        return float(measured.n_records)
    totals = [used[part.name].sum() for part in measured.of(Counts)]
    return max(totals[0], 1.0) if totals else 1.0


def _by(part: StatisticPart) -> Any:
    """Return the columns that a part counts or sums by."""
    return getattr(part.statistic, "by", ())


def _of(part: StatisticPart) -> Any:
    """Return the column that a part sums, or the two that it multiplies."""
    return getattr(part.statistic, "of", None)


def _counts(measured: NoisyStatistics, part: StatisticPart) -> FloatArray:
    noisy = measured.value(part.name)
    n = measured.n_records
    if not part.n_noised:
        return noisy
    cells = len(noisy)
    least = float(any(_by(sums) == _by(part) for sums in measured.of(Sums)))
    if n is None:
        if cells == 1:
            return np.maximum(noisy, LEAST_RECORDS)
        return np.maximum(noisy, max(least, 1 / cells))
    least = min(least, n / cells)
    return least + simplex_projection(noisy - least, np.array([n - least * cells]))


def _sizes(
    measured: NoisyStatistics,
    part: StatisticPart,
    used: Mapping[str, FloatArray],
    total: float,
) -> FloatArray:
    """Return how many records there are in each of the cells that a part sums over, as
    far as counts say.
    """
    for counts in measured.of(Counts):
        if _by(counts) == _by(part):
            return used[counts.name]
    return np.full(len(measured.values[part.name]), total)


def _of_means(
    measured: NoisyStatistics, used: Mapping[str, FloatArray], pair: tuple[str, str]
) -> float:
    """Return what the means add to a sum of products, sum_k T_k T_k' / n_k; 0 if they
    weren't measured alike.
    """
    sums = {_of(part): part for part in measured.of(Sums)}
    if not all(name in sums for name in pair):
        return 0.0
    x, y = (used[sums[name].name] for name in pair)
    if len(x) != len(y):
        return 0.0
    total = number_of_records(measured, used)
    sizes = _sizes(measured, sums[pair[0]], used, total)
    return float((x * y / np.maximum(sizes, 1e-9)).sum())


def scatter_about(
    measured: NoisyStatistics,
    used: Mapping[str, FloatArray],
    names: Sequence[str],
    least: float = 0.0,
) -> FloatArray:
    """Return the settled sums of squares and products about the means as a positive
    matrix, shape (d, d).

    ``names`` are of the products, the lower triangle row by row. No eigenvalue is below
    ``least``, nor below :data:`LEAST_VARIANCE` of a record.
    """
    rows, columns = np.tril_indices(int(np.sqrt(2 * len(names))))
    scatter = np.zeros((rows[-1] + 1, rows[-1] + 1))
    for name, row, column in zip(names, rows, columns, strict=True):
        of_means = _of_means(measured, used, _of(measured.part(name)))
        scatter[row, column] = used[name][0] - of_means
        scatter[column, row] = scatter[row, column]
    least_variance = LEAST_VARIANCE * number_of_records(measured, used)
    return nearest_positive(scatter, max(least, least_variance))


def nearest_positive(matrix: FloatArray, least: float) -> FloatArray:
    """Return the nearest symmetric matrix without eigenvalues below ``least``, shape
    (d, d).
    """
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, least)) @ vectors.T
