"""``calibrate``: the smallest epsilon at which a stated accuracy is reached."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from pdips.calibration.closed_form import MarginNames, MarginRequest, NoFormError, errors_of, read
from pdips.calibration.search import EpsilonGrid, Reached, search
from pdips.calibration.simulation import Goal, Measure, Simulation, stand_in_table
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import LARGEST_EPSILON, Mechanism
from pdips.privacy.loss import Number, choice, exact, positive, spell
from pdips.privacy.noise_sum import NoiseSum, check_level

Method = Literal["closed form", "simulation"]
Unit = Literal["records", "share"]
Source = Mechanism | Callable[[Fraction], Mechanism]

MOST_RECORDS = 10**12
SMALLEST_SIMULATED = Fraction(1, 100)
CLOSED_GRID, SIMULATED_GRID = EpsilonGrid(3), EpsilonGrid(2)


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibration:
    """The smallest epsilon at which a stated accuracy is reached, and on what that rests.

    Parameters
    ----------
    epsilon : Fraction
        Rounded up to three significant digits; to two where it was found by simulation.
    mechanism : Mechanism
        With this epsilon, ready for a release.
    goal : {"standard error", "interval width"}
        What was asked for.
    target, reached : float
        What it was to be at most, and what it is at this epsilon, for the worst margin.
    worst : str
        That margin, or statistic.
    monte_carlo_error : float
        Standard error of ``reached``; 0 in closed form.
    unit : str
        Of target and reached.
    method : {"closed form", "simulation"}
        How it was found.
    by_epsilon : DataFrame
        What is reached at each epsilon that was tried: ``epsilon``, ``reached``, ``monte_carlo_error``, ``worst``.
    by_margin : DataFrame
        What is reached at the epsilon that was found: ``margin``, ``reached``.
    statement : str
        What was worked out from which facts, and what it leaves out.
    """

    epsilon: Fraction
    mechanism: Mechanism
    goal: Goal
    target: float
    reached: float
    worst: str
    monte_carlo_error: float
    unit: str
    method: Method
    by_epsilon: pd.DataFrame
    by_margin: pd.DataFrame
    statement: str

    def __repr__(self) -> str:
        return f"Calibration(epsilon={spell(self.epsilon)}, {self.goal} {self.reached:.4g} {self.unit}, {self.method})"

    def describe(self) -> dict[str, Any]:
        """Return it as plain values, for JSON: None where nothing is reached, at an epsilon that is too small."""
        plain = ("goal", "target", "reached", "worst", "monte_carlo_error", "unit", "method", "statement")
        return {
            "mechanism": self.mechanism.name,
            "epsilon": float(self.epsilon),
            "neighbours": self.mechanism.neighbours,
            "n_sets": self.mechanism.n_sets,
            **{name: getattr(self, name) for name in plain},
            "by_epsilon": [
                {**row, "reached": row["reached"] if math.isfinite(row["reached"]) else None}
                for row in self.by_epsilon.to_dict("records")
            ],
            "by_margin": self.by_margin.to_dict("records"),
        }


@dataclass(frozen=True, kw_only=True)
class AccuracyTarget:
    """All that was asked, checked."""

    schema: Schema
    request: MarginRequest
    goal: Goal
    target: float
    level: float
    unit: Unit
    n_records: int | None
    sampling_share: float | None

    @property
    def divisor(self) -> float:
        """What errors in records are divided by."""
        return float(self.n_records or 1) if self.unit == "share" else 1.0

    def of_sums(self, errors: Mapping[str, NoiseSum], *, worst_only: bool = False) -> Reached:
        """Return what is reached by errors known in closed form; perhaps only of widths that may be the worst."""
        sums = {name: self._with_sampling(each).scaled(1 / self.divisor) for name, each in errors.items()}
        deviations = {name: each.standard_error for name, each in sums.items()}
        if self.goal == "standard error":
            return _found(deviations)
        widths, largest = dict[NoiseSum, float](), 0.0
        for name in sorted(sums, key=lambda name: -deviations[name]):
            if worst_only and 2 * deviations[name] / math.sqrt(1 - self.level) < largest:  # Chebyshev
                break
            if sums[name] not in widths:
                widths[sums[name]] = 2 * sums[name].half_width(self.level)
            largest = max(largest, widths[sums[name]])
        return _found({name: widths[each] for name, each in sums.items() if each in widths})

    def _with_sampling(self, error: NoiseSum) -> NoiseSum:
        if self.sampling_share is None:
            return error
        variance = (self.n_records or 0) * self.sampling_share * (1 - self.sampling_share)
        return replace(error, normal_variance=variance)


def _found(by_margin: dict[str, float]) -> Reached:
    return Reached(max(by_margin.values()), 0.0, by_margin)


def calibrate(
    mechanism: Source,
    schema: Schema,
    *,
    standard_error: float | None = None,
    interval_width: float | None = None,
    level: float = 0.95,
    of: MarginNames = "all",
    in_: Unit = "records",
    n_records: int | None = None,
    sampling_share: float | None = None,
    method: Method | None = None,
    public_table: Table | None = None,
    measure: Measure | None = None,
    replicates: int = 40,
    largest_epsilon: Number = 100,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Return the smallest epsilon at which margins are as exact as asked for, from public facts only.

    Parameters
    ----------
    mechanism : Mechanism, its class, or function from epsilon to one
        With all settings but epsilon, which is ignored; the epsilons of a ``budget`` are scaled with it.
    schema : Schema
        What is public about the table.
    standard_error : float
        What the standard error of every count is to be at most. Either this or ``interval_width``.
    interval_width : float
        What the full width of an interval of probability ``level`` about every count is to be at most.
    level : float
        From 0.5 to 0.9999.
    of : {"all", "one-way", "two-way"}, str, or sequence
        All margins of one and two columns, or some by name: ``"age"``, ``"sex,age"``, ``["age", ("sex", "age")]``. Of
        modips also statistics of its model by name, each in the model's unit.
    in_ : {"records", "share"}
        Unit of the target: a share, from 0 to 1, is of ``n_records``.
    n_records : int, optional
        Public number of records; where neighbours are add-remove it is protected, so a public guess. For shares, and
        simulations without a table.
    sampling_share : float, optional
        Adds the error of a sample of ``n_records`` from a large population to that of the noise, for a cell of this
        share of it; 0.5 is the worst. Left out, noise alone counts. In closed form only.
    method : {"closed form", "simulation"}, optional
        Left out, the closed form if there is one and neither table nor measure is given.
    public_table : Table, optional
        A PUBLIC or SYNTHETIC table to simulate on. Never the confidential one: epsilon would depend on its records, and
        nobody would have paid for that. It can't be checked here; the result says what was assumed. Left out, records
        of nobody, drawn independently and evenly from the schema.
    measure : callable, optional
        In place of margins, for simulations: from the list of all synthetic sets of a release to a number. For a
        standard error it is an estimate, whose root mean square distance from what ``[public_table.frame]`` gives
        counts; for an interval width it is the width itself (``pdips.inference.combine`` gives one), whose mean counts.
    replicates : int
        Releases at each epsilon of a simulation.
    largest_epsilon : int, float, str or Fraction
        The largest that is tried.
    seed : int
        Of a simulation.
    progress : callable, optional
        Told what is being tried.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        If an argument is out of range, a margin isn't there, the mechanism bounds nothing, or the target isn't reached
        at the largest epsilon; the message then has the best that is.

    Notes
    -----
    Closed form: the error of the least squares counts (of trees), of the averages of noisy margins, or of noisy
    statistics, of the mean over all sets; before counts are made nonnegative, whole, and into records. Standard errors
    leave structural zeros out of account, with which they are at most as large. Widths come from the law of the
    weighted sum of discrete Laplace draws, at most half a percent too wide. Both fall as epsilon rises; they are
    bisected on numbers of three significant digits, so the next smaller one misses the target. ``docs/calibrate.md``.

    Simulation: all that goes on between table and synthetic sets counts. Errors are root mean squares over releases and
    the cells of a margin, or quantiles over both; the target must be met with two Monte Carlo standard errors to spare.
    """
    target, goal = _target(standard_error, interval_width)
    question = AccuracyTarget(
        schema=schema,
        request=read(of),
        goal=goal,
        target=target,
        level=check_level(level),
        unit=choice(in_, get_args(Unit), "in_"),
        n_records=_checked_n(n_records, public_table),
        sampling_share=_checked_share(sampling_share, n_records),
    )
    build = _builder(mechanism)
    first = build(Fraction(1))
    _check_claim(first, schema)
    largest = _checked_largest(largest_epsilon)
    chosen, why_not = _method(method, first, question, simulated=public_table is not None or measure is not None)
    if question.unit == "share" and target > 1:
        raise InputError(f"the target is a share, from 0 to 1, got {target:g}; for counts of records leave share out")
    if question.unit == "share" and question.n_records is None:
        raise InputError("a share needs n_records, the public number of records (or a public guess)")
    if chosen == "closed form":
        return _closed(question, build, largest)
    table = _table_for(question, first, public_table, seed, why_not)
    simulation = Simulation(
        table=table,
        margins=[] if measure is not None else question.request.margins(schema),
        measure=measure,
        goal=goal,
        level=question.level,
        replicates=replicates,
        seed=seed,
    )
    return _simulated(question, build, largest, simulation, public_table is not None, progress)


def _target(standard_error: float | None, interval_width: float | None) -> tuple[float, Goal]:
    if (standard_error is None) == (interval_width is None):
        raise InputError("give either standard_error or interval_width: how exact counts are to be")
    if standard_error is not None:
        return float(positive(standard_error, "standard_error")), "standard error"
    return float(positive(interval_width or 0, "interval_width")), "interval width"


def _checked_n(n_records: int | None, public_table: Table | None) -> int | None:
    if n_records is None:
        return None if public_table is None else public_table.n_records
    if isinstance(n_records, bool) or not isinstance(n_records, int) or not 1 <= n_records <= MOST_RECORDS:
        raise InputError(f"n_records must be a whole number of at least 1, got {n_records}")
    return n_records


def _checked_share(share: float | None, n_records: int | None) -> float | None:
    if share is None:
        return None
    if not 0 < positive(share, "sampling_share") < 1:
        raise InputError(f"sampling_share must be above 0 and below 1, got {share}")
    if n_records is None:
        raise InputError("sampling_share needs n_records: the error of a sample depends on its size")
    return float(share)


def _checked_largest(largest: Number) -> Fraction:
    found = positive(largest, "largest_epsilon")
    if not SMALLEST_SIMULATED <= found <= LARGEST_EPSILON:
        raise InputError(f"largest_epsilon must be from 0.01 to {LARGEST_EPSILON:,}, got {largest}")
    return found


def _builder(source: Source) -> Callable[[Fraction], Mechanism]:
    """Return a function from epsilon to the mechanism with this epsilon."""
    configured: Any = source
    if isinstance(source, type):
        return lambda epsilon: configured(epsilon=epsilon)
    if not hasattr(source, "privacy_loss"):
        if not callable(source):
            raise InputError("mechanism must be a mechanism, or a function from epsilon to one")
        return lambda epsilon: _checked(source(epsilon), epsilon)
    before, budget = exact(configured.epsilon, "epsilon"), getattr(configured, "budget", None)

    def build(epsilon: Fraction) -> Mechanism:
        changed: dict[str, Any] = {"epsilon": epsilon}
        if isinstance(budget, tuple):  # epsilons by layer, which add up to the total
            changed["budget"] = tuple(exact(part, "budget") * epsilon / before for part in budget)
        made: Mechanism = replace(configured, **changed)
        return made

    return build


def _checked(mechanism: Mechanism, epsilon: Fraction) -> Mechanism:
    if exact(mechanism.epsilon, "epsilon") != epsilon:
        raise InputError("the function from epsilon to a mechanism must give one with this epsilon")
    return mechanism


def _check_claim(mechanism: Mechanism, schema: Schema) -> None:
    """Refuse a mechanism whose epsilon bounds nothing."""
    loss = mechanism.privacy_loss()
    loss = mechanism.privacy_loss(schema) if loss.is_finite else loss
    if not loss.is_finite:
        raise InputError(
            f"the epsilon of {mechanism.name} with these settings bounds nothing (kind {loss.kind}): "
            "there is no price to be found for it"
        )


def _method(
    method: Method | None, first: Mechanism, question: AccuracyTarget, *, simulated: bool
) -> tuple[Method, str]:
    """Return how to find out, and why not in closed form."""
    if method is not None:
        choice(method, get_args(Method), "method")
    if method == "closed form" and simulated:
        raise InputError("public_table and measure are for simulations: leave them out, or method")
    if method == "simulation" or simulated:
        if question.sampling_share is not None:
            raise InputError("sampling_share goes with the closed form only: a simulated table is what it is")
        return "simulation", ""
    try:
        errors_of(first, question.schema, question.request)
    except NoFormError as error:
        if method is not None or question.sampling_share is not None:
            raise InputError(f"no closed form: {error}; leave method and sampling_share out to simulate") from None
        return "simulation", str(error)
    return "closed form", ""


def _closed(question: AccuracyTarget, build: Callable[[Fraction], Mechanism], largest: Fraction) -> Calibration:
    def measured(epsilon: Fraction) -> Reached:
        return question.of_sums(errors_of(build(epsilon), question.schema, question.request), worst_only=True)

    epsilon, found = search(measured, question.target, largest, CLOSED_GRID)
    found[epsilon] = question.of_sums(errors_of(build(epsilon), question.schema, question.request))
    return _calibration(question, build, epsilon, found, "closed form", closed_form_statement)


def _table_for(question: AccuracyTarget, first: Mechanism, public: Table | None, seed: int, why_not: str) -> Table:
    """Return the table to simulate on: never the confidential one."""
    if first.privacy_loss(question.schema).sampling == "mcmc":
        raise InputError(f"{first.name} draws by Markov chains with these settings: it isn't simulated here")
    if public is not None:
        if public.schema.columns != question.schema.columns:
            raise InputError("public_table has another schema than the one given")
        return public
    if question.n_records is None:
        reason = f" ({why_not})" if why_not else ""
        raise InputError(
            f"{first.name} is simulated here{reason}: give public_table, or n_records for records of nobody"
        )
    return stand_in_table(question.schema, question.n_records, np.random.default_rng([seed, 0]))


def _simulated(
    question: AccuracyTarget,
    build: Callable[[Fraction], Mechanism],
    largest: Fraction,
    simulation: Simulation,
    public: bool,
    progress: Callable[[str], None] | None,
) -> Calibration:
    top = SIMULATED_GRID.at(SIMULATED_GRID.place_below(largest))

    def measured(epsilon: Fraction) -> Reached:
        if progress is not None:
            progress(f"{simulation.replicates} releases at epsilon = {spell(epsilon)}")
        mechanism = build(epsilon)
        try:
            mechanism.spends(question.schema)
        except InputError:
            if epsilon == top:
                raise
            return Reached(np.inf, 0.0, {"too small an epsilon for this mechanism": np.inf})
        found = simulation.run(mechanism)
        by_margin = {name: each / question.divisor for name, each in found.by_margin.items()}
        return Reached(found.reached / question.divisor, found.monte_carlo_error / question.divisor, by_margin)

    epsilon, found = search(measured, question.target, top, SIMULATED_GRID, smallest=SMALLEST_SIMULATED)
    say = simulated_statement(simulation, public=public)
    return _calibration(question, build, epsilon, found, "simulation", say)


def _unit_of(question: AccuracyTarget, found: Reached) -> str:
    """Return the unit in words: records, unless a model's statistic or a measure has one of its own."""
    counted = all(name in question.schema.columns for each in found.by_margin for name in each.split(" x "))
    if not counted:
        return "its own unit" if question.unit == "records" else "its own unit, divided by the number of records"
    return "records" if question.unit == "records" else "share of the records"


def _calibration(
    question: AccuracyTarget,
    build: Callable[[Fraction], Mechanism],
    epsilon: Fraction,
    found: Mapping[Fraction, Reached],
    method: Method,
    say: Callable[[Mechanism, AccuracyTarget, Reached], str],
) -> Calibration:
    mechanism, here = build(epsilon), found[epsilon]
    mechanism.spends(question.schema)
    rows = [(float(each), f.reached, f.monte_carlo_error, f.worst) for each, f in found.items()]
    unit = _unit_of(question, here)
    margins = pd.DataFrame(list(here.by_margin.items()), columns=["margin", "reached"])
    return Calibration(
        epsilon=epsilon,
        mechanism=mechanism,
        goal=question.goal,
        target=question.target,
        reached=here.reached,
        worst=here.worst,
        monte_carlo_error=here.monte_carlo_error,
        unit=unit,
        method=method,
        by_epsilon=pd.DataFrame(rows, columns=["epsilon", "reached", "monte_carlo_error", "worst"]),
        by_margin=margins.sort_values("reached", ascending=False, ignore_index=True),
        statement=say(mechanism, question, here),
    )


def goal_in_words(question: AccuracyTarget) -> str:
    """Return what was asked for."""
    what = "standard error" if question.goal == "standard error" else f"width of the {question.level:.4g} interval"
    return f"{what} of {question.target:g}{' (share)' if question.unit == 'share' else ''}"


def closed_form_statement(mechanism: Mechanism, question: AccuracyTarget, found: Reached) -> str:
    """Return the statement of a result in closed form."""
    epsilon = spell(exact(mechanism.epsilon, "epsilon"))
    parts = [
        f"{mechanism.name} reaches a {goal_in_words(question)} at epsilon = {epsilon} in total over {mechanism.n_sets} "
        f"set{'s' if mechanism.n_sets > 1 else ''}, {mechanism.neighbours} neighbours, and not at the next smaller "
        f"number of three digits. Worked out from the schema and the settings: no table was read. It is the error "
        "that the noise gives to counts or statistics, of the mean over all sets, before they are made nonnegative and "
        "whole and into records."
    ]
    if question.sampling_share is None:
        parts.append("The error of a sample, which the records have without any noise, comes on top.")
    else:
        parts.append(
            f"The error of a sample of {question.n_records:,} records from a large population is in it, for a cell of "
            f"share {question.sampling_share:g}."
        )
    return " ".join([*parts, *_of_n(mechanism, question)])


def simulated_statement(simulation: Simulation, *, public: bool) -> Callable[[Mechanism, AccuracyTarget, Reached], str]:
    """Return a function that gives the statement of a simulated result."""

    def say(mechanism: Mechanism, question: AccuracyTarget, found: Reached) -> str:
        epsilon = spell(exact(mechanism.epsilon, "epsilon"))
        where = (
            "a table that was given as PUBLIC or SYNTHETIC. If it is the confidential one, this epsilon depends on its "
            "records, nothing has paid for that, and the guarantee of a release at this epsilon is void"
            if public
            else "records of nobody, drawn independently and evenly from the schema. Real tables are neither"
        )
        text = (
            f"{mechanism.name} reached a {goal_in_words(question)} at epsilon = {epsilon} in total over "
            f"{mechanism.n_sets} set{'s' if mechanism.n_sets > 1 else ''}, {mechanism.neighbours} neighbours, in "
            f"{simulation.replicates} releases (found {found.reached:.4g}, Monte Carlo standard error "
            f"{found.monte_carlo_error:.2g}; two of them to spare), and not at the next smaller number of two digits "
            f"that was tried. Simulated on {where}; on another table the error may be another."
        )
        return " ".join([text, *_of_n(mechanism, question)])

    return say


def _of_n(mechanism: Mechanism, question: AccuracyTarget) -> list[str]:
    if question.n_records is None or mechanism.neighbours == "replace-one":
        return []
    return [f"The number of records is protected: {question.n_records:,} was taken for it, and must be a public guess."]
