"""What is refused of a model, on stand-ins and before anything is spent: priors,
potentials, records that meet.
"""

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.multivariate import CARRV, ICARRV, MvNormalRV
from pymc.distributions.simulator import SimulatorRV
from pymc.distributions.timeseries import (
    GARCH11RV,
    AutoRegressiveRV,
    EulerMaruyamaRV,
    RandomWalkRV,
)
from pymc.exceptions import TruncationError
from pytensor.compile.mode import get_mode
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant, equal_computations
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError, RefusedError, hint
from pdips.posterior.columns import (
    MISSING,
    SUFFIX,
    fixed_numbers,
    model_columns,
    stand_ins,
)
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.record_likelihood import (
    ONE_EACH,
    SIMPLER,
    RecordLikelihood,
    inputs_of,
    log_prior,
    record_terms,
    values_behind,
)

Table = dict[str, NDArray[Any]]
Terms = Callable[[Mapping[str, Any], Table], tuple[FloatArray, float]]

TOLERANCE = 1e-8

# numpy adds 32 numbers at once at most
UNMERGED = get_mode("FAST_COMPILE").excluding("local_add_canonizer")
# Numbers of stand-ins at which a model of many records is compared with the model of
# one
SIZES = (2, 3, 25)
MOST_REMEMBERED = 64  # Trials whose results are kept
# Laws of a whole series at once
SERIES = (AutoRegressiveRV, EulerMaruyamaRV, GARCH11RV, RandomWalkRV)
GP_NAME = "_rotated_"  # In the names of what PyMC's Gaussian processes are made of
MOST_LEVELS = 12  # Levels of a column that are left out one at a time
WIDE = (
    "give it a distribution that integrates to 1, as wide as need be, such as "
    "pm.Normal or pm.HalfNormal"
)
OWN = (
    "write it as pm.CustomDist(..., dist=...), or as one of PyMC's distributions, "
    "truncated by pm.Truncated or mixed"
)
SMOOTH = (
    "take pm.gp.HSGP(...).prior on a public column, a spline with public knots, or "
    "one parameter for each level of a public column"
)
INTRINSIC = "take pm.CAR with alpha below 1, or pm.ZeroSumNormal"


class Tried:
    """What was tried and passed, by public settings, so that a price that is asked for
    again costs nothing.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._found: dict[Hashable, Any] = {}
        self._most = most

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def once[T](self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key of public settings, or make it; what fails
        isn't remembered.
        """
        if key not in self._found:
            self._found[key] = make()
            while len(self._found) > self._most:
                self._found.pop(next(iter(self._found)))
        found: T = self._found[key]
        return found


@contextmanager
def on_stand_ins(what: str) -> Iterator[None]:
    """Turn whatever a model raises on made-up records into one plain line; it has seen
    no record.
    """
    try:
        yield
    except (InputError, RefusedError):
        raise
    except IndexError:
        raise InputError(
            "the model looks something up by a column, and values that the schema "
            "allows lie beyond it; make what is "
            "looked up as long as the column has levels or whole numbers"
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the analyst's model, on stand-ins
        line = next(iter(str(error).splitlines()), "")
        said = f"{what} failed on made-up records: {type(error).__name__}: {line}"
        if isinstance(error, NotImplementedError):
            said = (
                f"{what} can't be drawn from: {line}; a pm.CustomDist needs "
                f"dist=... or random=..."
            )
        if isinstance(error, TruncationError):
            said = (
                f"{what} draws from a law that is cut off, of which hardly anything "
                f"lies between the bounds at some parameters that the prior allows: "
                f"narrow the priors"
            )
        raise InputError(said) from None


def check_gradient(
    name: str, model: pm.Model, points: Iterable[Mapping[str, Any]]
) -> None:
    """Refuse a model whose log density, or its gradient, is finite at none of some
    points.
    """
    free = [
        model.values_to_rvs[value]
        for value in model.value_vars
        if value.dtype.startswith("float")
    ]
    with on_stand_ins("the gradient of the log density"), np.errstate(all="ignore"):
        try:
            graphs = [model.logp(), model.dlogp(free)] if free else [model.logp()]
        except (NotImplementedError, NullTypeGradError) as error:
            line = next(iter(str(error).splitlines()), "")
            raise InputError(
                f"{name}: the log density has no gradient ({line}); use operations "
                f"that have one"
            ) from None
        function = model.compile_fn(
            graphs, inputs=model.value_vars, mode=UNMERGED, on_unused_input="ignore"
        )
        finite = any(map(partial(_is_finite_at, function), points))
    if not finite:
        raise InputError(
            f"{name}: the log density or its gradient is not a finite number where "
            f"chains could start; look for "
            "logarithms and roots of what may be 0 or negative"
        )


def _is_finite_at(function: Any, point: Mapping[str, Any]) -> bool:
    return all(np.isfinite(number).all() for number in function(point))


def check_unused(unused: Sequence[str], drawn_by: str, instead: str) -> None:
    """Refuse settings that would have no effect."""
    if unused:
        raise InputError(
            f"{' and '.join(unused)} would have no effect: this model's parameters "
            f"are drawn by {drawn_by}; leave "
            f"{'it' if len(unused) == 1 else 'them'} out, or set {instead}"
        )


def check_own(one: pm.Model, several: pm.Model) -> None:
    """Refuse a model that has, for several records, more of a parameter than for
    one.
    """
    sizes = parameter_shapes(one)
    for name, size in parameter_shapes(several).items():
        if size != sizes.get(name, size):
            check_no_process(several[name])
            raise InputError(
                f"the model has one parameter for each record, {name!r}; "
                f"{instead_of(several[name])}"
            )


def parameter_shapes(model: pm.Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters."""
    unsaid = [each for each in model.free_RVs if None in each.type.shape]
    if not unsaid:
        shapes = []
    else:
        shapes = [each.shape for each in unsaid]
        shapes = pm.compile([], shapes, mode="FAST_COMPILE", on_unused_input="ignore")()
    known = {each.name: tuple(each.type.shape) for each in model.free_RVs}
    for variable, shape in zip(unsaid, shapes, strict=True):
        known[variable.name] = tuple(np.asarray(shape).tolist())
    return known


def check_no_process(variable: Any) -> None:
    """Refuse a variable that is there once a record if it is of a Gaussian process."""
    if GP_NAME in variable.name or isinstance(variable.owner.op, MvNormalRV):
        raise InputError(
            f"the model has one parameter for each record, {variable.name!r}: a "
            f"Gaussian process over records ties them together; {SMOOTH}"
        )


def check_no_series(model: pm.Model) -> None:
    """Refuse observed variables of which the records are one draw together."""
    for variable in model.observed_RVs:
        op = variable.owner.op if variable.owner else None
        if isinstance(op, SERIES) and variable.ndim == 1:
            raise InputError(
                f"{variable.name!r} is a series over records, which no record has a "
                f"term of its own in: take a series of parameters over the levels of a "
                f"public column for time"
            )
        if isinstance(op, (CARRV, ICARRV)) and variable.ndim == 1:
            raise InputError(
                f"{variable.name!r} is one draw over all records, which no record has "
                f"a term of its own in: take pm.CAR for parameters of the levels of a "
                f"public column, such as the area"
            )
        if isinstance(op, SimulatorRV):
            raise InputError(
                f"{variable.name!r} is a pm.Simulator, which has no density, and noisy "
                f"scores are slopes of one: write its law by pm.CustomDist(..., "
                f"logp=..., random=...)"
            )


def instead_of(variable: Any) -> str:
    """Return what to write instead of a variable that is there once a record."""
    if not variable.dtype.startswith("float"):
        return (
            "sum it out, by pm.Mixture or by marginalize of pymc_extras, or give one "
            "to each level of a public column"
        )
    return (
        "integrate it out (a sum of normal variables is normal, a Poisson rate with a "
        "gamma law is pm.NegativeBinomial), or give one to each level of a public "
        "column"
    )


def check_proper(model: pm.Model) -> None:
    """Refuse priors that don't integrate to 1, or of which nothing shows that they do:
    no posterior need exist.
    """
    for variable in model.free_RVs:
        check_law(variable.name, variable)


def check_law(name: str, variable: Any) -> None:
    """Refuse the prior of a variable if it is improper, also inside a mixture or the
    function that it is made of.
    """
    for node in _nodes([variable]):
        op = node.op
        if isinstance(op, (FlatRV, HalfFlatRV)):
            raise InputError(
                f"the prior of {name!r} is improper, so its posterior "
                f"need not exist; {WIDE}"
            )
        if _is_intrinsic(node):
            raise InputError(
                f"the prior of {name!r} is improper (an intrinsic autoregression), "
                f"so its posterior need not exist; "
                f"{INTRINSIC}"
            )
        if "BART" in type(op).__name__:
            raise InputError(
                f"{name!r} is a sum of trees (BART), which are cut at the values of "
                f"records; {SMOOTH}"
            )
        is_own = isinstance(op, CustomSymbolicDistRV) and not op.inline_logprob
        if is_own or isinstance(op, CustomDistRV):
            raise InputError(
                f"the prior of {name!r} is a log density of its own (logp=...), and "
                f"nothing shows that it integrates "
                f"to 1; {OWN}"
            )


def _is_intrinsic(node: Apply) -> bool:
    if isinstance(node.op, ICARRV):
        return True
    if not isinstance(node.op, CARRV):
        return False
    _, _, alpha, *_ = node.op.dist_params(node)
    return isinstance(alpha, Constant) and bool((np.abs(alpha.data) >= 1).any())


def _nodes(graphs: Sequence[Any]) -> Iterator[Apply]:
    """Yield the operations of graphs, and of the graphs inside them."""
    for node in toposort(graphs):
        yield node
        if isinstance(node.op, HasInnerGraph):
            yield from _nodes(node.op.inner_outputs)


def check_potentials(
    model: pm.Model, public: Collection[str], columns: Collection[str]
) -> None:
    """Refuse potentials that the model's file doesn't call public, and those that read
    records.
    """
    names = [potential.name for potential in model.potentials]
    for name in public:
        if name not in names:
            raise InputError(
                f"PUBLIC_POTENTIALS names {name!r}, which is no "
                f"pm.Potential of the model"
            )
    read = {variable: variable.name for variable in model.observed_RVs}
    for data in model.data_vars:
        column = data.name.removesuffix(SUFFIX)
        if column in columns:
            read[data] = column
    for potential in model.potentials:
        behind = set(ancestors([potential]))
        for variable, column in read.items():
            if variable in behind:
                raise InputError(
                    f"potential {potential.name!r} reads column {column!r}, and no "
                    f"window bounds what records do through "
                    "a potential; make it part of the law of an observed variable"
                )
        if potential.name not in public:
            raise InputError(
                f"the model has a potential, {potential.name!r}, and nothing shows "
                f"that prior times potential can be "
                f"integrated; if it can, say PUBLIC_POTENTIALS = "
                f"({potential.name!r},) at the top of the model's file, or "
                f"make.PUBLIC_POTENTIALS = ({potential.name!r},) of a function make"
            )


class TermFunctions:
    """Functions of log-likelihoods and log priors, one for all models that compute the
    same.
    """

    def __init__(self) -> None:
        self._made = list[tuple[list[Any], list[Any], Any]]()

    def of(self, inputs: list[Any], graphs: list[Any]) -> Any:
        """Return a function that works out graphs: one that is there if that computes
        the same, constants included.
        """
        types = [each.type for each in inputs]
        for before, same, function in self._made:
            alike = types == [each.type for each in before]
            if alike and equal_computations(graphs, same, inputs, before):
                return function
        # as it was, for what is rewritten is rewritten in place
        as_written = clone_replace(graphs, {}, rebuild_strict=False)
        simpler = [rewrite_graph(each, include=SIMPLER) for each in graphs]
        function = pytensor.function(
            inputs, simpler, mode=LIGHT, on_unused_input="ignore"
        )
        self._made.append((inputs, as_written, function))
        return function


def terms_of(
    model: pm.Model,
    names: Collection[str],
    *,
    single: bool,
    functions: TermFunctions | None = None,
) -> Terms:
    """Compile the terms of a model as it is written or, with ``single``, of a model of
    one record repeated for many.

    They are a function of a point and a table, which returns the log-likelihood of each
    record and the log prior. ``functions`` are those of other models, if there are any.
    """
    columns = inputs_of(model, names)
    many = {
        name: shared.type.clone(shape=(None,))(name=name)
        for name, shared in columns.items()
    }
    with on_stand_ins("the log-likelihood"), np.errstate(all="ignore"):
        if single:
            graph = RecordLikelihood(model, names).graph(many)
        else:
            graph = record_terms(model)
        replaced = {shared: many[name] for name, shared in columns.items()}
        graph, prior = clone_replace(
            [graph, log_prior(model)], replaced, rebuild_strict=False
        )
        inputs = [*model.value_vars, *many.values()]
        function = (functions or TermFunctions()).of(inputs, [graph, prior])

    def terms(point: Mapping[str, Any], table: Table) -> tuple[FloatArray, float]:
        with np.errstate(all="ignore"), on_stand_ins("the log-likelihood"):
            read = [
                np.asarray(table[name], column.dtype) for name, column in many.items()
            ]
            parameters = [point[value.name] for value in model.value_vars]
            logs, log_density = function(*parameters, *read)
        return np.asarray(logs, dtype=np.float64), float(log_density)

    return terms


def check_company(
    model: pm.Model,
    build: Callable[[Table], pm.Model],
    schema: Schema,
    points: Sequence[Mapping[str, NDArray[Any]]],
) -> None:
    """Refuse a model that, written for many records, isn't what it says of each record
    alone; no guarantee rests on it.

    The library samples the model of one record, repeated; where the analyst's model of
    many differs from it, something else than what was written would run. Both are
    compared on made-up tables of several lengths, among them extreme ones: all records
    equal, one different, each level absent once, columns at their bounds. The model of
    many is built on others than these, so that it can't hold numbers of the records
    that it is built on.
    """
    columns = model_columns(schema)
    functions = TermFunctions()
    single = terms_of(model, columns, single=True, functions=functions)
    ends = [stand_ins(schema, SIZES[-1], end=end) for end in (0, 1)]
    names = [value.name for value in model.value_vars]
    for values in [*(stand_ins(schema, n) for n in SIZES), *ends]:
        built = build(values)
        n = len(next(iter(values.values())))
        many = terms_of(built, columns, single=False, functions=functions)
        if [value.name for value in built.value_vars] != names:
            raise InputError(
                "the model's parameters depend on how many records "
                "there are, or on their values"
            )
        tables = list(extreme_tables(schema, n))
        for point in points:
            _compare(single, many, point, tables)


def _compare(
    single: Terms, many: Terms, point: Mapping[str, Any], tables: Sequence[Table]
) -> None:
    together = {
        name: np.concatenate([table[name] for table in tables]) for name in tables[0]
    }
    wanted, prior = single(point, together)
    for table, expected in zip(tables, np.split(wanted, len(tables)), strict=True):
        terms, other_prior = many(point, table)
        if not _are_close(prior, other_prior):
            raise InputError(
                "the prior depends on how many records there are or on their values; "
                "make it of public constants"
            )
        if terms.shape != expected.shape:
            raise InputError(ONE_EACH)
        finite = np.isfinite(expected)
        if finite.any() != np.isfinite(terms).any():
            raise InputError(BREAKS_RULES)
        same = _are_close(expected[finite], terms[finite])
        if not same or np.isfinite(terms[~finite]).any():
            raise InputError(_why(many, point, table))


BREAKS_RULES = (
    "at parameters that the prior allows all records are impossible if the model is "
    "written for one record, or for many, and not so otherwise: the parameters of a "
    "distribution break its rules there, such as weights of a mixture that don't add "
    "up to 1; write w = pm.Dirichlet('w', np.ones(k)), or divide them by their sum"
)


def _are_close(one: Any, other: Any) -> bool:
    return np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def _why(many: Terms, point: Mapping[str, Any], table: Table) -> str:
    """Return which columns of other records move the term of a record."""
    n = len(next(iter(table.values())))
    before, _ = many(point, table)
    moving = []
    for name, values in table.items():
        others = [np.roll(values, shift) for shift in range(1, min(n, 4))]
        others += [np.full_like(values, end) for end in np.unique(values)[[0, -1]]]
        for other, i in product(others, range(min(n, 4))):
            changed = np.where(np.arange(n) == i, values, other).astype(values.dtype)
            after, _ = many(point, {**table, name: changed})
            if not _are_close(before[i], after[i]):
                moving.append(name)
                break
    if moving:
        return (
            f"the log-likelihood of a record depends on other records, through "
            f"{', '.join(map(repr, moving))} "
            "(standardising, lags, ranks, counts of levels, or means over the data); "
            "work such numbers out from public "
            "knowledge and make them constants"
        )
    return (
        "the log-likelihood of a record depends on how many records there are or on "
        "its place among them "
        "(data.n_records is for shapes only), or the model holds numbers of several "
        "records as constants (get_value(), "
        "eval(), a pm.Data of its own). It is built before a record is read, so "
        "these are of stand-ins: read columns "
        "as data[name] only, and standardise them by public numbers, such as "
        "schema.columns[name].lower"
    )


def extreme_tables(schema: Schema, n: int) -> Iterator[Table]:
    """Yield made-up tables of n records: ordinary ones, and those at which a dependence
    that is rare would show.
    """
    spread = stand_ins(schema, max(SIZES))
    columns = model_columns(schema)
    rows = {name: np.unique(values) for name, values in spread.items()}
    ordinary = {name: values[:n] for name, values in spread.items()}
    yield ordinary
    yield {name: values[::-1][:n] for name, values in spread.items()}
    for place in (0, 1, len(spread) % 7 + 3):
        equal = {name: np.repeat(values[place], n) for name, values in spread.items()}
        yield equal
        one_other = {}
        for name, values in equal.items():
            one_other[name] = np.append(values[1:], spread[name][place - 1])
        yield one_other
    if n < max(SIZES):
        return
    for name, values in rows.items():
        for end in (values[0], values[-1]):
            yield {**ordinary, name: np.repeat(end, n)}
            last_other = np.append(np.repeat(end, n - 1), values[0] + values[-1] - end)
            yield {**ordinary, name: last_other}
        if columns[name].is_categorical:
            for without in _each_level_absent(ordinary[name], columns[name].n_levels):
                yield {**ordinary, name: without}


def _each_level_absent(codes: NDArray[Any], n_levels: int) -> Iterator[NDArray[Any]]:
    """Yield codes in which one of the first levels has become the next."""
    if n_levels < 2:
        return
    for level in range(min(n_levels, MOST_LEVELS)):
        yield np.where(codes == level, (level + 1) % n_levels, codes)


def check_columns(observed: Mapping[str, tuple[str, ...]], schema: Schema) -> None:
    """Refuse a model that observes nothing, what is no column, or a public one."""
    columns = model_columns(schema)
    if not observed:
        raise InputError("the model has no observed variable")
    known = [name for names in observed.values() for name in names]
    for name in known:
        if name not in columns:
            raise InputError(
                f"the model observes {name!r}, which is no column of "
                f"the schema{hint(name, columns)}; give it a column's name"
            )
        if columns[name].public:
            raise InputError(
                f"the model observes {name!r}, but the schema calls that column public"
            )
        if known.count(name) > 1:
            raise InputError(f"the model observes column {name!r} twice")


def check_described(
    observed: Mapping[str, tuple[str, ...]], schema: Schema, read: Collection[str]
) -> None:
    """Refuse a confidential column that the model neither describes nor reads."""
    columns = model_columns(schema)
    fixed = fixed_numbers(schema)
    known = [name for names in observed.values() for name in names]
    for name in columns:
        if name not in known and name not in read and not columns[name].public:
            of = name.removesuffix(MISSING)
            if of in fixed and {of, of + MISSING} & {*known}:
                law = (
                    (f'pm.Normal("{name}", mu, sd')
                    if of == name
                    else f'pm.Bernoulli("{name}", p'
                )
                raise InputError(
                    f"column {of!r} may have missing values: a model observes "
                    f"whether it has, and the number; add "
                    f'{law}, observed=data["{name}"])'
                )
            raise undescribed(name)


def undescribed(name: str) -> InputError:
    """Return what is said of a confidential column that a model doesn't describe."""
    return InputError(
        f"column {name!r} is neither public nor observed in the model, which would "
        f"have to draw it: observe it too (a joint model), call it public in the "
        f"schema if everybody may know it, or take it out"
    )


def check_covariates(model: pm.Model, synthesized: Sequence[str]) -> None:
    """Refuse a column that the model both synthesizes and reads as data for another:
    that one would see stand-ins.
    """
    columns = {
        variable: name
        for name, variable in inputs_of(model).items()
        if name in synthesized
    }
    for variable in model.free_RVs:
        for read in values_behind(variable):
            if read in columns:
                name = columns[read]
                raise InputError(
                    f"the prior of {variable.name!r} reads column {name!r}, which the "
                    f"model observes; make it of public numbers, such as "
                    f"schema.columns[{name!r}].lower"
                )
    for variable in model.observed_RVs:
        for read in values_behind(variable):
            if read in columns:
                raise InputError(
                    f"the model observes {columns[read]!r} and reads it as data for "
                    f"{variable.name!r}; use the random "
                    "variable there, so that synthetic records hang together"
                )
