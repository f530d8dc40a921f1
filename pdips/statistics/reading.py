"""A built model as samplers made for it read it: its priors with their constants, and the laws that it states.

A model is read, never written twice: what a sampler assumes, it finds here or steps aside.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.transforms import _default_transform
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors

from pdips.arrays import FloatArray
from pdips.statistics.noisy_model import Given, Stated
from pdips.statistics.plan import Part

Draws = Mapping[str, NDArray[Any]]

KNOWN = {
    pm.Normal: "normal",
    pm.HalfNormal: "half-normal",
    pm.Gamma: "gamma",
    pm.Beta: "beta",
    pm.Dirichlet: "dirichlet",
    pm.Binomial: "binomial",
}
LAWS = {type(law.rv_op): name for law, name in KNOWN.items()}

POINTS = 4
"""Draws from the prior at which two graphs are compared."""

CLOSE = 1e-6


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior of a variable.

    Parameters
    ----------
    variable : TensorVariable
        The free variable; a quantity of the model for :meth:`pdips.statistics.noisy_model.Given.prior`.
    law : str
        "normal" (mean, standard deviation), "half-normal" (location, scale), "gamma" (shape, rate), "beta" (a, b) or
        "dirichlet" (alpha).
    constants : tuple of ndarray
        Its parameters, each of the shape of the variable.
    """

    variable: Any
    law: str
    constants: tuple[FloatArray, ...]

    @property
    def name(self) -> str:
        """The variable's name."""
        return str(self.variable.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The variable's shape."""
        return np.shape(self.constants[0])


@dataclass(frozen=True, eq=False)
class Reading:
    """A model that is made of known priors and of laws stated by ``noisy_model.Given``, and nothing else."""

    model: pm.Model
    given: Given
    priors: Mapping[str, Prior]

    @property
    def n(self) -> int | None:
        """The public number of records."""
        return self.given.measured.n_records

    def stated(self, *laws: str) -> list[Stated] | None:
        """Return the laws that the model states if they are these, in any order; otherwise None."""
        found = {each.law: each for each in self.given.stated}
        if len(found) != len(self.given.stated) or sorted(found) != sorted(laws):
            return None
        return [found[law] for law in laws]

    def of_law(self, **laws: str) -> list[Prior] | None:
        """Return the priors called so if they have these laws and there are no others; otherwise None."""
        if sorted(self.priors) != sorted(laws) or any(self.priors[name].law != law for name, law in laws.items()):
            return None
        return [self.priors[name] for name in laws]

    def parts(self, stated: Stated) -> list[Part]:
        """Return the statistics that a law is about."""
        return [self.given.measured.part(name) for name in stated.names]

    def same(self, *pairs: tuple[Any, Any]) -> bool:
        """Whether the graphs of each pair have equal values at draws from the prior."""
        inputs = list(self.model.free_RVs)
        outputs = [pt.as_tensor(each) for pair in pairs for each in pair]
        compiled = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
        drawn = pm.draw(inputs, draws=POINTS, random_seed=0, mode="FAST_COMPILE")
        for point in zip(*drawn, strict=True):
            found = compiled(*point)
            for one, other in zip(found[::2], found[1::2], strict=True):
                if one.shape != other.shape or not np.allclose(one, other, rtol=CLOSE, atol=CLOSE):
                    return False
        return True


def read(model: pm.Model, given: Given) -> Reading | None:
    """Return a model as samplers read it; None where it holds anything that they couldn't know of.

    Parameters
    ----------
    model : pymc.Model
        As ``build_model`` returned it.
    given : Given
        What it was built on.

    Notes
    -----
    Readable are models whose free variables are unknown statistics or noise of ``given``, or have a known distribution
    with constant parameters and PyMC's own transform, and whose other terms were all made by ``given``. The density of
    such a model is that of its priors and of the stated laws.
    """
    own = {id(term) for term in given.terms}
    if model.observed_RVs or len(model.potentials) != len(own) or any(id(each) not in own for each in model.potentials):
        return None
    priors = {}
    for variable in model.free_RVs:
        if variable.name in given.latents:
            continue
        found = prior_of(variable)
        known = variable.owner.op, variable
        if found is None or type(model.rvs_to_transforms[variable]) is not type(_default_transform(*known)):
            return None
        priors[str(variable.name)] = found
    return Reading(model, given, priors)


def prior_of(variable: Any) -> Prior | None:
    """Return the law of a variable with its constants; None if it isn't known or they aren't constant."""
    law = LAWS.get(type(variable.owner.op))
    parameters = variable.owner.op.dist_params(variable.owner)
    if law is None or any(not _is_constant(each) for each in parameters):
        return None
    values = [np.asarray(each.eval(mode="FAST_COMPILE"), dtype=np.float64) for each in parameters]
    shape = tuple(variable.shape.eval(mode="FAST_COMPILE"))
    constants = [np.broadcast_to(each, shape) for each in values]
    if law == "gamma":  # PyTensor keeps the scale
        constants[1] = 1 / constants[1]
    return Prior(variable, law, tuple(constants))


def _is_constant(graph: Any) -> bool:
    """Whether a graph has constants alone at its roots; random variables have their generator."""
    return all(each.owner is not None or isinstance(each, Constant) for each in ancestors([graph]))


def deterministics(reading: Reading, known: Mapping[str, Any]) -> Callable[[Draws], Draws] | None:
    """Return a function that works a model's deterministic variables out at draws of what they are made of.

    Parameters
    ----------
    reading : Reading
        The model.
    known : mapping of str to TensorVariable
        What there will be draws of, by any names: free variables, and exact statistics that stated laws returned.

    Returns
    -------
    callable or None
        Takes and returns draws by name, shape (draws, ...). None where a variable needs what isn't drawn.
    """
    model = reading.model
    stands = {name: variable.type() for name, variable in known.items()}
    swapped = {known[name]: stand for name, stand in stands.items()}
    graphs = clone_replace(list(model.deterministics), swapped, rebuild_strict=False)
    if set(model.free_RVs) & set(ancestors(graphs)):
        return None
    many = {name: pt.tensor(dtype=each.dtype, shape=(None, *each.type.shape)) for name, each in stands.items()}
    batched = vectorize_graph(graphs, {stands[name]: many[name] for name in stands}) if graphs else []
    compiled = pytensor.function(list(many.values()), batched, mode="FAST_COMPILE", on_unused_input="ignore")
    names = [str(each.name) for each in model.deterministics]

    def worked_out(draws: Draws) -> Draws:
        n = len(next(iter(draws.values())))
        found = compiled(*(np.asarray(draws[name], dtype=stands[name].dtype) for name in stands))
        return {
            name: each if each.ndim and len(each) == n else np.broadcast_to(each, (n, *each.shape))
            for name, each in zip(names, found, strict=True)
        }

    return worked_out
