"""What is known before a draw: public parameters, or those that fit a private table
best; how wide to look there.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.readers import read_frame
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.fields.margins import Margins
from pdips.posterior.columns import (
    ENDS,
    MISSING,
    Values,
    distinct,
    public_stand_ins,
    public_values,
    settled,
    stand_ins,
)
from pdips.posterior.model import (
    ONE_AT_A_TIME,
    PUBLIC_SEED,
    STAND_INS,
    Blueprint,
    initial,
    most_probable,
    split,
)
from pdips.posterior.model_checks import on_stand_ins
from pdips.posterior.record_likelihood import RecordLikelihood, log_prior
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity

Reference = str | Path | Mapping[str, Any]

BINS = 32  # Bins of a numeric column whose schema gives none
WITHIN = 16  # Values inside a cell over which a density is averaged
# Most cells that are counted one by one; more are synthesized by ``Margins``
MOST_CELLS = 4_096
SPREAD_SEED = 1  # Which value inside a bin goes with which of another column: public
# Values tried along each axis in one round of a search, by number of parameters
ZOOM = {1: 65, 2: 21, 3: 11}
ROUNDS = 10
# Records drawn at the first stage's parameters, on which what censoring takes is worked
# out
SIMULATED = 4_096
# Prior draws over which densities are averaged for ``reference="prior"``
PRIOR_CENTRE = 64
# Stands in for the log of a density of 0, in what is worked out from public records
IMPOSSIBLE = -700.0
DIFFERENCE = 1e-4  # Of parameters, by which slopes are worked out
# Stand-ins on which a reference must not call what the schema allows impossible
PROBED = 256


@dataclass(frozen=True, eq=False)
class ReferenceCells:
    """Counts of cells, with values inside each over which a density is averaged."""

    # shape (cells * WITHIN,): columns, the values inside a cell one after the other
    values: Values
    counts: FloatArray  # shape (cells,)
    # shape (cells,): of the cells, in the units of their columns
    log_volumes: FloatArray
    variance: float  # of the noise on each count; 0 for a synthetic table
    n_records: int  # how many records there are: the public number, or a noisy one


def binned(schema: Schema) -> Schema:
    """Return the schema with bins for every numeric column: no more than an integer
    column has values.
    """
    columns = dict(schema.columns)
    for name, column in columns.items():
        if column.is_categorical or column.is_binned:
            continue
        bins = BINS
        if column.integer:
            bins = min(BINS, int((column.upper or 0) - (column.lower or 0)) + 1)
        columns[name] = column.model_copy(update={"bins": bins})
    return schema.model_copy(update={"columns": columns})


def reference_step(schema: Schema, epsilon: Fraction, neighbours: Neighbours) -> Step:
    """Return the step that pays for counts of every cell or, where these are many, for
    a table by ``Margins``.
    """
    name = "a private reference to centre on"
    cut = binned(schema)
    counts = Sensitivity.of_counts(schema, neighbours)
    n_cells = math.prod(column.n_levels for column in cut.columns.values())
    if not schema.public_columns and n_cells <= MOST_CELLS:
        return Step(
            name=name,
            sensitivity=counts,
            price=epsilon,
            counts="each cell of a private reference",
        )
    # what is drawn is a function of the answers to the table's own plan
    table = Margins(epsilon=epsilon, neighbours=neighbours, measure="views").plan(cut)
    return Step(
        name=name,
        sensitivity=counts,
        price=epsilon,
        law="distribution",
        own_rho=table.rho,
    )


class TableDraws:
    """A private table by ``Margins``: a distribution over tables, of which no person
    moves the law by more than epsilon.

    Proof: ``docs/proofs/steps.md``.
    """

    def __init__(self, table: Table, views: Margins) -> None:
        self._table = table
        self._views = views

    def draw(self, bits: RandomBits, runs: int = 1) -> list[pd.DataFrame]:
        """Return independent synthetic tables."""
        cut = Table(self._table.frame, binned(self._table.schema))
        rng = bits.generator() if bits.reproducible else None
        return [self._views.release(cut, rng=rng)[0].sets[0] for _ in range(runs)]

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        raise InputError(
            "a private reference by views has no law that could be spelt out"
        )


def measure(
    plan: Plan, curator: Curator, decide: Callable[[IntArray], IntArray]
) -> ReferenceCells:
    """Ask for what the plan's first step, a :func:`reference_step`, pays for;
    ``decide`` is made of noisy counts.
    """
    step = plan.steps[0]
    cut = binned(plan.schema)
    if step.law == "distribution":
        views = Margins(epsilon=step.price, neighbours=plan.neighbours, measure="views")
        drawn = curator.draw(step, lambda table: TableDraws(table, views))
        if not len(drawn):  # under add-remove noise may leave no record
            return no_cells(cut)
        return cells_of_table(Table(drawn, cut.without_person()))
    noisy = decide(curator.count(step, counts_of))
    n_records = max(int(noisy.sum()), 1)
    if plan.n_public:
        n_records = curator.n_records
    sizes = [column.n_levels for column in cut.columns.values()]
    codes = np.unravel_index(np.arange(len(noisy)), sizes)
    values, log_volumes = _inside(cut, dict(zip(cut.columns, codes, strict=True)), {})
    return ReferenceCells(
        values=values,
        counts=noisy.astype(np.float64),
        log_volumes=log_volumes,
        variance=step.standard_deviation**2,
        n_records=n_records,
    )


def counts_of(table: Table) -> IntArray:
    """Return the true count of every cell."""
    schema = binned(table.schema)
    cut = Table(table.frame, schema)
    sizes = [column.n_levels for column in schema.columns.values()]
    place = np.ravel_multi_index([cut.codes[name] for name in schema.columns], sizes)
    return cut.count(place, int(np.prod(sizes)))


def no_cells(schema: Schema) -> ReferenceCells:
    """Return a table of no records: one cell that counts nothing, so that the prior is
    all there is.
    """
    values = {}
    for name, column in stand_ins(schema, 1).items():
        values[name] = np.repeat(column, WITHIN)
    return ReferenceCells(
        values=values,
        counts=np.zeros(1),
        log_volumes=np.zeros(1),
        variance=0.0,
        n_records=1,
    )


def cells_of_table(table: Table) -> ReferenceCells:
    """Return the cells that a public or synthetic table has records in."""
    public = public_values(table)
    described = [name for name in table.schema.columns if name not in public]
    codes = {name: table.codes[name] for name in described}
    taken, counts = distinct({**codes, **public}, table.counts)
    values, log_volumes = _inside(
        table.schema,
        {name: taken[name] for name in described},
        {name: taken[name] for name in public},
    )
    return ReferenceCells(
        values=values,
        counts=counts.astype(np.float64),
        log_volumes=log_volumes,
        variance=0.0,
        n_records=max(int(counts.sum()), 1),
    )


def _inside(
    schema: Schema, codes: Mapping[str, Any], known: Values
) -> tuple[dict[str, NDArray[Any]], FloatArray]:
    """Return values spread evenly inside cells, given by their codes, and the logs of
    the cells' volumes.
    """
    rng = np.random.default_rng(SPREAD_SEED)
    volumes = np.zeros(len(next(iter(codes.values()))))
    values: dict[str, NDArray[Any]] = {
        name: np.repeat(column, WITHIN) for name, column in known.items()
    }
    for name, code in codes.items():
        column = schema.columns[name]
        if column.is_categorical:
            values[name] = np.repeat(code, WITHIN)
            continue
        share = rng.permutation((np.arange(WITHIN) + 0.5) / WITHIN)
        place = np.minimum(code, column.n_values - 1)
        low = column.edges[place]
        width = column.edges[place + 1] - low
        within = (low[:, None] + width[:, None] * share).ravel()
        values[name] = np.floor(within).astype(np.int64) if column.integer else within
        is_missing = code == column.n_values
        if column.missing:
            values[name + MISSING] = np.repeat(is_missing.astype(np.int64), WITHIN)
        # a missing number is one value, of which there is a probability
        volumes += np.where(is_missing, 0.0, np.log(width))
    return settled(schema, values), volumes


@dataclass(frozen=True, eq=False)
class Anchor:
    """Where to look for parameters, and how wide a posterior would be there: public, in
    unconstrained space.
    """

    place: FloatArray  # shape (parameters,)
    # shape (parameters, parameters): its columns are the axes, one standard deviation
    # long
    shape: FloatArray
    reach: float  # how far a grid goes along each axis, in standard deviations
    even: bool = False  # whether nodes are as far apart everywhere


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """What is known before the draw."""

    anchor: Anchor  # where to look for parameters
    n_records: int  # the public number of records, or a noisy one
    # values whose mean density is the centre of terms; or none
    centre: list[FloatArray] = field(default_factory=list)
    # records of the model there, which show what censoring takes away
    simulated: Values = field(default_factory=dict)


def rehearse(space: Blueprint) -> None:
    """Go through the first stage without a table, so that what a model makes fail there
    fails before the charge.
    """
    with ONE_AT_A_TIME, on_stand_ins("the first stage"):
        public = public_stand_ins(space.schema, STAND_INS)
        space.tried.once(
            "first stage",
            lambda: after(space, no_cells(space.schema), public, n=STAND_INS),
        )


def after(
    space: Blueprint, cells: ReferenceCells, public: Values, *, n: int | None = None
) -> Stage:
    """Return what follows from the first stage: post-processing, with the public
    columns of n records.
    """
    place = fit(space.likelihood, cells, space.prior)
    simulated = simulate(space, place, public, n=n)
    anchor = anchor_at(space.likelihood, place, simulated, cells.n_records)
    return Stage(
        anchor=anchor,
        n_records=cells.n_records,
        centre=split(space.model, place[None]),
        simulated=simulated,
    )


def simulate(
    space: Blueprint, place: FloatArray, public: Values, *, n: int | None = None
) -> dict[str, NDArray[Any]]:
    """Draw n records, by default ``SIMULATED``, from the model at some public
    parameters.
    """
    [parameters] = space.values_of(place[None])
    rng = np.random.default_rng(PUBLIC_SEED)
    drawn = space.draw(parameters, n or SIMULATED, public, rng)
    return {**public, **drawn}


def referenced(space: Blueprint, reference: Reference, n_records: int) -> Stage:
    """Centre on public parameters, a public table, or the prior predictive; nothing is
    spent.

    A reference that gives no density to values that the schema allows is refused, on
    stand-ins.
    """
    likelihood = space.likelihood
    if isinstance(reference, str) and reference == "prior":
        anchor = anchor_of_prior(space.prior)
        centre = split(space.model, space.prior[:PRIOR_CENTRE])
        simulated = {}
    else:
        place = _place(space, reference)
        simulated = simulate(space, place, public_stand_ins(space.schema, SIMULATED))
        near = anchor_at(likelihood, place, simulated, n_records)
        anchor = replace(near, reach=12 * n_records**0.5)
        centre = split(space.model, place[None])
    _check_centre(space, centre)
    return Stage(anchor=anchor, n_records=n_records, centre=centre, simulated=simulated)


def _check_centre(space: Blueprint, centre: list[FloatArray]) -> None:
    """Refuse a centre that gives values which the schema allows no density."""
    likelihood = space.likelihood
    likelihood.at(centre)
    stand = stand_ins(space.schema, PROBED)
    probes = {name: values[len(ENDS) :] for name, values in stand.items()}
    with np.errstate(all="ignore"):
        for row in likelihood.rows(probes):
            if np.isneginf(likelihood(row)).all():
                raise InputError(
                    "the reference gives density zero to values that the schema "
                    "allows, so such records could not be centred; "
                    "take a reference that covers all levels and bounds (a wider one, "
                    "'prior', or centre=staged)"
                )


def key_of(reference: Reference) -> str:
    """Return a text that differs wherever references do, to the last digit."""
    if isinstance(reference, Mapping):
        values = {name: np.asarray(value) for name, value in reference.items()}
        return repr({name: value.tolist() for name, value in values.items()})
    return str(reference)


def _place(space: Blueprint, reference: Reference) -> FloatArray:
    if isinstance(reference, Mapping):
        return space.parameters_of(dict(reference))
    if isinstance(reference, str) and "=" in reference:
        return space.parameters_of(_written(reference))
    if not Path(reference).is_file():
        raise InputError(
            f"reference {str(reference)!r} is no file; give a public table (.csv, "
            f".parquet), 'prior', or name=value,..."
        )
    table = Table(read_frame(reference), binned(space.schema))
    return fit(space.likelihood, cells_of_table(table), space.prior)


def _written(reference: str) -> dict[str, Any]:
    """Return parameters that are written as ``"name=value,name=value"``."""
    values = {}
    for part in reference.split(","):
        name, _, text = part.partition("=")
        try:
            numbers = [float(number) for number in text.split()]
        except ValueError:
            raise InputError(
                f"reference {part.strip()!r} must have the form name=number"
            ) from None
        values[name.strip()] = np.array(numbers).squeeze()
    return values


def fit(
    likelihood: RecordLikelihood, cells: ReferenceCells, prior: FloatArray
) -> FloatArray:
    """Return the most probable parameters given counts of cells, shape (parameters,),
    in unconstrained space.
    """
    low, high = np.quantile(prior, [0.001, 0.999], axis=0)
    if len(low) > max(ZOOM):
        return _climb(likelihood, cells)
    frame = pd.DataFrame(dict(cells.values))
    # in the order of first appearance
    place = frame.groupby(list(frame.columns), sort=False).ngroup().to_numpy()
    first = frame[~frame.duplicated()]
    rows = likelihood.rows(
        {str(name): column.to_numpy() for name, column in first.items()}
    )

    def fitness(flat: FloatArray) -> FloatArray:
        points = split(likelihood.model, flat)
        likelihood.at(points)
        with np.errstate(all="ignore"):
            logs = np.array([likelihood(row) for row in rows])[place]
            total = likelihood.log_prior(points) + _of_counts(cells, logs)
        return np.where(np.isfinite(total), total, -np.inf)

    return zoom(fitness, low, high)


def _of_counts(cells: ReferenceCells, logs: FloatArray) -> FloatArray:
    """Return the log-likelihood of counts of cells, shape (points,), by the log
    densities of the values inside, shape (values, points).

    Noisy counts are taken as normal around their expectation, with the variance of
    sampling plus that of the noise; counts of a synthetic table as multinomial.
    """
    logs = np.where(np.isfinite(logs), logs, IMPOSSIBLE)
    logs = logs.reshape(len(cells.counts), WITHIN, -1)
    highest = logs.max(axis=1)
    inside = highest + np.log(np.exp(logs - highest[:, None]).mean(axis=1))
    if not cells.variance:
        return cells.counts @ inside
    share = inside + cells.log_volumes[:, None]
    expected = np.exp(share - share.max(axis=0))
    expected *= cells.n_records / expected.sum(axis=0)
    variance = expected + cells.variance
    apart = cells.counts[:, None] - expected
    terms = apart**2 / variance + np.log(variance)
    return -terms.sum(axis=0) / 2


def zoom(
    fitness: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> FloatArray:
    """Return the best of ever finer lattices, each around the best of the last."""
    n = ZOOM[len(low)]
    middle = (low + high) / 2
    half = np.maximum((high - low) / 2, 1e-6)
    for _ in range(ROUNDS):
        lattice = np.linspace(middle - half, middle + half, n)
        axes = np.meshgrid(*lattice.T, indexing="ij")
        flat = np.stack([axis.ravel() for axis in axes], axis=1)
        middle = np.asarray(flat[int(np.argmax(fitness(flat)))])
        half = half * min(8 / (n - 1), 0.6)
    return middle


def _climb(likelihood: RecordLikelihood, cells: ReferenceCells) -> FloatArray:
    """Climb from the model's own starting point to the most probable parameters given a
    synthetic table.
    """
    model = likelihood.model
    shared = {}
    for name, column in likelihood.columns.items():
        values = np.asarray(cells.values[name], column.dtype)
        shared[name] = pytensor.shared(values)
    rows = likelihood.graph(shared)
    rows = pt.switch(pt.isnan(rows) | pt.isinf(rows), IMPOSSIBLE, rows)
    by_cell = rows.reshape((len(cells.counts), WITHIN))
    inside = pt.logsumexp(by_cell, axis=1)
    counts = np.maximum(cells.counts, 0.0)
    target = log_prior(model) + (counts * inside).sum()
    slopes = [slope.ravel() for slope in pt.grad(target, model.value_vars)]
    both = pytensor.function(
        model.value_vars,
        [target, *slopes],
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )

    def log_density(flat: FloatArray) -> tuple[Any, FloatArray]:
        with np.errstate(all="ignore"):
            value, *found = both(*(each[0] for each in split(model, flat[None])))
        return value, np.concatenate(found)

    return most_probable(log_density, initial(model), 500)


def anchor_at(
    likelihood: RecordLikelihood, place: FloatArray, records: Values, n_records: int
) -> Anchor:
    """Return an anchor as wide as the posterior of ``n_records`` records like some
    public ones would be.
    """
    n_parameters = len(place)
    steps = DIFFERENCE * np.eye(n_parameters)
    both_ways = np.concatenate([place + steps, place - steps])
    likelihood.at(split(likelihood.model, both_ways))
    with np.errstate(all="ignore"):
        rows, counts = distinct(records, None)
        moved = np.array([likelihood(row) for row in likelihood.rows(rows)])
    up = moved[:, :n_parameters]
    down = moved[:, n_parameters:]
    slopes = (up - down) / (2 * DIFFERENCE)
    fine = np.isfinite(slopes).all(axis=1)
    slopes = slopes[fine]
    counts = counts[fine]
    information = (slopes.T * counts) @ slopes / max(counts.sum(), 1)
    values, vectors = np.linalg.eigh(information)
    least = max(values.max() * 1e-6, 1e-12)
    single = vectors / np.sqrt(np.maximum(values, least))
    return Anchor(place, single / np.sqrt(n_records), reach=12.0)


def anchor_of_prior(prior: FloatArray) -> Anchor:
    """Return an anchor that takes in draws from the prior, for posteriors of which
    nothing is known beforehand.
    """
    low, middle, high = np.quantile(prior, [0.001, 0.5, 0.999], axis=0)
    return Anchor(
        middle, np.diag(np.maximum(high - low, 1e-9) / 6), reach=5.0, even=True
    )
