"""The censored likelihood: a model that was taken apart, put together with each
record's part in its posterior bounded.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelNamed,
    ModelPotential,
    model_from_fgraph,
    model_named,
    model_potential,
)
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.graphs.repetition import over_records
from pdips.posterior.columns import SUFFIX
from pdips.posterior.parts import (
    Axis,
    Parts,
    check_variables,
    natural_points,
    reads_records,
    take_apart,
)
from pdips.posterior.record_likelihood import alone, constant_parts
from pdips.privacy.loss import choice

Clip = Literal["hard", "tanh", "algebraic"]
CLIPS: tuple[Clip, ...] = ("hard", "tanh", "algebraic")

LIKELIHOOD = "pdips_likelihood"  # What the likelihood of all records is called
WEIGHTS = "pdips_weights"
CENTRE = "pdips_centre"
WINDOW = "pdips_window"
CORRECTION = "pdips_correction"
HOISTED = "pdips_hoisted_"


def check_vector(values: Any, n: int, name: str) -> FloatArray:
    """Return one number, or one for each record, as a vector of doubles, shape (n,)."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one for each record") from None
    if found.shape not in ((), (n,)):
        raise InputError(
            f"{name} must be a number or a vector of one number for each record"
        )
    return np.broadcast_to(found, (n,)).copy()


def check_weights(weights: Any, n_records: int) -> FloatArray:
    """Return weights, one number in [0, 1] for all records or for each, as a vector,
    shape (n_records,).
    """
    found = check_vector(weights, n_records, "weights")
    if not ((found >= 0) & (found <= 1)).all():
        raise InputError("weights must lie between 0 and 1, and none may be missing")
    return found


def clip_values(share: FloatArray, clip: Clip) -> FloatArray:
    """Map terms, in windows, into [-1, 1]; what isn't a number counts as impossible,
    which is -1.

    ``clip_graph`` is the same function as a graph, in nats; ``tests/posterior``
    compares them.
    """
    if np.isnan(share).any():
        share = np.where(np.isnan(share), -np.inf, share)
    if clip == "tanh":
        return np.tanh(share)
    if clip == "algebraic":
        inside = share / (1.0 + np.abs(share))
        return np.where(np.isinf(share), np.sign(share), inside)
    return np.minimum(np.maximum(share, -1.0), 1.0)


def clip_graph(u: Any, window: Any, clip: Clip) -> Any:
    """Return s(u) within [-window, window] as a graph: minus infinity and NaN count as
    -window, infinity as window.

    ``hard`` cuts u off at the window, ``tanh`` is ``window * tanh(u / window)``,
    ``algebraic`` is ``window * u / (window + |u|)``; the window may be infinite.
    """
    if clip == "hard":
        return pt.switch(pt.isnan(u), -window, pt.clip(u, -window, window))
    finite = pt.isfinite(u)
    safe = pt.switch(finite, u, 0.0)
    width = pt.switch(pt.isinf(window), 1.0, window)
    if clip == "tanh":
        bent = width * pt.tanh(safe / width)
    else:
        bent = safe / (1 + pt.abs(safe) / width)
    bent = pt.clip(pt.switch(pt.isinf(window), safe, bent), -window, window)
    return pt.switch(finite, bent, pt.switch(u > 0, window, -window))


@dataclass(frozen=True, eq=False)
class Censored:
    """A model whose log density is prior + sum over records of s(weight *
    (log-likelihood - centre)).

    Each term lies in [-w, w], so one exact draw costs 4 w when a record is replaced and
    2 w when one is added or removed, if weights and centres are functions of a record
    and of public things (``docs/proofs/censored-posterior.md``). ``model`` is the
    ``pm.Model``; it holds the records, and so do its draws.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     level = pm.Normal("level", 0, 1)
    ...     height = pm.Normal("height", level, 1, observed=np.array([-1.0, 0.0, 2.0]))
    >>> censored = censor(model, window=0.5)
    >>> censored.update(window=1, weights=[1, 1, 0.5]).window
    1.0
    >>> censored.model.observed_RVs
    []
    """

    # the old one's free variables, one potential for the likelihood, no observed
    # variable
    model: pm.Model
    clip: Clip
    # free variables that are there once for each record: never to be released
    record_parameters: tuple[str, ...]
    # deterministics of the old model that read records, which the new one lacks
    dropped: tuple[str, ...]
    _parts: Parts = field(repr=False)
    _hoisted: list[Any] = field(repr=False)
    _front: Callable[..., list[Any]] = field(repr=False)
    compiled: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_records(self) -> int:
        return len(self.model[WEIGHTS].get_value(borrow=True))

    @property
    def window(self) -> float:
        """Half width of the window, in nats."""
        return float(self.model[WINDOW].get_value())

    def update(
        self,
        *,
        weights: ArrayLike | None = None,
        centre: ArrayLike | None = None,
        window: float | None = None,
        values: Mapping[str, ArrayLike] | None = None,
    ) -> Self:
        """Give the model other weights and centres (one, or one a record), window or
        columns; nothing is recompiled.

        With another number of records all columns are asked for, and weights are 1 and
        centres 0 where not given.
        """
        n = self._take(values) if values else self.n_records
        bounded_before = math.isfinite(self.window)
        if n != self.n_records:
            weights = 1.0 if weights is None else weights
            centre = 0.0 if centre is None else centre
        numbers = dict[str, FloatArray]()
        if weights is not None:
            numbers[WEIGHTS] = check_weights(weights, n)
        if centre is not None:
            numbers[CENTRE] = check_vector(centre, n, "centre")
        if window is not None:
            if not float(window) > 0:
                raise InputError(
                    f"window must be above 0 (infinite for no bound), got {window}"
                )
            numbers[WINDOW] = np.asarray(window, dtype=np.float64)
        for name, value in numbers.items():
            self.model[name].set_value(value)
        if values or math.isfinite(self.window) != bounded_before:
            self._hoist_again()
        return self

    def _hoist_again(self) -> None:
        """Work out anew what depends on records alone."""
        bounded = math.isfinite(self.window)
        fresh = self._front(*self._records())
        for shared, value in zip(self._hoisted, fresh, strict=True):
            shared.set_value(_without_infinities(value) if bounded else value)

    def _take(self, values: Mapping[str, ArrayLike]) -> int:
        """Put new records in place and return their number."""
        data = {held.name: shared for held, shared in self._parts.data.items()}
        new: dict[str, NDArray[Any]] = {}
        for given, value in values.items():
            name = given if given in data else given + SUFFIX
            if name not in data:
                raise InputError(
                    f"the model has no pm.Data {given!r}; make what changes pm.Data"
                )
            new[name] = np.asarray(value, dtype=data[name].dtype)
            if new[name].ndim != data[name].ndim:
                raise InputError(f"{given!r} must have {data[name].ndim} axes")
        records = [
            new.get(name, shared.get_value(borrow=True))
            for name, shared in data.items()
        ]
        point = [self._point[held.name] for held in self._parts.parameters]
        try:
            with np.errstate(all="ignore"):
                n = len(self._terms(*point, *records))
        except (ValueError, IndexError):
            own = ""
            if self.record_parameters:
                own = f"{', '.join(self.record_parameters)} with one value a record, "
            raise InputError(
                f"columns differ in length, have codes that the model doesn't know, "
                f"or the model has {own}"
                "constants of as many elements as it was built with records"
            ) from None
        if self.record_parameters and n != self.n_records:
            raise InputError(
                f"{self.record_parameters[0]!r} has one value a record, "
                f"so their number can't change"
            )
        for name, array in new.items():
            data[name].set_value(array)
        return n

    @cached_property
    def _point(self) -> dict[str, NDArray[Any]]:
        return natural_points(self.model, 1)[0]

    def log_likelihood(self, draws: Mapping[str, ArrayLike]) -> FloatArray:
        """Return the plain log-likelihood of each record at each draw of the free
        variables, shape (draws, records).
        """
        stacked = [np.asarray(draws[each.name]) for each in self._parts.parameters]
        with np.errstate(all="ignore"):
            found = [
                self._terms(*point, *self._records())
                for point in zip(*stacked, strict=True)
            ]
        return np.asarray(found, dtype=np.float64)

    def _records(self) -> list[Any]:
        return [shared.get_value(borrow=True) for shared in self._parts.data.values()]

    @cached_property
    def _terms(self) -> Any:
        inputs = [*self._parts.parameters, *self._parts.data]
        return pytensor.function(
            inputs,
            self._parts.total,
            mode="FAST_COMPILE",
            on_unused_input="ignore",
            allow_input_downcast=True,
        )


def censor_records(
    model: pm.Model,
    columns: Collection[str],
    *,
    window: float,
    clip: Clip = "hard",
    correction: ArrayLike | None = None,
    public_potentials: Collection[str] = (),
) -> Censored:
    """Return a model of many records in which none can enter the term of another, from
    a model of one record.

    The term of record i is f(parameters, record i), with the same f for all: the graph
    of one record is repeated for each, so nothing has to be tried out
    (``docs/proofs/censored-posterior.md``, lemma 9). What is returned has that one
    record, or as many as ``correction`` (see :func:`censored_from`);
    :meth:`Censored.update` gives it others.
    """
    parts = take_apart(model, Axis())
    check_variables(parts, public_potentials)
    held = {
        data.name.removesuffix(SUFFIX): data
        for data in parts.data
        if data.name.endswith(SUFFIX)
    }
    read = {name: data for name, data in held.items() if name in columns}
    term, record = alone(parts.total, read)
    many = over_records(term, {one: held[name] for name, one in record.items()})
    parts = replace(parts, terms={LIKELIHOOD: many})
    public = None
    if correction is not None:
        public = check_vector(correction, np.size(correction), "correction")
    choice(clip, CLIPS, "clip")
    return censored_from(model, parts, (), clip, 1, public).update(window=window)


def censored_from(
    model: pm.Model,
    parts: Parts,
    own: tuple[str, ...],
    clip: Clip,
    n: int,
    correction: FloatArray | None = None,
) -> Censored:
    """Return a model that was taken apart with its terms bounded, weights 1 and centres
    0.

    ``own`` are free variables that are there once for each of the n records. Where
    ``correction``, shape (records,), is not 0 the row is public, and what counts is
    what censoring takes from it, times this number. A record of weight 0, or without a
    finite centre, counts as 0 whatever its log-likelihood.
    """
    graph, hoisted, function = _hoist(parts)
    named = _named_numbers(n, correction)
    terms = _censored_terms(graph, named, clip)
    [potential] = graph_replace([terms.sum()], parts.stands, strict=False)
    deterministic = parts.of_kind(ModelDeterministic)
    dropped = [node for node in deterministic if reads_records(node, own, n)]
    kept = _without(parts, dropped)
    fgraph = FunctionGraph(
        outputs=[*kept, *named.values(), model_potential(potential, LIKELIHOOD)],
        clone=False,
    )
    fgraph._coords = parts.fgraph._coords
    fgraph._dim_lengths = parts.fgraph._dim_lengths
    new = model_from_fgraph(fgraph, mutate_fgraph=True)
    for variable, value in model.rvs_to_initial_values.items():
        if value is not None and variable in model.free_RVs:
            new.set_initval(new[variable.name], value)
    return Censored(
        model=new,
        clip=clip,
        record_parameters=own,
        dropped=tuple(node.op.name for node in dropped),
        _parts=parts,
        _hoisted=hoisted,
        _front=function,
    )


def _named_numbers(n: int, correction: FloatArray | None) -> dict[str, Any]:
    """Return the numbers of a censored likelihood that may be changed, as variables of
    a model, by name.
    """
    numbers = {
        WEIGHTS: pytensor.shared(np.ones(n), name=WEIGHTS, shape=(None,)),
        CENTRE: pytensor.shared(np.zeros(n), name=CENTRE, shape=(None,)),
        WINDOW: pytensor.shared(np.asarray(math.inf), name=WINDOW),
    }
    if correction is not None:
        shared = pytensor.shared(correction, name=CORRECTION, shape=(None,))
        numbers[CORRECTION] = shared
    return {name: model_named(shared, name) for name, shared in numbers.items()}


def _censored_terms(graph: Any, named: Mapping[str, Any], clip: Clip) -> Any:
    """Return records' log-likelihoods weighed, centred and kept in the window; of
    public rows what this takes from them.
    """
    weights = named[WEIGHTS]
    centre = named[CENTRE]
    centred = pt.isfinite(centre)
    weighed = weights * (graph - pt.switch(centred, centre, 0.0))
    inside = clip_graph(weighed, named[WINDOW], clip)
    terms = pt.switch(pt.eq(weights, 0) | ~centred, 0.0, inside)
    if CORRECTION not in named:
        return terms
    correction = named[CORRECTION]
    lost = pt.switch(pt.isfinite(graph - centre), graph - centre - terms, 0.0)
    return pt.switch(pt.eq(correction, 0), terms, correction * lost)


def _without(parts: Parts, dropped: Sequence[Any]) -> list[Any]:
    """Return the variables of the old model that stay, with what is dropped written
    out in them.
    """
    kinds = (ModelFreeRV, ModelNamed, ModelDeterministic, ModelPotential)
    kept = [
        variable
        for variable in parts.fgraph.outputs
        if isinstance(variable.owner.op, kinds) and variable.owner not in dropped
    ]
    written_out = {node.outputs[0]: node.inputs[0] for node in dropped}
    replaced: list[Any] = graph_replace(kept, written_out, strict=False)
    return replaced


def _hoist(parts: Parts) -> tuple[Any, list[Any], Any]:
    """Put what no parameter enters into shared variables, which a function works out
    from the data.
    """
    graph, front = constant_parts(parts.total, parts.parameters)
    front = [each for each in front if each.ndim and not all(each.type.broadcastable)]
    function = pytensor.function(
        list(parts.data), front, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    data = [shared.get_value(borrow=True) for shared in parts.data.values()]
    hoisted = []
    for number, (variable, value) in enumerate(
        zip(front, function(*data), strict=True)
    ):
        name = f"{HOISTED}{number}"
        shape = variable.type.shape
        hoisted.append(pytensor.shared(value, name=name, shape=shape))
    by_front = dict(zip(front, hoisted, strict=True))
    [graph] = graph_replace([graph], by_front, strict=False)
    return graph, hoisted, function


def _without_infinities(values: NDArray[Any]) -> NDArray[Any]:
    """Replace infinite values, such as the logarithm of a record on the edge, by very
    large ones.

    The term ends at the same end of the window, and its gradient there is 0 and not the
    product of 0 and infinity.
    """
    if values.dtype.kind != "f" or not np.isinf(values).any():
        return values
    large = float(np.finfo(values.dtype).max) ** 0.5
    return np.asarray(np.nan_to_num(values, nan=np.nan, posinf=large, neginf=-large))
