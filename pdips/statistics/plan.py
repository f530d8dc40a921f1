"""Statistics of a table with noise: which part of the budget each gets, and what post-processing makes of them.

Post-processing reads noisy statistics and public facts: ``noisy`` and ``used`` are published side by side.
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
from pdips.errors import InputError
from pdips.margins.consistency import simplex_projection
from pdips.posterior.columns import public_columns, stand_ins
from pdips.posterior.columns import to_frame as to_records
from pdips.privacy.curator import Curator, Drawing, noisy_counts
from pdips.privacy.loss import Neighbours, Number, exact, positive
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.statistics.logistic import Logistic
from pdips.statistics.statistic import Counts, Products, Scatter, Sums, measured_once

Law = Literal["laplace", "gaussian"]

RECORDS = "n"  # What the public number of records is called among the statistics
MADE_UP = 1000
MOST_PUBLIC = 10_000  # Stand-ins on which a model is tried, without public columns and with them
DIGITS = 10**6  # Shares of an optimal budget are rounded to this part of one
LEAST_VARIANCE = 1e-4  # In units of half the range squared: no deviation is below a hundredth of half its range
LEAST_RECORDS = 2  # Of a table whose number of records is noisy and counted by itself: a single one has no scatter


Statistic = Counts | Sums | Products | Scatter | Logistic
"""What can be asked of a table: for each of these the sensitivity, in the whole units of ``measure``, is proved."""

SHIPPED: tuple[type, ...] = get_args(Statistic)


def shipped(statistics: Any, model: str = "the model") -> dict[str, Statistic]:
    """Return statistics by name as new objects of the shipped types, read once; refuse anything else.

    The guarantee rests on the sensitivity of each statistic, which is proved for these types alone
    (``docs/proofs/modips.md``). So the type must be one of them exactly: a subclass could measure something else at the
    price of its parent. What is returned is made anew from plain fields: neither methods set on an instance nor a
    mapping or a string that changes between reads can get in.
    """
    named = list(statistics.items()) if isinstance(statistics, Mapping) else []
    if not named:
        raise InputError(f"{model}: statistics(schema) must return statistics by name, and at least one")
    return {name: _copied(name, each, model) for name, each in named}


def _copied(name: Any, statistic: Any, model: str) -> Statistic:
    if type(name) is not str or not name:
        raise InputError(f"{model}: statistics(schema) returns {name!r}, which is no name of a statistic")
    kind = type(statistic)
    if kind not in SHIPPED:
        names = ", ".join(each.__name__ for each in SHIPPED)
        raise InputError(
            f"{model}: statistics(schema) returns {name!r}, which is none of {names} itself; the sensitivity of other "
            "statistics, and of subclasses of these, isn't proved: declare what you need by these types"
        )
    own = {field.name: get_origin(field.type) is tuple for field in fields(kind)}
    if sorted(vars(statistic)) != sorted(own):
        raise InputError(f"{model}: statistic {name!r} has attributes that a {kind.__name__} doesn't have")
    values = {field: _plain(field, vars(statistic)[field], own[field], f"{model}: {name!r}") for field in own}
    made: Statistic = kind(**values)
    return made


def _plain(field: str, value: Any, several: bool, label: str) -> Any:
    """Return the value of a field, one name of a column or several, as plain Python objects; ``kappa`` is a number."""
    if field == "kappa":
        if type(value) not in (int, float, str, Fraction):
            raise InputError(f"{label}: kappa must be a number")
        return value
    if not several:
        if type(value) is not str:
            raise InputError(f"{label}: {field} must be the name of a column")
        return value
    if type(value) not in (tuple, list) or any(type(each) is not str for each in value):
        raise InputError(f"{label}: {field} must be names of columns, such as {field}=('a', 'b') or {field}=('a',)")
    return tuple(value)


@dataclass(frozen=True, kw_only=True)
class StatisticPart:
    """One statistic of a plan, and the noise on each of its entries."""

    name: str
    statistic: Statistic
    law: Law
    step: Step | None  # what is asked of the table, and at which price; None for what is public
    n_noised: int  # how many entries get noise, from the first
    follows: bool = False  # whether one more count follows from these and the public number of records

    @property
    def scale(self) -> Fraction:
        """Of the discrete Laplace law in whole units, or sigma^2 of the discrete Gaussian one; 0 for what is public."""
        return Fraction(0) if self.step is None else self.step.parameter

    def noise(self, n: int, bits: RandomBits) -> IntArray:
        """Draw noise for all noised entries of ``n`` runs, shape (n, n_noised)."""
        nothing = np.zeros(self.n_noised, dtype=np.int64)
        return np.tile(nothing, (n, 1)) if self.step is None else noisy_counts(nothing, None, self.step, bits, n)

    def ask(self, curator: Curator) -> IntArray:
        """Return the statistic with its noise, shape (entries,), in whole units."""
        if self.step is None:
            return np.array([curator.n_records]) if self.follows else self.statistic.measure(curator.public).ravel()
        noisy = curator.count(self.step, lambda table: measured_once(self.statistic, table)[: self.n_noised])
        # the last of two counts follows from the first and the public total, so it tells nothing more
        return np.append(noisy, curator.n_records - noisy.sum()) if self.follows else noisy


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyStatistics:
    """Noisy statistics: public from here on."""

    schema: Schema
    neighbours: Neighbours
    parts: tuple[StatisticPart, ...]
    values: Mapping[str, IntArray]  # noisy statistics in whole units, shape (entries,)
    n_records: int | None  # public number of records; None under add-remove
    public: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # public columns as models read them

    def part(self, name: str) -> StatisticPart:
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.parts)
        raise InputError(
            f"the model asks for statistic {name!r}, which its statistics(schema) doesn't declare: {known}"
        )

    def value(self, name: str) -> FloatArray:
        """Return noisy statistics in the model's unit, shape (entries,)."""
        return np.asarray(self.values[name] * self.part(name).statistic.unit(self.schema))

    def deviation(self, name: str) -> float:
        """Return the standard deviation of the noise on each noised entry, in the model's unit."""
        step = self.part(name).step
        return 0.0 if step is None else step.noise.standard_deviation

    def scale(self, name: str) -> float:
        """Return the scale of Laplace noise, or the standard deviation of Gaussian noise, in the model's unit."""
        step = self.part(name).step
        return 0.0 if step is None else step.noise.scale

    def of(self, *kinds: type) -> Iterable[StatisticPart]:
        """Return the parts whose statistics are of some types."""
        return (part for part in self.parts if isinstance(part.statistic, kinds))


@dataclass(frozen=True, kw_only=True)
class StatisticPlan:
    """What is measured of tables of one schema, and how the budget is divided over it.

    Statistics have the names that the model gives them. The budget gives each that isn't public the same share
    ("equal"), makes the sum over statistics of relative variances smallest ("optimal"), or names shares that add up to
    1.
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
            raise InputError(f"{RECORDS!r} is what the public number of records is called; rename that statistic")
        if isinstance(self.budget, Mapping):
            given = {str(name): positive(share, f"the share of {name}") for name, share in list(self.budget.items())}
            object.__setattr__(self, "budget", given)
        for statistic in self.statistics.values():
            statistic.check(self.schema)
        if not self._costly:
            raise InputError("the model's statistics are all public or say nothing: there is nothing to release")
        self.parts  # noqa: B018 - a budget that is none is refused, too

    @property
    def _costly(self) -> list[str]:
        """The statistics that a person can move."""
        return [name for name, each in self.statistics.items() if each.sensitivity(self.schema, self.neighbours).l1 > 0]

    @property
    def shares(self) -> dict[str, Fraction]:
        """The part of the budget of each statistic."""
        costly = self._costly
        if isinstance(self.budget, Mapping):
            given = {name: exact(share, f"the share of {name}") for name, share in self.budget.items()}
            if sorted(given) != sorted(costly) or sum(given.values()) != 1:
                raise InputError(f"budget must give shares that add up to 1 for each of {', '.join(costly)}")
            return {name: given.get(name, Fraction(0)) for name in self.statistics}
        weights = dict.fromkeys(costly, 1)
        if self.budget != "equal":
            wanted = {name: self._wanted(self.statistics[name]) for name in costly}
            total = sum(wanted.values())
            weights = {name: max(round(DIGITS * each / total), 1) for name, each in wanted.items()}
        return {name: Fraction(weights.get(name, 0), sum(weights.values())) for name in self.statistics}

    def _wanted(self, statistic: Statistic) -> float:
        """Return the weight of a statistic, which makes the sum of relative variances smallest.

        That of an entry is the variance of its noise over its own when records spread evenly over the schema; that of a
        statistic, the mean over its entries, so that one with many cells doesn't take all. Noise of scale D / e_c
        (Laplace) on statistic c makes the sum of a_c / e_c^2 smallest under sum e_c = e at e_c proportional to
        a_c^(1/3), a_c = D^2 times the mean of reciprocal variances; Gaussian noise, a_c / rho_c, at a_c^(1/2).
        """
        unit, spread = statistic.unit(self.schema), statistic.spread(self.schema)
        moved = statistic.sensitivity(self.schema, self.neighbours)
        if self.law == "laplace":
            return float(((float(moved.l1) * unit) ** 2 * (1 / spread).mean()) ** (1 / 3))
        return math.sqrt(float(moved.l2_squared) * unit**2 * (1 / spread).mean())

    @cached_property
    def parts(self) -> tuple[StatisticPart, ...]:
        """The statistics with their noise."""
        found, schema = [], self.schema
        for name, share in self.shares.items():
            statistic = self.statistics[name]
            n_entries = math.prod(statistic.shape(schema))
            n_noised = statistic.n_noised(schema, self.neighbours) if isinstance(statistic, Counts) else n_entries
            step, moved = None, statistic.sensitivity(schema, self.neighbours)
            if moved.l1 > 0:
                asked, unit, price = f"noise on {name}", statistic.unit(schema), self.amount * share
                step = Step(name=asked, sensitivity=moved, price=price, law=self.law, counts=name, unit=unit)
            part = StatisticPart(
                name=name,
                statistic=statistic,
                law=self.law,
                step=step,
                n_noised=0 if step is None else n_noised,
                follows=isinstance(statistic, Counts) and n_noised == n_entries - 1,
            )
            found.append(part)
        return tuple(found)

    def priced(self, **settings: Any) -> Plan:
        """Return what is asked of the table with its price; ``settings`` are those of :class:`Plan`."""
        steps = tuple(part.step for part in self.parts if part.step is not None)
        given = {"mechanism": "modips", "law": "", **settings}
        return Plan(schema=self.schema, neighbours=self.neighbours, steps=steps, design=self, **given)

    def ask(self, curator: Curator) -> NoisyStatistics:
        """Ask a curator all statistics, in order: what comes out is paid for."""
        values = {part.name: part.ask(curator) for part in self.parts}
        # sorted: the table's own order tells nothing
        public = public_columns(curator.public)[1] if self.schema.public_columns else {}
        return self._noisy(values, curator.n_records if curator.n_public else None, public)

    def _noisy(
        self, values: Mapping[str, IntArray], n: int | None, public: Mapping[str, NDArray[Any]]
    ) -> NoisyStatistics:
        known: dict[str, Any] = {"schema": self.schema, "neighbours": self.neighbours, "parts": self.parts}
        return NoisyStatistics(**known, values=values, n_records=n, public=public)

    def sanitize(self, table: Table, bits: RandomBits) -> NoisyStatistics:
        """Return noisy statistics of a table that is no confidential one, such as made-up records."""
        return self.ask(Drawing(self.priced(), table, bits))

    def tried(self, n_records: int | None = None) -> NoisyStatistics:
        """Return noisy statistics of stand-ins, measured and noised as a table's are, to try a model on.

        Stand-ins and noise are functions of the schema, the settings and the number of records, where it is public. For
        more than ``MADE_UP`` records without public columns, statistics of so many are scaled.
        """
        n = MADE_UP if n_records is None or self.neighbours == "add-remove" else n_records
        rows = min(n, MOST_PUBLIC if self.schema.public_columns else MADE_UP)
        frame = to_records(self.schema, stand_ins(self.schema, rows), pd.DataFrame(), np.random.default_rng(0))
        if self.schema.records.person is not None:
            frame[self.schema.records.person] = np.arange(rows)
        noisy = self.sanitize(Table(frame, self.schema), RandomBits(np.random.default_rng(0)))
        if self.schema.public_columns or n <= rows:
            return noisy
        values = dict(noisy.values)
        for part in noisy.of(Counts, Sums, Products, Scatter):
            values[part.name] = np.rint(values[part.name] * (n / rows)).astype(np.int64)
        return replace(noisy, values=values, n_records=noisy.n_records and n)

    def restored(self, frame: pd.DataFrame) -> NoisyStatistics:
        """Return noisy statistics that were published by :func:`to_frame`; refuse those of another plan."""
        rows = {str(name): each for name, each in frame.groupby("statistic", sort=False)}
        counted = rows.pop(RECORDS) if self.neighbours == "replace-one" and RECORDS in rows else None
        sizes = {part.name: math.prod(part.statistic.shape(self.schema)) for part in self.parts}
        if {name: len(each) for name, each in rows.items()} != sizes:
            raise InputError("the release has other statistics than the model declares")
        values = {}
        for part in self.parts:
            scale = 0.0 if part.step is None else part.step.noise.scale
            if not math.isclose(scale, float(rows[part.name]["scale"].iloc[0]), rel_tol=1e-9):
                raise InputError("the noise of the release is not what these settings give: epsilon or budget differ")
            unit = part.statistic.unit(self.schema)
            values[part.name] = np.rint(rows[part.name]["noisy"].to_numpy() / unit).astype(np.int64)
        return self._noisy(values, None if counted is None else int(counted["noisy"].iloc[0]), {})


def to_frame(measured: NoisyStatistics, used: Mapping[str, FloatArray]) -> pd.DataFrame:
    """Return noisy statistics as a table to be published, beside what post-processing made of them.

    First the number of records, ``n``, where it is public. Then one row an entry: ``statistic``, ``cell`` (levels, "; "
    between them), ``noisy`` and ``used`` in the model's unit (records, or sums of u = (x - middle) / half of the public
    bounds), ``noise`` (law), ``scale`` and ``standard_deviation`` of the noise in the same unit.
    """
    frames = []
    if measured.n_records is not None:
        n = float(measured.n_records)
        public = {"statistic": RECORDS, "cell": "", "noisy": n, "used": n, "noise": "none", "scale": 0.0}
        frames.append(pd.DataFrame([{**public, "standard_deviation": 0.0}]))
    for part in measured.parts:
        labels = part.statistic.labels(measured.schema)
        cells = ["; ".join(f"{name} = {level}" for name, level in row.items()) for row in labels.to_dict("records")]
        n_entries = len(measured.values[part.name])
        noised = np.arange(n_entries) < part.n_noised
        columns = {
            "statistic": part.name,
            "cell": cells if cells else [""] * n_entries,
            "noisy": measured.value(part.name),
            "used": used[part.name],
            "noise": np.where(noised, f"discrete {part.law}", "none"),
            "scale": np.where(noised, measured.scale(part.name), 0.0),
            "standard_deviation": np.where(noised, measured.deviation(part.name), 0.0),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def settle(measured: NoisyStatistics) -> dict[str, FloatArray]:
    """Return what plug-in models use in place of exact statistics, and where noise-aware chains start.

    Counts are moved to the nearest that are at least 0 (at least 1 where sums are taken in the same cells) and add up
    to n; sums to at most one a record; the matrix of sums of squares and products about the cells' means to the nearest
    one that is positive. In the model's units, shape (entries,).
    """
    used = {part.name: _counts(measured, part) for part in measured.of(Counts)}
    total = number_of_records(measured, used)
    for part in measured.parts:
        noisy, kind = measured.value(part.name), type(part.statistic)
        if kind is Sums:
            most = _sizes(measured, part, used, total)
            used[part.name] = np.clip(noisy, -most, most)
        elif kind is Scatter:
            used[part.name] = np.clip(noisy, LEAST_VARIANCE * total, total)
        elif kind is Products:
            used[part.name] = np.clip(noisy, -total, total)
        elif kind is not Counts:
            used[part.name] = noisy
    pairs = {_of(part): part.name for part in measured.of(Products) if not _by(part)}
    names, summed = sorted({name for pair in pairs for name in pair}), {_of(part) for part in measured.of(Sums)}
    if not names or not all(name in summed and (name, name) in pairs for name in names):
        return used
    of_means = {pair: _of_means(measured, used, pair) for pair in pairs}
    places = {(x, y): (names.index(x), names.index(y)) for x, y in pairs}
    about = np.zeros((len(names), len(names)))
    for pair, (i, j) in places.items():
        about[i, j] = about[j, i] = used[pairs[pair]][0] - of_means[pair]
    nearest = nearest_positive(about, LEAST_VARIANCE * total)
    return used | {pairs[pair]: np.array([nearest[place] + of_means[pair]]) for pair, place in places.items()}


def number_of_records(measured: NoisyStatistics, used: Mapping[str, FloatArray]) -> float:
    """Return the public number of records, or what noisy counts say of it, at least 1."""
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
    noisy, n = measured.value(part.name), measured.n_records
    if not part.n_noised:
        return noisy
    least = float(any(_by(each) == _by(part) for each in measured.of(Sums)))
    if n is None:
        return np.maximum(noisy, LEAST_RECORDS if len(noisy) == 1 else max(least, 1 / len(noisy)))
    least = min(least, n / len(noisy))
    return least + simplex_projection(noisy - least, np.array([n - least * len(noisy)]))


def _sizes(measured: NoisyStatistics, part: StatisticPart, used: Mapping[str, FloatArray], total: float) -> FloatArray:
    """Return how many records there are in each of the cells that a part sums over, as far as counts say."""
    for counts in measured.of(Counts):
        if _by(counts) == _by(part):
            return used[counts.name]
    return np.full(len(measured.values[part.name]), total)


def _of_means(measured: NoisyStatistics, used: Mapping[str, FloatArray], pair: tuple[str, str]) -> float:
    """Return what the means add to a sum of products, sum_k T_k T_k' / n_k; 0 if they weren't measured alike."""
    sums = {_of(part): part for part in measured.of(Sums)}
    if not all(name in sums for name in pair):
        return 0.0
    x, y = (used[sums[name].name] for name in pair)
    size = np.maximum(_sizes(measured, sums[pair[0]], used, number_of_records(measured, used)), 1e-9)
    return float((x * y / size).sum()) if len(x) == len(y) else 0.0


def scatter_about(
    measured: NoisyStatistics, used: Mapping[str, FloatArray], names: Sequence[str], least: float = 0.0
) -> FloatArray:
    """Return the settled sums of squares and products about the means as a positive matrix, shape (d, d).

    ``names`` are of the products, the lower triangle row by row. No eigenvalue is below ``least``, nor below
    :data:`LEAST_VARIANCE` of a record.
    """
    rows, columns = np.tril_indices(int(np.sqrt(2 * len(names))))
    found = np.zeros((rows[-1] + 1, rows[-1] + 1))
    for name, row, column in zip(names, rows, columns, strict=True):
        found[row, column] = found[column, row] = used[name][0] - _of_means(measured, used, _of(measured.part(name)))
    return nearest_positive(found, max(least, LEAST_VARIANCE * number_of_records(measured, used)))


def nearest_positive(matrix: FloatArray, least: float) -> FloatArray:
    """Return the nearest symmetric matrix without eigenvalues below ``least``, shape (d, d)."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)
