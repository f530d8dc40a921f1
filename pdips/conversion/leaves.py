"""What a model holds beside its graph: constants and data, looked at in several builds
of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.variable import TensorConstant

from pdips.errors import InputError
from pdips.posterior.model_checks import on_stand_ins

OTHER_GRAPH = (
    "the model is another one for other records: which variables it has, or how they "
    "hang together, follows from what confidential columns hold or from how many "
    "records there are"
)

# Below which a number of a model is what rounding leaves of 0
ROUNDED = 1e-14


def roots_of(model: pm.Model) -> list[Any]:
    """Return all that a model is made of: its variables, and the values of observed
    ones.
    """
    values = [model.rvs_to_values[variable] for variable in model.observed_RVs]
    return [*model.basic_RVs, *model.potentials, *model.deterministics, *values]


def is_leaf(variable: Any) -> bool:
    """Whether a variable holds numbers: a constant, or data."""
    if not isinstance(variable, (TensorConstant, SharedVariable)):
        return False
    return isinstance(variable.type, pt.TensorType)


def held(leaf: Any) -> NDArray[Any]:
    """Return the numbers of a leaf."""
    is_shared = isinstance(leaf, SharedVariable)
    return np.asarray(leaf.get_value(borrow=True) if is_shared else leaf.data)


def leaves_of(roots: Sequence[Any]) -> list[Any]:
    """Return the leaves of graphs and of the graphs inside them, in an order that
    follows from the graphs alone.
    """
    found = dict[Any, Any]()
    for leaf in _leaves(roots):
        found.setdefault(_identity(leaf), leaf)
    return list(found.values())


def _identity(leaf: Any) -> Any:
    """Return what tells leaves apart.

    Of equal numbers PyTensor may make one constant or several, as its cache has it, so
    that one build would have more than another. What rounding leaves of 0, as in the
    mean of numbers on both sides of it, is 0.
    """
    if isinstance(leaf, TensorConstant) and leaf.data.size == 1:
        number = leaf.data
        if number.dtype.kind == "f" and np.abs(number).max() < ROUNDED:
            number = np.zeros_like(number)
        return leaf.type, number.tobytes()
    return leaf


def _leaves(roots: Sequence[Any]) -> Iterator[Any]:
    inner = []
    for variable in dict.fromkeys(ancestors(roots)):
        if is_leaf(variable):
            yield variable
        elif variable.owner is not None and isinstance(
            variable.owner.op, HasInnerGraph
        ):
            inner.append(variable.owner.op)
    for op in dict.fromkeys(inner):
        yield from _leaves(op.inner_outputs)


@dataclass(frozen=True, eq=False)
class Build:
    """A model, with its leaves: of the model itself, and of its log density, which may
    hold more.
    """

    model: pm.Model
    leaves: Sequence[Any]
    of_density: Sequence[Any]

    @classmethod
    def of(cls, model: pm.Model) -> "Build":
        """Look at a model."""
        leaves = leaves_of(roots_of(model))
        with on_stand_ins("the log-likelihood"):
            density = model.logp(sum=False)
        seen = {_identity(leaf) for leaf in leaves}
        others = [leaf for leaf in leaves_of(density) if _identity(leaf) not in seen]
        return cls(model, leaves, others)

    @property
    def names(self) -> list[str]:
        """Names of the variables, in their order."""
        return [variable.name for variable in self.model.basic_RVs]

    def named(self, leaf: Any) -> str:
        """Return the name of the first variable that a leaf is behind, as its author
        wrote it.
        """
        model = self.model
        for variable in model.basic_RVs:
            parts = [variable, model.rvs_to_values[variable]]
            if leaf in set(ancestors(parts)):
                return str(variable.name)
        for variable in [*model.potentials, *model.deterministics]:
            if leaf in set(ancestors([variable])):
                return str(variable.name)
        return self.names[-1] if self.names else "the model"


def check_alike(one: Build, other: Build) -> None:
    """Refuse two builds of a model whose graphs differ."""
    alike = one.names == other.names
    alike = alike and len(one.leaves) == len(other.leaves)
    if not alike or len(one.of_density) != len(other.of_density):
        raise InputError(OTHER_GRAPH)


def without_random(
    outputs: Sequence[Any], sources: Sequence[Any]
) -> tuple[list[Any], set[Any]]:
    """Return the largest parts of graphs that follow from no source, in an order that
    follows from the graphs, and all variables that follow from one.

    Sources are random variables and leaves that hold records.
    """
    depends = set(sources)
    nodes = list(toposort(outputs))
    for node in nodes:
        if depends.intersection(node.inputs):
            depends.update(node.outputs)
    front = dict[Any, None]()
    for node in nodes:
        if not depends.intersection(node.outputs):
            continue
        for variable in node.inputs:
            if variable not in depends and isinstance(variable.type, pt.TensorType):
                front[variable] = None
    for variable in outputs:
        if variable not in depends and isinstance(variable.type, pt.TensorType):
            front[variable] = None
    return list(front), depends


def evaluated(
    variables: Sequence[Any], *, on_records: bool = False
) -> list[NDArray[Any]]:
    """Return the values of variables that follow from constants and data alone. Where
    these are records, what goes wrong isn't quoted.
    """
    made = [one for one in variables if one.owner is not None]
    by_variable = dict[Any, Any]()
    told = _on_records if on_records else on_stand_ins
    if made:
        with told("what the model works out of public columns"):
            function = pytensor.function([], made, mode="FAST_COMPILE")
            by_variable = dict(zip(made, function(), strict=True))
    arrays = []
    for one in variables:
        arrays.append(np.asarray(by_variable[one]) if one in by_variable else held(one))
    return arrays


@contextmanager
def _on_records(what: str) -> Iterator[None]:
    """Turn whatever a model raises on records into a line without any of it."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001 - the analyst's model
        raise InputError(f"{what} failed: {type(error).__name__}") from None


def is_whole(variable: Any) -> bool:
    """Whether a variable holds whole numbers, as lengths are."""
    return str(variable.type.dtype).startswith(("int", "uint"))
