"""Posterior draws given noisy statistics: post-processing, however they are drawn and however often."""

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorConstant

from pdips.bayes.chains import agreeing
from pdips.bayes.given import Given, Likelihood
from pdips.bayes.sampling import Convergence, Sampler
from pdips.bayes.sanitizing import Measured
from pdips.bayes.statistic_model import StatisticModel
from pdips.errors import InputError, RefusedError

MOST_COMPILED = 8
MOST_NUMBERS = 2_000_000
"""Independent draws beyond those that sets need, times the entries of the statistics."""

NOT_AGREED = (
    "the chains of {} don't agree on the posterior given the noisy statistics, so nothing is released; that says "
    "nothing but what these say, and they stay charged; use more tuning and draws, or try the model on made-up tables"
)

APART = 4
"""Draws of chains for each draw that is taken."""

_lock = threading.RLock()
_compiled: dict[tuple[Any, ...], "Compiled"] = {}


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model, and what a sampler compiled of it."""

    model: pm.Model
    compiled: dict[str, Any] = field(default_factory=dict)
    record_parameters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """Draws from the posterior given noisy statistics: public, for they are all that it depends on.

    Parameters
    ----------
    draws : mapping of str to ndarray, shape (draws, ...)
        Independent, or as far apart in chains as they can be.
    tree : DataTree
        All draws: group ``posterior``, and ``sample_stats`` of chains.
    convergence : Convergence, optional
        How well chains agree; None where draws are independent.
    """

    draws: Mapping[str, NDArray[Any]]
    tree: xr.DataTree
    convergence: Convergence | None

    def draw(self, number: int) -> dict[str, NDArray[Any]]:
        """Return one draw."""
        return {name: values[number] for name, values in self.draws.items()}


def fit(
    model: StatisticModel,
    measured: Measured,
    likelihood: Likelihood,
    *,
    n_draws: int,
    rng: np.random.Generator,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    nuts: Sampler = "auto",
) -> Fitted:
    """Draw from the posterior of a model given noisy statistics.

    Parameters
    ----------
    model, measured, likelihood
        The model, what it is given, and how it sees it.
    n_draws : int
        Number of draws that are taken.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.
    draws, tune, chains, nuts
        Of NUTS; more draws where ``n_draws`` needs them.

    Raises
    ------
    InputError
        If the model can't be built.
    RefusedError
        If chains don't agree in any round. That costs nothing and says nothing but what the noisy statistics say.
    """
    given = Given(measured, likelihood)
    if model.draw_posterior is not None:
        entries = sum(len(values) for values in measured.values.values())
        wanted = max(n_draws, min(draws, MOST_NUMBERS // max(entries, 1)))
        exact = model.draw_posterior(given, wanted, given.schema, rng)
        if isinstance(exact, tuple):
            return _of_chains(model, given, *exact, n_draws, rng)
        if exact is not None:
            return _independent(model.completed(exact, given.schema, rng), n_draws)
    with _lock:
        built = model.built(given)
        kept = _kept(model, built, given)
        if kept.model is not built:
            pm.set_data({name: data.get_value() for name, data in _data(built).items()}, model=kept.model)
        settings = {"start": _start(built), "chains": chains, "rng": rng, "sampler": nuts}
        draws = max(draws, -(-APART * n_draws // chains))
        watch = [variable.name for variable in built.free_RVs if variable.name not in given.latents]
        try:
            tree, found = agreeing(kept, watch, draws=draws, tune=tune, confidential=False, **settings)
        except InputError:
            raise
        except RefusedError:
            raise RefusedError(NOT_AGREED.format(model.name)) from None
        except Exception as error:  # noqa: BLE001 - whatever a model's graph raises, it has seen public numbers only
            raise RefusedError(
                f"{model.name} can't be fitted to these noisy statistics ({type(error).__name__}): with so few "
                "records, or so much noise, they may not suit it; they stay charged"
            ) from None
    known = [variable.name for variable in (*built.free_RVs, *built.deterministics)]
    drawn = tree["posterior"].to_dataset()[[name for name in known if name not in given.latents]]
    told = {"posterior": drawn, "sample_stats": tree["sample_stats"].to_dataset()}
    return _of_chains(model, given, xr.DataTree.from_dict(told), found, n_draws, rng)


def _of_chains(
    model: StatisticModel,
    given: Given,
    tree: xr.DataTree,
    found: Convergence,
    n_draws: int,
    rng: np.random.Generator,
) -> Fitted:
    """Return draws of chains that agree, as far apart as they can be."""
    if not found.passed:
        raise RefusedError(NOT_AGREED.format(model.name))
    posterior = _completed(model, given, tree["posterior"].to_dataset(), rng)
    tree = xr.DataTree.from_dict(
        {**{name: each.to_dataset() for name, each in tree.children.items()}, "posterior": posterior}
    )
    stacked = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    taken = (rng.integers(total) + np.arange(n_draws) * max(total // n_draws, 1)) % total
    return Fitted(
        draws={str(name): each.to_numpy()[taken] for name, each in stacked.data_vars.items()},
        tree=tree,
        convergence=found,
    )


def _completed(model: StatisticModel, given: Given, kept: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    """Return the draws of chains with what the model integrates out."""
    shape = (kept.sizes["chain"], kept.sizes["draw"])
    flat = {str(name): each.to_numpy().reshape((-1, *each.shape[2:])) for name, each in kept.data_vars.items()}
    for name, values in model.completed(flat, given.schema, rng).items():
        if name not in flat:
            dims = (f"{name}_dim_{axis}" for axis in range(np.ndim(values) - 1))
            kept = kept.assign({name: (("chain", "draw", *dims), values.reshape((*shape, *values.shape[1:])))})
    return kept


def _independent(draws: Mapping[str, NDArray[Any]], n_draws: int) -> Fitted:
    held = {
        name: (
            ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(np.ndim(values) - 1))),
            np.asarray(values)[None],
        )
        for name, values in draws.items()
    }
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(held)})
    return Fitted(
        draws={name: np.asarray(values)[:n_draws] for name, values in draws.items()}, tree=tree, convergence=None
    )


def _data(model: pm.Model) -> dict[str, Any]:
    return {data.name: data for data in model.data_vars}


def _kept(model: StatisticModel, built: pm.Model, given: Given) -> Compiled:
    """Return the model that was compiled for other noisy statistics of the same kind, or this one.

    What isn't ``pm.Data`` must be equal: a model file that makes constants of noisy or public numbers is compiled anew.
    """
    measured = given.measured
    shapes = tuple((part.name, len(measured.values[part.name]), part.law, part.n_noised) for part in measured.parts)
    known = (model.text or model.build_model, given.schema.to_toml(), given.likelihood, measured.n_records)
    key = (*known, shapes, tuple(built.named_vars), _constants(built))
    if key not in _compiled:
        while len(_compiled) >= MOST_COMPILED:
            _compiled.pop(next(iter(_compiled)))
        _compiled[key] = Compiled(built)
    return _compiled[key]


def _constants(model: pm.Model) -> str:
    """Return a digest of the constants in a model's graph, and of the shapes of its data."""
    shapes = [(name, data.get_value(borrow=True).shape) for name, data in sorted(_data(model).items())]
    found = hashlib.sha256(repr(shapes).encode())
    for each in graph_inputs([*model.basic_RVs, *model.deterministics, *model.potentials]):
        if isinstance(each, TensorConstant):
            found.update(f"{each.data.dtype} {each.data.shape}".encode() + np.ascontiguousarray(each.data).tobytes())
    return found.hexdigest()


def _start(model: pm.Model) -> dict[str, NDArray[Any]]:
    """Return where chains start, on the unconstrained scale."""
    point = model.initial_point(random_seed=0)
    return {value.name: np.asarray(point[value.name]) for value in model.value_vars}
