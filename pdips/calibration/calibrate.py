"""``calibrate``: the smallest epsilon at which a stated accuracy is reached."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from pdips.calibration.closed_form import MarginNames, MarginRequest, NoFormError, errors_of, read
from pdips.calibration.simulation import EpsilonGrid, Goal, Measure, Reached, Simulation, search, stand_in_table
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
    """The smallest epsilon at which a stated accuracy is reached, and on what that rests."""

    epsilon: Fraction  # rounded up to three significant digits; to two where it was found by simulation
    mechanism: Mechanism  # with this epsilon, ready for a release
    goal: Goal
    target: float  # what the goal was to be at most
    reached: float  # what it is at this epsilon, for the worst margin
    worst: str  # that margin, or statistic
    monte_carlo_error: float  # standard error of ``reached``; 0 in closed form
    unit: str  # of target and reached
    method: Method
    by_epsilon: pd.DataFrame  # of each epsilon that was tried: epsilon, reached, monte_carlo_error, worst
    by_margin: pd.DataFrame  # at the epsilon that was found: margin, reached
    statement: str  # what was worked out from which facts, and what it leaves out

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

    def __post_init__(self) -> None:
        n, share = self.n_records, self.sampling_share
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_RECORDS):
            raise InputError(f"n_records must be a whole number of at least 1, got {n}")
        if share is not None and share >= 1:
            raise InputError(f"sampling_share must be above 0 and below 1, got {share}")
        if share is not None and n is None:
            raise InputError("sampling_share needs n_records: the error of a sample depends on its size")
        if self.unit == "share" and self.target > 1:
            raise InputError(
                f"the target is a share, from 0 to 1, got {self.target:g}; for counts of records leave share out"
            )
        if self.unit == "share" and n is None:
            raise InputError("a share needs n_records, the public number of records (or a public guess)")

    @property
    def divisor(self) -> float:
        """What errors in records are divided by."""
        return float(self.n_records or 1) if self.unit == "share" else 1.0

    def of_sums(self, errors: Mapping[str, NoiseSum], *, worst_only: bool = False) -> Reached:
        """Return what is reached by errors known in closed form; perhaps only of widths that may be the worst."""
        if self.sampling_share is not None:
            variance = (self.n_records or 0) * self.sampling_share * (1 - self.sampling_share)
            errors = {name: replace(each, normal_variance=variance) for name, each in errors.items()}
        sums = {name: each.scaled(1 / self.divisor) for name, each in errors.items()}
        found = {name: each.standard_error for name, each in sums.items()}
        if self.goal == "interval width":
            deviations, widths, largest = found, dict[NoiseSum, float](), 0.0
            for name in sorted(sums, key=lambda name: -deviations[name]):
                if worst_only and 2 * deviations[name] / math.sqrt(1 - self.level) < largest:  # Chebyshev
                    break
                if sums[name] not in widths:
                    widths[sums[name]] = 2 * sums[name].half_width(self.level)
                largest = max(largest, widths[sums[name]])
            found = {name: widths[each] for name, each in sums.items() if each in widths}
        return Reached(max(found.values()), 0.0, found)

    def unit_of(self, found: Reached) -> str:
        """Return the unit in words: records, unless a model's statistic or a measure has one of its own."""
        if all(name in self.schema.columns for each in found.by_margin for name in each.split(" x ")):
            return "records" if self.unit == "records" else "share of the records"
        return "its own unit" if self.unit == "records" else "its own unit, divided by the number of records"


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
        A PUBLIC or SYNTHETIC table to simulate on. Never the confidential one: epsilon would depend on its records,
        which no price covers. It can't be checked here; the result says what was assumed. Left out, made-up
        records, drawn independently and evenly from the schema.
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

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "sex": Column(levels=["f", "m"])})
    >>> calibrate(LaplaceSanitizer(epsilon=1), schema, standard_error=10).epsilon
    Fraction(283, 1000)
    """
    if (standard_error is None) == (interval_width is None):
        raise InputError("give either standard_error or interval_width: how exact counts are to be")
    goal: Goal = "interval width" if standard_error is None else "standard error"
    wanted = positive(interval_width or 0 if standard_error is None else standard_error, goal.replace(" ", "_"))
    question = AccuracyTarget(
        schema=schema,
        request=read(of),
        goal=goal,
        target=float(wanted),
        level=check_level(level),
        unit=choice(in_, get_args(Unit), "in_"),
        n_records=public_table.n_records if n_records is None and public_table is not None else n_records,
        sampling_share=None if sampling_share is None else float(positive(sampling_share, "sampling_share")),
    )
    build = _builder(mechanism)
    first = build(Fraction(1))
    loss = first.privacy_loss()
    loss = first.privacy_loss(schema) if loss.is_finite else loss
    if not loss.is_finite:
        raise InputError(
            f"the epsilon of {first.name} with these settings bounds nothing (kind {loss.kind}): "
            "there is no price to be found for it"
        )
    largest = positive(largest_epsilon, "largest_epsilon")
    if not SMALLEST_SIMULATED <= largest <= LARGEST_EPSILON:
        raise InputError(f"largest_epsilon must be from 0.01 to {LARGEST_EPSILON:,}, got {largest_epsilon}")

    @cache
    def errors(epsilon: Fraction) -> dict[str, NoiseSum]:
        return errors_of(build(epsilon), schema, question.request)

    simulated = public_table is not None or measure is not None
    chosen, why_not = _method(method, errors, sampled=sampling_share is not None, simulated=simulated)
    simulation = None
    if chosen == "simulation":
        if loss.sampling == "mcmc":
            raise InputError(f"{first.name} draws by Markov chains with these settings: it isn't simulated here")
        simulation = Simulation(
            table=_table_for(question, first, public_table, seed, why_not),
            margins=[] if measure is not None else question.request.margins(schema),
            measure=measure,
            goal=goal,
            level=question.level,
            replicates=replicates,
            seed=seed,
        )
        top = SIMULATED_GRID.at(SIMULATED_GRID.place_below(largest))
        measured = _simulated(question, build, simulation, top, progress)
        epsilon, found = search(measured, question.target, top, SIMULATED_GRID, smallest=SMALLEST_SIMULATED)
    else:

        def reached(epsilon: Fraction, *, worst_only: bool = True) -> Reached:
            return question.of_sums(errors(epsilon), worst_only=worst_only)

        epsilon, found = search(reached, question.target, largest, CLOSED_GRID)
        found[epsilon] = reached(epsilon, worst_only=False)
    made, here = build(epsilon), found[epsilon]
    made.spends(schema)
    rows = [(float(each), f.reached, f.monte_carlo_error, f.worst) for each, f in found.items()]
    margins = pd.DataFrame(list(here.by_margin.items()), columns=["margin", "reached"])
    return Calibration(
        epsilon=epsilon,
        mechanism=made,
        goal=goal,
        target=question.target,
        reached=here.reached,
        worst=here.worst,
        monte_carlo_error=here.monte_carlo_error,
        unit=question.unit_of(here),
        method=chosen,
        by_epsilon=pd.DataFrame(rows, columns=["epsilon", "reached", "monte_carlo_error", "worst"]),
        by_margin=margins.sort_values("reached", ascending=False, ignore_index=True),
        statement=_statement(made, question, here, simulation, public=public_table is not None),
    )


def _builder(source: Source) -> Callable[[Fraction], Mechanism]:
    """Return a function from epsilon to the mechanism with this epsilon."""
    configured: Any = source
    if isinstance(source, type):
        return lambda epsilon: configured(epsilon=epsilon)
    if not isinstance(source, Mechanism) and not callable(source):
        raise InputError("mechanism must be a mechanism, or a function from epsilon to one")

    def build(epsilon: Fraction) -> Mechanism:
        if not isinstance(source, Mechanism):
            made = source(epsilon)
            if exact(made.epsilon, "epsilon") != epsilon:
                raise InputError("the function from epsilon to a mechanism must give one with this epsilon")
            return made
        changed: dict[str, Any] = {"epsilon": epsilon}
        budget, before = getattr(source, "budget", None), exact(source.epsilon, "epsilon")
        if isinstance(budget, tuple):  # epsilons by layer, which add up to the total
            changed["budget"] = tuple(exact(part, "budget") * epsilon / before for part in budget)
        return replace(source, **changed)

    return build


def _method(
    method: Method | None, errors: Callable[[Fraction], Any], *, sampled: bool, simulated: bool
) -> tuple[Method, str]:
    """Return how to find out, and why not in closed form."""
    if method is not None:
        choice(method, get_args(Method), "method")
    if method == "closed form" and simulated:
        raise InputError("public_table and measure are for simulations: leave them out, or method")
    if method == "simulation" or simulated:
        if sampled:
            raise InputError("sampling_share goes with the closed form only: a simulated table is what it is")
        return "simulation", ""
    try:
        errors(Fraction(1))
    except NoFormError as error:
        if method is not None or sampled:
            raise InputError(f"no closed form: {error}; leave method and sampling_share out to simulate") from None
        return "simulation", str(error)
    return "closed form", ""


def _table_for(question: AccuracyTarget, first: Mechanism, public: Table | None, seed: int, why_not: str) -> Table:
    """Return the table to simulate on: never the confidential one."""
    if public is not None:
        if public.schema.columns != question.schema.columns:
            raise InputError("public_table has another schema than the one given")
        return public
    if question.n_records is None:
        reason = f" ({why_not})" if why_not else ""
        raise InputError(f"{first.name} is simulated here{reason}: give public_table, or n_records for made-up records")
    return stand_in_table(question.schema, question.n_records, np.random.default_rng([seed, 0]))


def _simulated(
    question: AccuracyTarget,
    build: Callable[[Fraction], Mechanism],
    simulation: Simulation,
    top: Fraction,
    progress: Callable[[str], None] | None,
) -> Callable[[Fraction], Reached]:
    """Return a function from epsilon to what is reached there; nothing where a mechanism refuses so small a one."""

    def reached(epsilon: Fraction) -> Reached:
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

    return reached


def _statement(
    mechanism: Mechanism, question: AccuracyTarget, found: Reached, simulation: Simulation | None, *, public: bool
) -> str:
    what = "standard error" if question.goal == "standard error" else f"width of the {question.level:.4g} interval"
    goal = f"{what} of {question.target:g}{' (share)' if question.unit == 'share' else ''}"
    price = (
        f"at epsilon = {spell(exact(mechanism.epsilon, 'epsilon'))} in total over {mechanism.n_sets} "
        f"set{'s' if mechanism.n_sets > 1 else ''}, {mechanism.neighbours} neighbours"
    )
    if simulation is not None:
        where = (
            "a table that was given as PUBLIC or SYNTHETIC. If it is the confidential one, this epsilon depends on its "
            "records, nothing has paid for that, and the guarantee of a release at this epsilon is void"
            if public
            else "made-up records, drawn independently and evenly from the schema. Real tables are neither"
        )
        text = (
            f"{mechanism.name} reached a {goal} {price}, in {simulation.replicates} releases (found "
            f"{found.reached:.4g}, Monte Carlo standard error {found.monte_carlo_error:.2g}; two of them to spare), "
            "and not at the next smaller number of two digits that was tried. Simulated on "
            f"{where}; on another table the error may be another."
        )
    else:
        sampling = (
            "The error of a sample, which the records have without any noise, comes on top."
            if question.sampling_share is None
            else f"The error of a sample of {question.n_records:,} records from a large population is in it, for a "
            f"cell of share {question.sampling_share:g}."
        )
        text = (
            f"{mechanism.name} reaches a {goal} {price}, and not at the next smaller number of three digits. Worked "
            "out from the schema and the settings: no table was read. It is the error that the noise gives to counts "
            "or statistics, of the mean over all sets, before they are made nonnegative and whole and into records. "
            f"{sampling}"
        )
    if question.n_records is None or mechanism.neighbours == "replace-one":
        return text
    return (
        f"{text} The number of records is protected: {question.n_records:,} was taken for it, and must be a public "
        "guess."
    )
