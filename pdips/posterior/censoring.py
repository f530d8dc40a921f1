"""The censored likelihood: any PyMC model with each record's part in the posterior bounded, as a new PyMC model."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelNamed,
    ModelObservedRV,
    ModelPotential,
    model_from_fgraph,
    model_named,
    model_potential,
)
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX
from pdips.posterior.model_checks import (
    check_record_parameters,
    check_records,
    check_variables,
    count_records,
    probe,
    record_parameters,
)
from pdips.posterior.record_likelihood import constant_parts
from pdips.posterior.record_terms import LIKELIHOOD, Axis, Parts, natural_points, read_by, take_apart, total
from pdips.posterior.window import (
    CLIPS,
    Clip,
    bounded,
    checked_centre,
    checked_vector,
    checked_weights,
    checked_window,
    corrected,
    without_infinities,
)
from pdips.privacy.loss import Neighbours, choice

RELATIONS: tuple[Neighbours, ...] = ("replace-one", "add-remove")

WEIGHTS, CENTRE, WINDOW, CORRECTION = "pdips_weights", "pdips_centre", "pdips_window", "pdips_correction"
HOISTED = "pdips_hoisted_"

N_POINTS = 2
"""Parameter values at which records are changed to see whose likelihood moves."""


@dataclass(frozen=True, eq=False)
class Censored:
    """A model whose log density is prior + sum over records of s(weight * (log-likelihood - centre)).

    Parameters
    ----------
    model : pymc.Model
        The new model: the old one's free variables, one potential for the likelihood, no observed variable.
    clip : {"hard", "tanh", "algebraic"}
        The shape of s.
    record_parameters : tuple of str
        Free variables that are there once for each record; they must never be released.
    dropped : tuple of str
        Deterministics of the old model that read records, which the new one lacks.

    Notes
    -----
    Neighbours: as asked for when it was made. Each term lies in [-w, w], so replacing one record changes the log
    density by a function of the parameters whose oscillation is at most 4w, and adding or removing one by at most 2w:
    what one exact draw costs (SOUNDNESS, theorem 2.1). That holds for weights and centres which are functions of a
    record and of public things only.
    """

    model: pm.Model
    clip: Clip
    record_parameters: tuple[str, ...]
    dropped: tuple[str, ...]
    _parts: Parts = field(repr=False)
    _hoisted: list[Any] = field(repr=False)
    _front: Callable[..., list[Any]] = field(repr=False)
    compiled: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_records(self) -> int:
        """Number of records."""
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
        """Give the model other numbers in place; nothing is compiled again.

        Parameters
        ----------
        weights, centre : array_like, shape (records,), or a number
            See :func:`censor`. With another number of records and none of these, weights are 1 and centres 0.
        window : float, optional
            Half width of the window, in nats.
        values : mapping of str to array_like
            New values of the ``pm.Data`` that hold records, by their names or the names of their columns: all of them
            if their number changes.

        Raises
        ------
        InputError
            If a name is no ``pm.Data`` of the model, lengths differ, or a number is out of range.
        """
        n, bounded_before = self._take(values) if values else self.n_records, math.isfinite(self.window)
        if n != self.n_records:
            weights, centre = 1.0 if weights is None else weights, 0.0 if centre is None else centre
        made = {} if weights is None else {WEIGHTS: checked_weights(weights, n)}
        made |= {} if centre is None else {CENTRE: checked_centre(centre, n)}
        made |= {} if window is None else {WINDOW: checked_window(window)}
        for name, value in made.items():
            self.model[name].set_value(value)
        if values or math.isfinite(self.window) != bounded_before:
            self._work_out()
        return self

    def _take(self, values: Mapping[str, ArrayLike]) -> int:
        """Put new records in place and return their number."""
        data = {held.name: shared for held, shared in self._parts.data.items()}
        new: dict[str, NDArray[Any]] = {}
        for given, value in values.items():
            name = given if given in data else given + SUFFIX
            if name not in data:
                raise InputError(f"the model has no pm.Data {given!r}; make what changes pm.Data")
            new[name] = np.asarray(value, dtype=data[name].dtype)
            if new[name].ndim != data[name].ndim:
                raise InputError(f"{given!r} must have {data[name].ndim} axes")
        n = self._count([new.get(name, shared.get_value(borrow=True)) for name, shared in data.items()])
        if self.record_parameters and n != self.n_records:
            raise InputError(f"{self.record_parameters[0]!r} has one value a record, so their number can't change")
        for name, array in new.items():
            data[name].set_value(array)
        return n

    def _count(self, records: list[Any]) -> int:
        """Return the number of terms of some records."""
        try:
            with np.errstate(all="ignore"):
                return len(self._terms(*(self._point[each.name] for each in self._parts.parameters), *records))
        except (ValueError, IndexError):
            own = f"{', '.join(self.record_parameters)} with one value a record, " if self.record_parameters else ""
            raise InputError(
                f"columns differ in length, have codes that the model doesn't know, or the model has {own}"
                "constants of as many elements as it was built with records"
            ) from None

    @cached_property
    def _point(self) -> dict[str, NDArray[Any]]:
        return natural_points(self.model, 1)[0]

    def _work_out(self) -> None:
        """Work out again what depends on records alone."""
        for shared, value in zip(self._hoisted, self._front(*self._records()), strict=True):
            shared.set_value(without_infinities(value) if np.isfinite(self.window) else value)

    def log_likelihood(self, draws: Mapping[str, ArrayLike] | xr.Dataset | xr.DataTree) -> FloatArray:
        """Return the log-likelihood of each record at each draw, neither weighted nor bounded, shape (draws, records).

        Parameters
        ----------
        draws : mapping of str to array_like, shape (draws, ...), or Dataset or DataTree of chains and draws
            Values of the free variables in the model's own units.
        """
        names = [each.name for each in self._parts.parameters]
        stacked = _stacked(draws, names)
        with np.errstate(all="ignore"):
            found = [self._terms(*point, *self._records()) for point in zip(*stacked, strict=True)]
        return np.asarray(found, dtype=np.float64)

    def _records(self) -> list[Any]:
        return [shared.get_value(borrow=True) for shared in self._parts.data.values()]

    @cached_property
    def _terms(self) -> Any:
        inputs = [*self._parts.parameters, *self._parts.data]
        graph = total(list(self._parts.terms.values()))
        return pytensor.function(
            inputs, graph, mode="FAST_COMPILE", on_unused_input="ignore", allow_input_downcast=True
        )


def _stacked(draws: Any, names: list[str]) -> list[NDArray[Any]]:
    if isinstance(draws, xr.DataTree):
        draws = draws["posterior"].to_dataset()
    if not isinstance(draws, xr.Dataset):
        return [np.asarray(draws[name]) for name in names]
    values = [draws[name].transpose("chain", "draw", ...).to_numpy() for name in names]
    return [value.reshape((-1, *value.shape[2:])) for value in values]


def censor(
    model: pm.Model,
    *,
    window: float,
    weights: ArrayLike | None = None,
    centre: ArrayLike | None = None,
    clip: Clip = "hard",
    record_dim: str | None = None,
    record_axis: Mapping[str, int] | None = None,
    record_ids: Mapping[str, IntArray] | None = None,
    n_records: int | None = None,
    public_potentials: Collection[str] = (),
    neighbours: Neighbours = "replace-one",
    correction: ArrayLike | None = None,
) -> Censored:
    """Return a model like the given one in which no record's part of the log density leaves a window.

    Parameters
    ----------
    model : pymc.Model
        An ordinary model, which stays as it is. Its observed variables have one value a record along one axis.
    window : float
        Half width w of the window, in nats; ``math.inf`` for none.
    weights : array_like, shape (records,), optional
        Between 0 and 1; 1 where not given.
    centre : array_like, shape (records,), optional
        What is taken off the log-likelihoods, in nats; 0 where not given. A record whose centre is not finite is left
        out.
    clip : {"hard", "tanh", "algebraic"}
        See :func:`bounded`.
    record_dim : str, optional
        The dimension that numbers records; ``"record"`` is known by itself.
    record_axis : mapping of str to int, optional
        The record axis of observed variables without dims; the first one where nothing is said.
    record_ids : mapping of str to ndarray of int, optional
        Which record (0 to ``n_records`` - 1) each value of an observed variable belongs to, if there is not one each.
    n_records : int, optional
        Number of records, checked against the model's data; asked for with ``record_ids``.
    public_potentials : collection of str
        Potentials of the model that read no record.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike.
    correction : array_like, shape (records,), optional
        Where not 0, the row is a public record, and what counts is how much censoring takes from it, times this number
        (:func:`corrected`).

    Raises
    ------
    InputError
        If the model has no observed variable, an improper prior, one that reads data, a potential that is not public,
        minibatches, imputed values without ids, record-specific parameters under add-remove, or a log-likelihood that
        is no sum over records.

    Notes
    -----
    Paper 004, section 3, on centres and shapes. That no record enters the likelihood of another is only tried here, at
    some tables and parameters, because a finished model can't be built again of one record; and what was worked out
    before the model was built can't be seen. Mechanisms with a guarantee use :func:`censor_records`, where it can't
    happen.
    """
    choice(clip, CLIPS, "clip")
    choice(neighbours, RELATIONS, "neighbours")
    if record_ids and n_records is None:
        raise InputError("record_ids asks for n_records")
    axis = Axis(dim=record_dim, axes=record_axis or {}, ids=record_ids or {}, n=n_records)
    parts = take_apart(model, axis)
    check_variables(parts, public_potentials)
    points = natural_points(model, N_POINTS)
    n = count_records(parts, points[0])
    parts = parts.opened({name: np.shape(value) for name, value in points[0].items()}, n)
    looked_at = probe(parts, n)
    check_records(looked_at, points)
    own = record_parameters(looked_at, points[0], parts)
    check_record_parameters(own, parts, n, neighbours)
    made = _rebuilt(
        model, parts, own, clip, n, None if correction is None else checked_vector(correction, n, "correction")
    )
    return made.update(
        weights=1.0 if weights is None else weights, centre=0.0 if centre is None else centre, window=window
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
    """Return a model of many records in which none can enter the term of another, from a model of one record.

    Parameters
    ----------
    model : pymc.Model
        Built of one record, its columns as ``pm.Data`` (:class:`pdips.posterior.columns.Columns`). It stays as it is.
    columns : collection of str
        The columns that there are. Other data of the model are the same for all records.
    window, clip, correction, public_potentials
        See :func:`censor`. There are as many records as ``correction`` has elements, or one.

    Returns
    -------
    Censored
        With that one record, weight 1 and centre 0; :meth:`Censored.update` gives it others, of any number.

    Raises
    ------
    InputError
        If the model holds several records, or what :func:`censor` refuses.

    Notes
    -----
    The term of record i is f(parameters, record i), with the same f for all: the graph of one record is repeated for
    each (:func:`pdips.posterior.record_likelihood.over_records`). Nothing has to be tried out
    (``docs/proofs/censored-posterior.md``).
    """
    parts = take_apart(model, Axis())
    check_variables(parts, public_potentials)
    parts = parts.one_by_one(columns)
    public = None if correction is None else checked_vector(correction, np.size(correction), "correction")
    return _rebuilt(model, parts, (), choice(clip, CLIPS, "clip"), 1, public).update(window=window)


def _rebuilt(
    model: pm.Model, parts: Parts, own: tuple[str, ...], clip: Clip, n: int, correction: FloatArray | None
) -> Censored:
    graph, hoisted, function = _hoist(parts)
    numbers = {
        WEIGHTS: pytensor.shared(np.ones(n), name=WEIGHTS, shape=(None,)),
        CENTRE: pytensor.shared(np.zeros(n), name=CENTRE, shape=(None,)),
        WINDOW: pytensor.shared(np.asarray(math.inf), name=WINDOW),
    }
    if correction is not None:
        numbers[CORRECTION] = pytensor.shared(correction, name=CORRECTION, shape=(None,))
    named = {name: model_named(shared, name) for name, shared in numbers.items()}
    terms = bounded(graph, named[WEIGHTS], named[CENTRE], named[WINDOW], clip)
    if correction is not None:
        terms = corrected(terms, graph, named[CENTRE], named[CORRECTION])
    potential = terms.sum()
    [potential] = graph_replace([potential], parts.stands, strict=False)
    reading = [node for node in parts.of_kind(ModelDeterministic) if _reads_records(node, own, n)]
    kept = [
        each
        for each in parts.fgraph.outputs
        if isinstance(each.owner.op, (ModelFreeRV, ModelNamed, ModelDeterministic, ModelPotential))
        and each.owner not in reading
    ]
    kept = graph_replace(kept, {node.outputs[0]: node.inputs[0] for node in reading}, strict=False)
    fgraph = FunctionGraph(outputs=[*kept, *named.values(), model_potential(potential, LIKELIHOOD)], clone=False)
    fgraph._coords, fgraph._dim_lengths = parts.fgraph._coords, parts.fgraph._dim_lengths
    new = model_from_fgraph(fgraph, mutate_fgraph=True)
    for variable, value in model.rvs_to_initial_values.items():
        if value is not None and variable in model.free_RVs:
            new.set_initval(new[variable.name], value)
    return Censored(new, clip, own, tuple(node.op.name for node in reading), parts, hoisted, function)


def _hoist(parts: Parts) -> tuple[Any, list[Any], Any]:
    """Put what no parameter enters into shared variables, which a function works out from the data."""
    graph, front = constant_parts(total(list(parts.terms.values())), parts.parameters)
    front = [each for each in front if each.ndim and not all(each.type.broadcastable)]
    function = pytensor.function(list(parts.data), front, mode="FAST_COMPILE", on_unused_input="ignore")
    values = function(*(shared.get_value(borrow=True) for shared in parts.data.values()))
    hoisted = [
        pytensor.shared(value, name=f"{HOISTED}{place}", shape=variable.type.shape)
        for place, (variable, value) in enumerate(zip(front, values, strict=True))
    ]
    [graph] = graph_replace([graph], dict(zip(front, hoisted, strict=True)), strict=False)
    return graph, hoisted, function


def _reads_records(node: Any, own: tuple[str, ...], n: int) -> bool:
    """Whether a deterministic would put records, or what is there once for each, into the draws."""
    for each in read_by(node.inputs[0]):
        if isinstance(each, Constant):
            if n > 1 and n in np.shape(each.data):
                return True
        elif isinstance(each.owner.op, (ModelNamed, ModelObservedRV)) or each.owner.op.name in own:
            return True
    return False
