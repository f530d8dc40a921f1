"""What is refused of a model, on stand-ins and before anything is spent: priors, potentials, records that meet."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pytensor.compile.mode import get_mode
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError, RefusedError
from pdips.posterior.columns import SUFFIX, model_columns, stand_ins
from pdips.posterior.record_likelihood import ONE_EACH, SIMPLER, RecordLikelihood, inputs_of, log_prior, record_terms

Table = dict[str, NDArray[Any]]
Terms = Callable[[Mapping[str, Any], Table], tuple[FloatArray, float]]

TOLERANCE = 1e-8

UNMERGED = get_mode("FAST_COMPILE").excluding("local_add_canonizer")  # numpy adds 32 numbers at once at most
SIZES = (2, 3, 25)  # Numbers of stand-ins at which a model of many records is compared with the model of one
MOST_REMEMBERED = 64  # Trials whose results are kept
MOST_LEVELS = 12  # Levels of a column that are left out one at a time
WIDE = "give it a distribution that integrates to 1, as wide as need be, such as pm.Normal or pm.HalfNormal"
OWN = "write it as pm.CustomDist(..., dist=...), or as one of PyMC's distributions, truncated by pm.Truncated or mixed"
INTRINSIC = "take pm.CAR with alpha below 1, or pm.ZeroSumNormal"


class Tried:
    """What was tried and passed, by public settings, so that a price that is asked for again costs nothing."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._found: dict[Hashable, Any] = {}
        self._most = most

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def once[T](self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key of public settings, or make it; what fails isn't remembered."""
        if key not in self._found:
            self._found[key] = make()
            while len(self._found) > self._most:
                self._found.pop(next(iter(self._found)))
        found: T = self._found[key]
        return found


@contextmanager
def on_stand_ins(what: str) -> Iterator[None]:
    """Turn whatever a model raises on made-up records into one plain line; it has seen no record."""
    try:
        yield
    except (InputError, RefusedError):
        raise
    except IndexError:
        raise InputError(
            "the model looks something up by a column, and values that the schema allows lie beyond it; make what is "
            "looked up as long as the column has levels or whole numbers"
        ) from None
    except Exception as error:  # noqa: BLE001 - the analyst's model, on stand-ins
        line = next(iter(str(error).splitlines()), "")
        said = f"{what} failed on made-up records: {type(error).__name__}: {line}"
        if isinstance(error, NotImplementedError):
            said = f"{what} can't be drawn from: {line}; a pm.CustomDist needs dist=... or random=..."
        raise InputError(said) from None


def check_gradient(name: str, model: pm.Model, points: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a model whose log density, or its gradient, is finite at none of some points."""
    free = [model.values_to_rvs[value] for value in model.value_vars if value.dtype.startswith("float")]
    with on_stand_ins("the gradient of the log density"), np.errstate(all="ignore"):
        try:
            graphs = [model.logp(), model.dlogp(free)] if free else [model.logp()]
        except (NotImplementedError, NullTypeGradError) as error:
            line = next(iter(str(error).splitlines()), "")
            raise InputError(
                f"{name}: the log density has no gradient ({line}); use operations that have one"
            ) from None
        found = model.compile_fn(graphs, inputs=model.value_vars, mode=UNMERGED, on_unused_input="ignore")
        finite = any(all(np.isfinite(each).all() for each in found(point)) for point in points)
    if not finite:
        raise InputError(
            f"{name}: the log density or its gradient is not a finite number where chains could start; look for "
            "logarithms and roots of what may be 0 or negative"
        )


def check_unused(unused: Sequence[str], drawn_by: str, instead: str) -> None:
    """Refuse settings that would have no effect."""
    if unused:
        raise InputError(
            f"{' and '.join(unused)} would have no effect: this model's parameters are drawn by {drawn_by}; leave "
            f"{'it' if len(unused) == 1 else 'them'} out, or set {instead}"
        )


def check_proper(model: pm.Model) -> None:
    """Refuse priors that don't integrate to 1, or of which nothing shows that they do: no posterior need exist."""
    for variable in model.free_RVs:
        check_law(variable.name, variable)


def check_law(name: str, variable: Any) -> None:
    """Refuse the prior of a variable if it is improper, also inside a mixture or the function that it is made of."""
    for node in _nodes([variable]):
        op = node.op
        if isinstance(op, (FlatRV, HalfFlatRV)):
            raise InputError(f"the prior of {name!r} is improper, so its posterior need not exist; {WIDE}")
        alpha = op.dist_params(node)[2] if isinstance(op, CARRV) else None
        if isinstance(op, ICARRV) or (isinstance(alpha, Constant) and bool((np.abs(alpha.data) >= 1).any())):
            raise InputError(
                f"the prior of {name!r} is improper (an intrinsic autoregression), so its posterior need not exist; "
                f"{INTRINSIC}"
            )
        if isinstance(op, CustomDistRV) or (isinstance(op, CustomSymbolicDistRV) and not op.inline_logprob):
            raise InputError(
                f"the prior of {name!r} is a log density of its own (logp=...), and nothing shows that it integrates "
                f"to 1; {OWN}"
            )


def _nodes(graphs: Sequence[Any]) -> Iterator[Apply]:
    """Yield the operations of graphs, and of the graphs inside them."""
    for node in toposort(graphs):
        yield node
        if isinstance(node.op, HasInnerGraph):
            yield from _nodes(node.op.inner_outputs)


def check_potentials(model: pm.Model, public: Collection[str], columns: Collection[str]) -> None:
    """Refuse potentials that the model's file doesn't call public, and those that read records."""
    names = [potential.name for potential in model.potentials]
    if missing := [name for name in public if name not in names]:
        raise InputError(f"PUBLIC_POTENTIALS names {missing[0]!r}, which is no pm.Potential of the model")
    read = [*model.observed_RVs, *(each for each in model.data_vars if each.name.removesuffix(SUFFIX) in columns)]
    for potential in model.potentials:
        behind = set(ancestors([potential]))
        if found := [each.name.removesuffix(SUFFIX) for each in read if each in behind]:
            raise InputError(
                f"potential {potential.name!r} reads column {found[0]!r}, and no window bounds what records do through "
                "a potential; make it part of the law of an observed variable"
            )
        if potential.name not in public:
            raise InputError(
                f"the model has a potential, {potential.name!r}, and nothing shows that prior times potential can be "
                f"integrated; if it can, say PUBLIC_POTENTIALS = ({potential.name!r},) at the top of the model's file"
            )


def terms_of(model: pm.Model, names: Collection[str], *, single: bool) -> Terms:
    """Compile the terms of a model as it is written or, with ``single``, of a model of one record repeated for many.

    They are a function of a point and a table, which returns the log-likelihood of each record and the log prior.
    """
    columns = inputs_of(model, names)
    many = {name: shared.type.clone(shape=(None,))(name=name) for name, shared in columns.items()}
    with on_stand_ins("the log-likelihood"), np.errstate(all="ignore"):
        graph = RecordLikelihood(model, names).graph(many) if single else record_terms(model)
        replaced = {shared: many[name] for name, shared in columns.items()}
        graph, prior = clone_replace([graph, log_prior(model)], replaced, rebuild_strict=False)
        graphs = [rewrite_graph(each, include=SIMPLER) for each in (graph, prior)]
        inputs = [*model.value_vars, *many.values()]
        function = pytensor.function(inputs, graphs, mode="FAST_COMPILE", on_unused_input="ignore")

    def terms(point: Mapping[str, Any], table: Table) -> tuple[FloatArray, float]:
        with np.errstate(all="ignore"), on_stand_ins("the log-likelihood"):
            read = (np.asarray(table[name], column.dtype) for name, column in many.items())
            found, prior = function(*(point[value.name] for value in model.value_vars), *read)
        return np.asarray(found, dtype=np.float64), float(prior)

    return terms


def check_company(
    model: pm.Model, build: Callable[[Table], pm.Model], schema: Schema, points: Sequence[Mapping[str, NDArray[Any]]]
) -> None:
    """Refuse a model that, written for many records, isn't what it says of each record alone; no guarantee rests on it.

    The library samples the model of one record, repeated; where the analyst's model of many differs from it, something
    else than what was written would run. Both are compared on made-up tables of several lengths, among them extreme
    ones: all records equal, one different, each level absent once, columns at their bounds. The model of many is built
    on others than these, so that it can't hold numbers of the records that it is built on.
    """
    columns = model_columns(schema)
    single = terms_of(model, columns, single=True)
    ends = [stand_ins(schema, SIZES[-1], end=end) for end in (0, 1)]
    for made in [*(stand_ins(schema, n) for n in SIZES), *ends]:
        built, n = build(made), len(next(iter(made.values())))
        many = terms_of(built, columns, single=False)
        if [value.name for value in built.value_vars] != [value.name for value in model.value_vars]:
            raise InputError("the model's parameters depend on how many records there are, or on their values")
        tables = list(extreme_tables(schema, n))
        for point in points:
            _compare(single, many, point, tables)


def _compare(single: Terms, many: Terms, point: Mapping[str, Any], tables: Sequence[Table]) -> None:
    wanted, prior = single(point, {name: np.concatenate([table[name] for table in tables]) for name in tables[0]})
    for table, expected in zip(tables, np.split(wanted, len(tables)), strict=True):
        found, other_prior = many(point, table)
        if not np.allclose(prior, other_prior, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise InputError(
                "the prior depends on how many records there are or on their values; make it of public constants"
            )
        if found.shape != expected.shape:
            raise InputError(ONE_EACH)
        known = np.isfinite(expected)
        same = np.allclose(expected[known], found[known], rtol=TOLERANCE, atol=TOLERANCE)
        if not same or np.isfinite(found[~known]).any():
            raise InputError(_why(many, point, table))


def _why(many: Terms, point: Mapping[str, Any], table: Table) -> str:
    """Return which columns of other records move the term of a record."""
    n = len(next(iter(table.values())))
    before, _ = many(point, table)
    moving = []
    for name, values in table.items():
        others = [np.roll(values, shift) for shift in range(1, min(n, 4))]
        others += [np.full_like(values, each) for each in np.unique(values)[[0, -1]]]
        for other, i in product(others, range(min(n, 4))):
            after, _ = many(point, {**table, name: np.where(np.arange(n) == i, values, other).astype(values.dtype)})
            if not np.isclose(before[i], after[i], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                moving.append(name)
                break
    if moving:
        return (
            f"the log-likelihood of a record depends on other records, through {', '.join(map(repr, moving))} "
            "(standardising, lags, ranks, counts of levels, or means over the data); work such numbers out from public "
            "knowledge and make them constants"
        )
    return (
        "the log-likelihood of a record depends on how many records there are or on its place among them "
        "(data.n_records is for shapes only), or the model holds numbers of several records as constants (get_value(), "
        "eval(), a pm.Data of its own). It is built before a record is read, so these are of stand-ins: read columns "
        "as data[name] only, and standardise them by public numbers, such as schema.columns[name].lower"
    )


def extreme_tables(schema: Schema, n: int) -> Iterator[Table]:
    """Yield made-up tables of n records: ordinary ones, and those at which a dependence that is rare would show."""
    spread, columns = stand_ins(schema, max(SIZES)), model_columns(schema)
    rows = {name: np.unique(values) for name, values in spread.items()}
    ordinary = {name: values[:n] for name, values in spread.items()}
    yield ordinary
    yield {name: values[::-1][:n] for name, values in spread.items()}
    for place in (0, 1, len(spread) % 7 + 3):
        equal = {name: np.repeat(values[place], n) for name, values in spread.items()}
        yield equal
        yield {name: np.append(values[1:], spread[name][place - 1]) for name, values in equal.items()}
    if n < max(SIZES):
        return
    for name, values in rows.items():
        for end in (values[0], values[-1]):
            yield {**ordinary, name: np.repeat(end, n)}
            yield {**ordinary, name: np.append(np.repeat(end, n - 1), values[0] + values[-1] - end)}
        if columns[name].is_categorical:
            levels = columns[name].n_levels
            for level in range(min(levels, MOST_LEVELS) if levels > 1 else 0):
                yield {**ordinary, name: np.where(ordinary[name] == level, (level + 1) % levels, ordinary[name])}
