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

from pdips.errors import InputError, RefusedError
from pdips.posterior import nuts as sampling
from pdips.posterior.nuts import Convergence, agreeing
from pdips.statistics.model import StatisticModel
from pdips.statistics.noisy_model import Given, Likelihood
from pdips.statistics.plan import Measured
from pdips.statistics.samplers import Lengths, Sampler, recognise

DRAWS, TUNE, CHAINS = 1_000, 1_000, 4
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
    """A model, what a sampler compiled of it, and the sampler made for it, if there is one."""

    model: pm.Model
    compiled: dict[str, Any] = field(default_factory=dict)
    record_parameters: tuple[str, ...] = ()
    own: Sampler | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a release says of its posterior draws; None for what it leaves to pdips.

    Parameters
    ----------
    draws, tune, chains : int, optional
        Draws of each chain (or independent ones), steps before them, and chains.
    nuts : {"auto", "nutpie", "pymc", "numpyro"}
        Whose NUTS; with "auto" a sampler that was made for the model goes first.
    """

    draws: int | None = None
    tune: int | None = None
    chains: int | None = None
    nuts: sampling.Sampler = "auto"

    def given(self) -> list[str]:
        """Return the names of the options that a release gives."""
        named = {"draws": self.draws, "tune": self.tune, "n_chains": self.chains}
        return [name for name, value in named.items() if value is not None]

    def lengths(self, n_draws: int, entries: int) -> Lengths:
        """Return how much a sampler made for a model draws."""
        draws = self.draws or min(DRAWS, max(MOST_NUMBERS // max(entries, 1), 1))
        return Lengths(draws=max(n_draws, draws), tune=self.tune or TUNE, chains=self.chains or CHAINS)


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
    options: Options | None = None,
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
    options : Options, optional
        How much is drawn; more where ``n_draws`` needs it.

    Raises
    ------
    InputError
        If the model can't be built.
    RefusedError
        If chains don't agree in any round. That costs nothing and says nothing but what the noisy statistics say.
    """
    wanted, given = options or Options(), Given(measured, likelihood)
    with _lock:
        built, kept = prepared(model, given)
    if kept.own is not None and wanted.nuts == "auto":
        lengths = wanted.lengths(n_draws, sum(len(values) for values in measured.values.values()))
        found = by_own(model, built, kept, given, lengths, n_draws, rng)
        if found is not None:
            return found
    check_nuts(model, given)
    with _lock:
        return _by_nuts(model, built, kept, given, wanted, n_draws, rng)


def prepared(model: StatisticModel, given: Given) -> tuple[pm.Model, Compiled]:
    """Return the model of some noisy statistics, and what is kept of one like it."""
    built = model.built(given)
    return built, _kept(model, built, given)


def check_nuts(model: StatisticModel, given: Given) -> None:
    """Refuse a model that NUTS can't draw.

    Raises
    ------
    InputError
        Naming the statistic whose law has no density.
    """
    if given.undensified:
        raise InputError(
            f"{model.name}: {given.undensified[0]!r} has a law without density (given.ridge_fit), which NUTS can't "
            "draw, and pdips' own sampler doesn't recognise the rest of the model: it knows the laws and kinds of "
            "priors of slomag.py, whatever their constants"
        )


def by_own(
    model: StatisticModel,
    built: pm.Model,
    kept: Compiled,
    given: Given,
    lengths: Lengths,
    n_draws: int,
    rng: np.random.Generator,
) -> Fitted | None:
    """Return draws by the sampler made for a model; None where it can't."""
    own = kept.own
    drawn = None if own is None else own.draw(given, lengths, rng)
    if own is None or drawn is None:
        return None
    with _lock:
        _set(built, kept)
        worked_out = own.completed(drawn.values)
    free = {str(variable.name) for variable in kept.model.free_RVs}
    values = {name: drawn.values[name] for name in own.drawn if name in free}
    flat = model.completed(given, {**values, **worked_out}, rng)
    return _fitted(model, flat, drawn.chains, drawn.convergence, n_draws, rng)


def _set(built: pm.Model, kept: Compiled) -> None:
    """Give the compiled model the data of the one just built."""
    if kept.model is not built:
        pm.set_data({name: data.get_value() for name, data in _data(built).items()}, model=kept.model)


def _by_nuts(
    model: StatisticModel,
    built: pm.Model,
    kept: Compiled,
    given: Given,
    options: Options,
    n_draws: int,
    rng: np.random.Generator,
) -> Fitted:
    _set(built, kept)
    chains = options.chains or CHAINS
    settings: dict[str, Any] = {"start": start_of(built), "chains": chains, "rng": rng, "sampler": options.nuts}
    lengths = {"draws": max(options.draws or DRAWS, -(-APART * n_draws // chains)), "tune": options.tune or TUNE}
    watch = [variable.name for variable in built.free_RVs if variable.name not in given.latents]
    try:
        tree, found = agreeing(kept, watch, confidential=False, **lengths, **settings)
    except InputError:
        raise
    except RefusedError:
        raise RefusedError(NOT_AGREED.format(model.name)) from None
    except Exception as error:  # noqa: BLE001 - whatever a model's graph raises, it has seen public numbers only
        raise RefusedError(
            f"{model.name} can't be fitted to these noisy statistics ({type(error).__name__}): with so few "
            "records, or so much noise, they may not suit it; they stay charged"
        ) from None
    posterior = tree["posterior"].to_dataset()
    known = {str(variable.name) for variable in (*built.free_RVs, *built.deterministics)} - set(given.latents)
    drawn = {
        str(name): each.to_numpy().reshape((-1, *each.shape[2:]))
        for name, each in posterior.data_vars.items()
        if name in known
    }
    flat = model.completed(given, drawn, rng)
    stats = tree["sample_stats"].to_dataset()
    return _fitted(model, flat, posterior.sizes["chain"], found, n_draws, rng, stats)


def _fitted(
    model: StatisticModel,
    flat: Mapping[str, NDArray[Any]],
    chains: int,
    found: Convergence | None,
    n_draws: int,
    rng: np.random.Generator,
    stats: xr.Dataset | None = None,
) -> Fitted:
    """Return draws, shape (draws, ...), of chains that agree, as far apart as they can be; or independent ones."""
    if found is not None and not found.passed:
        raise RefusedError(NOT_AGREED.format(model.name))
    total = len(next(iter(flat.values())))
    taken = np.arange(n_draws)
    if found is not None:
        taken = (rng.integers(total) + taken * max(total // n_draws, 1)) % total
    draws = {name: values[taken] for name, values in flat.items()}
    return Fitted(draws=draws, tree=tree_of(flat, chains, stats), convergence=found)


def tree_of(flat: Mapping[str, NDArray[Any]], chains: int = 1, stats: xr.Dataset | None = None) -> xr.DataTree:
    """Return draws, shape (draws, ...), of chains one after the other as a tree."""
    held = {
        name: (
            ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(values.ndim - 1))),
            values.reshape((chains, -1, *values.shape[1:])),
        )
        for name, values in flat.items()
    }
    groups = {"posterior": xr.Dataset(held)}
    return xr.DataTree.from_dict(groups if stats is None else groups | {"sample_stats": stats})


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
        _compiled[key] = Compiled(built, own=recognise(built, given))
    return _compiled[key]


def _constants(model: pm.Model) -> str:
    """Return a digest of the constants in a model's graph, and of the shapes of its data."""
    shapes = [(name, data.get_value(borrow=True).shape) for name, data in sorted(_data(model).items())]
    found = hashlib.sha256(repr(shapes).encode())
    for each in graph_inputs([*model.basic_RVs, *model.deterministics, *model.potentials]):
        if isinstance(each, TensorConstant):
            found.update(f"{each.data.dtype} {each.data.shape}".encode() + np.ascontiguousarray(each.data).tobytes())
    return found.hexdigest()


def start_of(model: pm.Model) -> dict[str, NDArray[Any]]:
    """Return where chains start, on the unconstrained scale."""
    point = model.initial_point(random_seed=0)
    return {value.name: np.asarray(point[value.name]) for value in model.value_vars}
