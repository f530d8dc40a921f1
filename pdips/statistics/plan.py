"""Statistics of a table with noise: which part of the budget each gets, how much noise that is, what is published."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import public_columns, stand_ins
from pdips.posterior.columns import to_frame as to_records
from pdips.privacy.curator import Curator, Drawing, noisy_counts
from pdips.privacy.loss import Neighbours, Number, exact, positive
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.statistics.statistic import Counts, Products, Scatter, Statistic, Sums, measured, shipped

Law = Literal["laplace", "gaussian"]

RECORDS = "n"
"""What the public number of records is called among the statistics."""

MADE_UP = 1000
MOST_PUBLIC = 10_000
"""Stand-ins on which a model is tried, without public columns and with them."""

DIGITS = 10**6
"""Shares of an optimal budget are rounded to this part of one."""


@dataclass(frozen=True, kw_only=True)
class StatisticPart:
    """One statistic of a plan, and the noise on each of its entries.

    Parameters
    ----------
    name : str
        What the model calls it.
    statistic : Statistic
        What is measured.
    law : {"laplace", "gaussian"}
        Of the noise.
    step : Step, optional
        What is asked of the table, and at which price; None for what is public.
    n_noised : int
        How many entries get noise, from the first.
    follows : bool
        Whether one more count follows from these and the public number of records.
    """

    name: str
    statistic: Statistic
    law: Law
    step: Step | None
    n_noised: int
    follows: bool = False

    @property
    def scale(self) -> Fraction:
        """Of the discrete Laplace law in whole units, or sigma^2 of the discrete Gaussian one; 0 for what is public."""
        if self.step is None:
            return Fraction(0)
        return self.step.scale if self.law == "laplace" else self.step.variance

    @property
    def standard_deviation(self) -> float:
        """That of the noise, in whole units."""
        return 0.0 if self.step is None else self.step.standard_deviation

    def noise(self, n: int, bits: RandomBits) -> IntArray:
        """Draw noise for all noised entries of ``n`` runs, shape (n, n_noised)."""
        nothing = np.zeros(self.n_noised, dtype=np.int64)
        return np.tile(nothing, (n, 1)) if self.step is None else noisy_counts(nothing, None, self.step, bits, n)

    def ask(self, curator: Curator) -> IntArray:
        """Return the statistic with its noise, shape (entries,), in whole units."""
        if self.step is None:
            if self.follows:
                return np.array([curator.n_records])
            return self.statistic.measure(curator.public).ravel()
        noisy = curator.count(self.step, lambda table: measured(self.statistic, table)[: self.n_noised])
        if self.follows:  # the last of two counts follows from the first and the public total, so it tells nothing more
            return np.append(noisy, curator.n_records - noisy.sum())
        return noisy


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyStatistics:
    """Noisy statistics: public from here on.

    Parameters
    ----------
    schema : Schema
        Of the table.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public.
    parts : tuple of StatisticPart
        What was measured, and with which noise.
    values : mapping of str to ndarray of int64, shape (entries,)
        Noisy statistics in whole units.
    n_records : int, optional
        Public number of records; None under add-remove.
    public : mapping of str to ndarray, shape (records,)
        Public columns as models read them, the same in neighbouring tables.
    """

    schema: Schema
    neighbours: Neighbours
    parts: tuple[StatisticPart, ...]
    values: Mapping[str, IntArray]
    n_records: int | None
    public: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def part(self, name: str) -> StatisticPart:
        """Return a part by its name.

        Raises
        ------
        InputError
            If the model asks for a statistic that it hasn't declared.
        """
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
        part = self.part(name)
        return part.standard_deviation * part.statistic.unit(self.schema)

    def scale(self, name: str) -> float:
        """Return the scale of Laplace noise, or the standard deviation of Gaussian noise, in the model's unit."""
        part = self.part(name)
        scale = float(part.scale) if part.law == "laplace" else math.sqrt(part.scale)
        return scale * part.statistic.unit(self.schema)


@dataclass(frozen=True, kw_only=True)
class StatisticPlan:
    """What is measured of tables of one schema, and how the budget is divided over it.

    Parameters
    ----------
    schema : Schema
        Of the tables.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike.
    statistics : mapping of str to Statistic
        By the names that the model gives them.
    budget : {"equal", "optimal"} or mapping of str to number
        The same share for each statistic that isn't public; shares that make the sum over statistics of relative
        variances smallest; or shares as given, which add up to 1.
    amount : Fraction
        Epsilon of one sanitization; or rho, for Gaussian noise.
    law : {"laplace", "gaussian"}
        Of the noise.
    """

    schema: Schema
    neighbours: Neighbours
    statistics: Mapping[str, Statistic]
    budget: Literal["equal", "optimal"] | Mapping[str, Number]
    amount: Fraction
    law: Law

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", shipped(self.statistics))
        if self.neighbours == "replace-one" and RECORDS in self.statistics:
            raise InputError(f"{RECORDS!r} is what the public number of records is called; rename that statistic")
        if isinstance(self.budget, Mapping):
            given = {str(name): positive(share, f"the share of {name}") for name, share in list(self.budget.items())}
            object.__setattr__(self, "budget", given)
        for statistic in self.statistics.values():
            statistic.check(self.schema)
        if not any(self._moved(each) for each in self.statistics.values()):
            raise InputError("the model's statistics are all public or say nothing: there is nothing to release")
        self.parts  # noqa: B018 - a budget that is none is refused, too

    @property
    def shares(self) -> dict[str, Fraction]:
        """The part of the budget of each statistic."""
        costly = [name for name, each in self.statistics.items() if self._moved(each)]
        if isinstance(self.budget, Mapping):
            given = {name: exact(share, f"the share of {name}") for name, share in self.budget.items()}
            if sorted(given) != sorted(costly) or sum(given.values()) != 1:
                raise InputError(f"budget must give shares that add up to 1 for each of {', '.join(costly)}")
            return {name: given.get(name, Fraction(0)) for name in self.statistics}
        if self.budget == "equal":
            weights = dict.fromkeys(costly, 1)
        else:
            wanted = {name: self._wanted(self.statistics[name]) for name in costly}
            total = sum(wanted.values())
            weights = {name: max(round(DIGITS * each / total), 1) for name, each in wanted.items()}
        return {name: Fraction(weights.get(name, 0), sum(weights.values())) for name in self.statistics}

    def _wanted(self, statistic: Statistic) -> float:
        """Return the weight of a statistic, see notes.

        Notes
        -----
        The relative variance of an entry is that of its noise over its own when records spread evenly over the schema;
        that of a statistic, the mean over its entries, so that one with many cells doesn't take all.
        Noise of scale D / e_c (Laplace) on statistic c makes the sum of a_c / e_c^2 smallest under sum e_c = e at e_c
        proportional to a_c^(1/3), a_c = D^2 times the mean of reciprocal variances; Gaussian noise, a_c / rho_c, at
        a_c^(1/2).
        """
        unit, spread = statistic.unit(self.schema), statistic.spread(self.schema)
        moved = statistic.sensitivity(self.schema, self.neighbours)
        if self.law == "laplace":
            return float(((float(moved.l1) * unit) ** 2 * (1 / spread).mean()) ** (1 / 3))
        return math.sqrt(float(moved.l2_squared) * unit**2 * (1 / spread).mean())

    def _moved(self, statistic: Statistic) -> bool:
        """Whether a person can move a statistic at all."""
        return statistic.sensitivity(self.schema, self.neighbours).l1 > 0

    @cached_property
    def parts(self) -> tuple[StatisticPart, ...]:
        """The statistics with their noise."""
        return tuple(self._part(name, self.statistics[name], share) for name, share in self.shares.items())

    def _part(self, name: str, statistic: Statistic, share: Fraction) -> StatisticPart:
        counts, n_entries = isinstance(statistic, Counts), math.prod(statistic.shape(self.schema))
        n_noised = statistic.n_noised(self.schema, self.neighbours) if isinstance(statistic, Counts) else n_entries
        step = None
        if self._moved(statistic):
            moved, unit = statistic.sensitivity(self.schema, self.neighbours), statistic.unit(self.schema)
            price = self.amount * share
            step = Step(name=f"noise on {name}", sensitivity=moved, price=price, law=self.law, counts=name, unit=unit)
        follows = counts and n_noised == n_entries - 1
        return StatisticPart(
            name=name,
            statistic=statistic,
            law=self.law,
            step=step,
            n_noised=n_noised if step is not None else 0,
            follows=follows,
        )

    def priced(self, **settings: Any) -> Plan:
        """Return what is asked of the table with its price; ``settings`` are those of :class:`Plan`."""
        steps = tuple(part.step for part in self.parts if part.step is not None)
        given = {"mechanism": "modips", "law": "", **settings}
        return Plan(schema=self.schema, neighbours=self.neighbours, steps=steps, design=self, **given)

    def ask(self, curator: Curator) -> NoisyStatistics:
        """Ask a curator all statistics, in order: what comes out is paid for."""
        values = {part.name: part.ask(curator) for part in self.parts}
        n = curator.n_records if curator.n_public else None
        # sorted: the table's own order tells nothing
        public = public_columns(curator.public)[1] if self.schema.public_columns else {}
        return self._measured(values, n, public)

    def sanitize(self, table: Table, bits: RandomBits) -> NoisyStatistics:
        """Return noisy statistics of a table that is no confidential one, such as made-up records."""
        return self.ask(Drawing(self.priced(), table, bits))

    def tried(self, n_records: int | None = None) -> NoisyStatistics:
        """Return noisy statistics of stand-ins, measured and noised as a table's are, to try a model on.

        Parameters
        ----------
        n_records : int, optional
            Number of records, where it is public.

        Notes
        -----
        Stand-ins and noise are functions of the schema and the settings. For more than ``MADE_UP`` records without
        public columns, statistics of so many are scaled.
        """
        n = MADE_UP if n_records is None or self.neighbours == "add-remove" else n_records
        rows = min(n, MOST_PUBLIC if self.schema.public_columns else MADE_UP)
        values = stand_ins(self.schema, rows)
        frame = to_records(self.schema, values, pd.DataFrame(), np.random.default_rng(0))
        if self.schema.records.person is not None:
            frame[self.schema.records.person] = np.arange(rows)
        table = Table(frame, self.schema)
        noisy = self.sanitize(table, RandomBits(np.random.default_rng(0)))
        if self.schema.public_columns or n <= rows:
            return noisy
        return replace(noisy, values=self._scaled(noisy, n / rows), n_records=noisy.n_records and n)

    def _scaled(self, measured: NoisyStatistics, times: float) -> dict[str, IntArray]:
        sums = (Counts, Sums, Products, Scatter)
        return {
            part.name: np.rint(measured.values[part.name] * times).astype(np.int64)
            if isinstance(part.statistic, sums)
            else measured.values[part.name]
            for part in self.parts
        }

    def made_up(self, n_records: int | None = None) -> NoisyStatistics:
        """Return even statistics of nobody, without noise."""
        n = (n_records or MADE_UP) if self.neighbours == "replace-one" else None
        values = {}
        for part in self.parts:
            whole = part.statistic.shape(self.schema)
            even = (n or MADE_UP) // math.prod(whole) if isinstance(part.statistic, Counts) else 0
            values[part.name] = np.full(math.prod(whole), even, dtype=np.int64)
        made_up = stand_ins(self.schema, MADE_UP)
        return self._measured(values, n, {name: made_up[name] for name in self.schema.public_columns})

    def _measured(
        self, values: Mapping[str, IntArray], n: int | None, public: Mapping[str, NDArray[Any]]
    ) -> NoisyStatistics:
        return NoisyStatistics(
            schema=self.schema,
            neighbours=self.neighbours,
            parts=self.parts,
            values=values,
            n_records=n,
            public=public,
        )

    def restored(self, frame: pd.DataFrame) -> NoisyStatistics:
        """Return noisy statistics that were published, see :func:`to_frame`.

        Raises
        ------
        InputError
            If the table has other statistics than this plan.
        """
        noisy = {str(name): each["noisy"].to_numpy() for name, each in frame.groupby("statistic", sort=False)}
        n = int(noisy.pop(RECORDS)[0]) if self.neighbours == "replace-one" and RECORDS in noisy else None
        sizes = {part.name: math.prod(part.statistic.shape(self.schema)) for part in self.parts}
        if {name: len(each) for name, each in noisy.items()} != sizes:
            raise InputError("the release has other statistics than the model declares")
        unnoised = self.made_up()
        if not all(
            math.isclose(unnoised.scale(part.name), _scales(frame, part.name), rel_tol=1e-9) for part in self.parts
        ):
            raise InputError("the noise of the release is not what these settings give: epsilon or budget differ")
        values = {
            part.name: np.rint(noisy[part.name] / part.statistic.unit(self.schema)).astype(np.int64)
            for part in self.parts
        }
        return self._measured(values, n, {})


def to_frame(measured: NoisyStatistics, used: Mapping[str, FloatArray]) -> pd.DataFrame:
    """Return noisy statistics as a table to be published.

    Parameters
    ----------
    measured : NoisyStatistics
        What was measured.
    used : mapping of str to ndarray
        What post-processing made of it.

    Returns
    -------
    DataFrame
        First the number of records, ``n``, where it is public. Then one row an entry: ``statistic``, ``cell`` (levels,
        "; " between them), ``noisy`` and ``used`` in the model's unit (records, or sums of u = (x - middle) / half of
        the public bounds), ``noise`` (law), ``scale`` and ``standard_deviation`` of the noise in the same unit.
    """
    frames: Sequence[pd.DataFrame] = [_one(measured, part, used[part.name]) for part in measured.parts]
    if measured.n_records is None:
        return pd.concat(frames, ignore_index=True)
    n = float(measured.n_records)
    public = {"statistic": RECORDS, "cell": "", "noisy": n, "used": n, "noise": "none", "scale": 0.0}
    first = pd.DataFrame([{**public, "standard_deviation": 0.0}])
    return pd.concat([first, *frames], ignore_index=True)


def _scales(frame: pd.DataFrame, name: str) -> float:
    """Return the scale of the noise on the first entry of a statistic, as published."""
    return float(frame.loc[frame["statistic"] == name, "scale"].iloc[0])


def _one(measured: NoisyStatistics, part: StatisticPart, used: FloatArray) -> pd.DataFrame:
    labels = part.statistic.labels(measured.schema)
    cells = ["; ".join(f"{name} = {level}" for name, level in row.items()) for row in labels.to_dict("records")]
    n = len(measured.values[part.name])
    noised = np.arange(n) < part.n_noised
    return pd.DataFrame(
        {
            "statistic": part.name,
            "cell": cells if cells else [""] * n,
            "noisy": measured.value(part.name),
            "used": used,
            "noise": np.where(noised, f"discrete {part.law}", "none"),
            "scale": np.where(noised, measured.scale(part.name), 0.0),
            "standard_deviation": np.where(noised, measured.deviation(part.name), 0.0),
        }
    )
