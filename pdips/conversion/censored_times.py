"""Censored times as people write them by hand: a density of the times that ended, and a
potential of the logarithm of a survival function for those that were cut off.

Such a model doesn't say when times are cut off, and so not how records come about. It
is completed by a hazard of being cut off, constant within a few spans of time. The
likelihood of the author's parameters and that of this hazard are factors of one
product, so that it changes nothing in the posterior of a table; in noisy sums it adds a
few parameters.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import WeibullBetaRV
from pymc.logprob.abstract import MeasurableOp, _logprob
from pymc.math import log1mexp
from pymc.pytensorf import collect_default_updates
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.basic import ExponentialRV

from pdips.arrays import FloatArray
from pdips.conversion.builds import Builds, Make, are_equal
from pdips.conversion.frames import MadeUp
from pdips.conversion.latents import inputs_of_op
from pdips.conversion.leaves import held, leaves_of
from pdips.conversion.matching import FUNCTIONS, ColumnExpression
from pdips.data.schema import Column
from pdips.data.table import level_array
from pdips.errors import InputError
from pdips.posterior.columns import bounds_of
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model import PUBLIC_SEED

# Spans between a column's bounds within which the hazard of being cut off is constant
N_SPANS = 3
# Standard deviation of the logarithm of that hazard, about once in all spans together
SPREAD = 1.5
# Points and frames at which the completed model is compared with the one as written
N_POINTS = 3
N_FRAMES = 2
SAME = 1e-8


@dataclass(frozen=True)
class Censoring:
    """What says of a time whether it ended, and between which bounds it lies.

    Parameters
    ----------
    column : str
        A confidential column with two levels.
    ended : int
        The code of the level at which the time ended.
    lower, upper : float
        The bounds of the times, on the scale on which the model observes them.
    """

    column: str
    ended: int
    lower: float
    upper: float

    @property
    def span(self) -> float:
        """How long each span is."""
        return (self.upper - self.lower) / N_SPANS

    @property
    def edges(self) -> FloatArray:
        """Where the spans begin."""
        return np.asarray(self.lower + self.span * np.arange(N_SPANS))

    def hazard(self, name: str) -> tuple[Any, str]:
        """Return the law of the logarithms of the hazard in each span, and the name of
        the variable.
        """
        once = -np.log(self.upper - self.lower)
        law = pm.Normal.dist(once, SPREAD, shape=N_SPANS)
        return law, f"{name}_log_hazard_of_censoring"


def censoring_of(
    reading: ColumnExpression, times: Column, alone: "OfEnded"
) -> Censoring:
    """Return how times are cut off that a model observes by a reading of a column."""
    function, _ = FUNCTIONS[reading.function]
    with np.errstate(all="ignore"):
        ends = function(np.array(bounds_of(times), dtype=np.float64))
    lower, upper = (reading.offset + reading.slope * ends).tolist()
    if reading.by_code is not None or not -np.inf < lower < upper < np.inf:
        raise InputError(
            f"column {reading.column!r} holds times that are cut off: observe it, or "
            f"a function of it that rises and is finite between its bounds"
        )
    return Censoring(alone.name, alone.ended, lower, upper)


@dataclass(frozen=True, eq=False)
class OfEnded:
    """A function ``make(df)`` as it makes the model of records whose times all ended.

    Parameters
    ----------
    make : callable
        As its author wrote it.
    name : str
        The column that says whether they did.
    column : Column
        What the schema says of it.
    ended : int
        The code of the level that says so.
    dropped : sequence of str
        Potentials, which have nothing to say of such records.
    """

    make: Make
    name: str
    column: Column
    ended: int
    dropped: Sequence[str] = ()

    def __call__(self, df: pd.DataFrame) -> pm.Model:
        codes = np.full(len(df), self.ended)
        levels = level_array(self.column).take(codes)
        model = self.make(df.assign(**{self.name: levels}))
        kept = [each for each in model.potentials if each.name not in self.dropped]
        model.potentials.clear()
        model.potentials.extend(kept)
        for name in self.dropped:
            model.named_vars.pop(name, None)
        return model


def confidential_potentials(builds: Builds) -> list[str]:
    """Return the names of potentials that read confidential columns."""
    found = []
    others = builds.second.model.potentials
    for potential, other in zip(builds.first.model.potentials, others, strict=True):
        before = [held(leaf) for leaf in leaves_of([potential])]
        after = [held(leaf) for leaf in leaves_of([other])]
        same_number = len(before) == len(after)
        if not same_number or not all(map(are_equal, before, after)):
            found.append(potential.name)
    return found


def of_ended(make: Make, made_up: MadeUp, name: str) -> OfEnded | None:
    """Return a function that makes the model of records whose times all ended, where
    its potentials are about other records; None where no column tells these apart.
    """
    for column in made_up.confidential:
        known = made_up.columns[column]
        if not known.is_categorical or known.missing or known.n_levels != 2:
            continue
        for ended in range(2):
            alone = OfEnded(make, column, made_up.schema.columns[column], ended)
            try:
                builds = Builds(alone, name, made_up)
                if not confidential_potentials(builds):
                    return alone
            except InputError:
                # it isn't of this form
                continue
    return None


def check_same(written: Make, alone: OfEnded, made_up: MadeUp, variable: str) -> None:
    """Refuse a model whose log density isn't that of times that ended, and of times
    that were cut off, of the law of an observed variable.

    Parameters
    ----------
    written : callable
        As its author wrote it.
    alone : OfEnded
        The same for records whose times all ended.
    made_up : MadeUp
        The frames at which both are compared.
    variable : str
        The observed variable whose times these are.
    """
    rng = np.random.default_rng(PUBLIC_SEED)
    for number in range(N_FRAMES):
        values = made_up.values(number)
        frame = made_up.frame(values)
        wanted = written(frame)
        made = alone(frame)
        density = made.logp() + _of_cut_off(made[variable], made, values, alone)
        start = made.initial_point()
        inputs = made.value_vars
        try:
            found = made.compile_fn(density, inputs=inputs, mode=LIGHT)
            expected = wanted.compile_logp(mode=LIGHT)
            for _ in range(N_POINTS):
                point = {
                    each: value + 0.3 * rng.standard_normal(np.shape(value))
                    for each, value in start.items()
                }
                if not np.isclose(found(point), expected(point), rtol=SAME, atol=0):
                    raise _other_law(variable)
        except (KeyError, TypeError, ValueError, NotImplementedError):
            raise _other_law(variable) from None


def _of_cut_off(law: Any, made: pm.Model, values: Any, alone: OfEnded) -> Any:
    """Return what the log density changes by where some times were cut off."""
    time = made.rvs_to_values[law]
    by_value = made.replace_rvs_by_values([pm.logp(law, time), log_survival(law, time)])
    seen, left = by_value
    was_cut = values[alone.name] != alone.ended
    return (pt.as_tensor(was_cut) * (left - seen)).sum()


def _other_law(variable: str) -> InputError:
    return InputError(
        f"the potential beside {variable!r} isn't the logarithm of its survival "
        f"function for records whose time was cut off: write the law as pm.Censored, "
        f"with the time of the cut as a public column, or as pm.CustomDist(..., "
        f"logp=..., random=...)"
    )


def log_survival(law: Any, time: Any) -> Any:
    """Return the logarithm of the probability that a law's draw lies beyond a time."""
    op = law.owner.op
    if isinstance(op, WeibullBetaRV):
        shape, scale = op.dist_params(law.owner)
        return -((time / scale) ** shape)
    if isinstance(op, ExponentialRV):
        [scale] = op.dist_params(law.owner)
        return -time / scale
    logccdf: Callable[..., Any] | None = getattr(pm, "logccdf", None)
    if logccdf is not None:
        return logccdf(law, time, warn_rvs=False)
    return log1mexp(pm.logcdf(law, time, warn_rvs=False))


class CensoredTimes(MeasurableOp, OpFromGraph):  # type: ignore[misc]
    """Times that end or are cut off, and which of the two they did.

    Outputs are the times, the codes of the column that says so, the times as they would
    end, the logarithms of the hazard, and states of generators.
    """

    def __init__(self, *args: Any, censoring: Censoring, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.censoring = censoring


def censored(
    law: Any,
    log_hazard: Any,
    censoring: Censoring,
    n_records: Any,
    parameters: Collection[Any],
) -> tuple[Any, Any]:
    """Return two random variables of each record: a time, and whether it ended.

    Parameters
    ----------
    law : random variable, shape (records,)
        When times end.
    log_hazard : variable, shape (spans,)
        The logarithm of the hazard of being cut off in each span.
    censoring : Censoring
        The column that says which ended, and the bounds of times.
    n_records : variable
        How many there are.
    parameters : collection of random variable
        What has a value where the variables' density is asked for.
    """
    cut = _drawn_cut(log_hazard, censoring, n_records)
    has_ended = pt.le(law, cut)
    code = pt.switch(has_ended, censoring.ended, 1 - censoring.ended)
    outputs = [pt.minimum(law, cut), pt.cast(code, "int64"), law, log_hazard.copy()]
    inputs = inputs_of_op(outputs, parameters)
    updates = collect_default_updates(outputs, inputs=inputs, must_be_shared=False)
    op = CensoredTimes(inputs, [*outputs, *updates.values()], censoring=censoring)
    time, ended, *_ = op.make_node(*inputs).outputs
    return time, ended


def _drawn_cut(log_hazard: Any, censoring: Censoring, n_records: Any) -> Any:
    """Return draws of when times are cut off, at the upper bound at the latest."""
    hazard = pt.exp(log_hazard)
    until = pt.cumsum(hazard * censoring.span) - hazard * censoring.span
    reached = pm.Exponential.dist(1.0, shape=(n_records,))
    in_span = pt.clip((reached[:, None] - until) / hazard, 0.0, censoring.span)
    return censoring.lower + in_span.sum(axis=1)


@_logprob.register(CensoredTimes)  # type: ignore[untyped-decorator]
def censored_logprob(
    op: CensoredTimes, values: Sequence[Any], *inputs: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Return the log density of times and whether they ended, in the place of the
    times; the other place has a single 0.
    """
    time, code = values
    graph = op.fgraph.unfreeze()
    given = dict(zip(graph.inputs, inputs, strict=True))
    outputs = graph_replace(list(graph.outputs), given, strict=False)
    _, _, law, log_hazard, *_ = outputs
    has_ended = pt.eq(code, op.censoring.ended)
    of_end = pt.switch(has_ended, pm.logp(law, time), log_survival(law, time))
    return of_end + _of_cut(time, has_ended, log_hazard, op.censoring), pt.constant(0.0)


def _of_cut(time: Any, has_ended: Any, log_hazard: Any, censoring: Censoring) -> Any:
    """Return the log density of being cut off at times, or beyond those that ended."""
    since = time[:, None] - censoring.edges
    survived = -(pt.exp(log_hazard) * pt.clip(since, 0.0, censoring.span)).sum(axis=1)
    # at the end all that is left is cut off: a probability, where others are densities
    rounding = SAME * censoring.span
    is_last = time >= censoring.upper - rounding
    number = pt.clip(pt.floor(since[:, 0] / censoring.span), 0, N_SPANS - 1)
    here = pt.eq(number[:, None], np.arange(N_SPANS))
    log_density = pt.switch(here, log_hazard, 0.0).sum(axis=1)
    log_density = pt.switch(since[:, 0] < -rounding, -np.inf, log_density)
    return survived + pt.switch(has_ended | is_last, 0.0, log_density)
