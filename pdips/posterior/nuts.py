"""Posterior draws by NUTS, used only if the chains agree well enough."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.convergence import ROUNDS, Convergence, announce, converged, require
from pdips.errors import InputError
from pdips.mechanism import LaplaceOrGaussian
from pdips.posterior.columns import record_values
from pdips.posterior.model import ModelMechanism, quiet, split
from pdips.posterior.streams import draws_by_name
from pdips.posterior.target import JointDraws, Parameters, Target
from pdips.privacy.curator import COMPILING, TELL, tell
from pdips.privacy.loss import check_whole, choice
from pdips.privacy.noise import RandomBits

Sampler = Literal["auto", "nutpie", "pymc", "numpyro", "blackjax"]


class Reusable(Protocol):
    """A model that is compiled once and sampled again with other numbers in its
    ``pm.Data``.
    """

    @property
    def model(self) -> pm.Model: ...
    @property
    def compiled(self) -> dict[str, Any]: ...
    @property
    def record_parameters(self) -> tuple[str, ...]: ...


SAMPLERS = ("auto", "nutpie", "pymc", "numpyro", "blackjax")
# Samplers that run on JAX, which pdips doesn't install. PyMC 6.4 hands blackjax an
# argument that it has no longer since version 1.6 (tried: 1.5, 1.6, 1.6.2 and 1.7.1).
ON_JAX = ("numpyro", "blackjax")
TO_INSTALL = {"numpyro": "numpyro", "blackjax": "blackjax<1.6"}
FIRST_UNFIT = (1, 6)
MOST_CORES = 2
MOST_CORRELATED = 500
"""Up to this many unconstrained parameters nutpie adapts to their correlations too:
four times the effective draws a second on the censored beta model, and no less on
others that were tried.
"""

STATISTICS = ("diverging", "n_steps", "step_size", "logp", "energy")
SHORTEST_TUNING = 10
# Chains that are told where to start do so within this distance, on the unconstrained
# scale
JITTER = 0.1


class ChainDraws(JointDraws):
    """Draws from a censored posterior by NUTS: nearly, not exactly, and only if the
    chains agree.

    What is released are draws of the same chains, as far apart as they can be;
    ``settings`` are of :func:`sample`.
    """

    def __init__(self, target: Target, n: int, **settings: Any) -> None:
        super().__init__(target, n)
        self._settings = settings

    def drawn(self, n: int, bits: RandomBits) -> list[Parameters]:
        self.values = self.target.space.beside(record_values(self.table))
        rng = bits.generator()
        target = self.target
        space = target.space
        place = split(space.model, target.stage.anchor.place[None])
        start = {
            value.name: part[0]
            for value, part in zip(space.model.value_vars, place, strict=True)
        }
        settings = self._settings | {"start": start, "rng": rng}
        self.tree, self.convergence = agreeing(
            target.model_of(self.values), space.source.watch, **settings
        )
        self.diagnostics = {"sampler": "nuts", "convergence": self.convergence}
        stacked = draws_by_name(self.tree)
        names = [variable.name for variable in space.model.free_RVs]
        return [
            {name: stacked[name][place] for name in names}
            for place in far_apart(len(stacked[names[0]]), n, rng)
        ]


def far_apart(total: int, n: int, rng: np.random.Generator) -> IntArray:
    """Return the places of n out of so many draws, as far apart as they can be, from a
    random one on.
    """
    return (rng.integers(total) + np.arange(n) * max(total // n, 1)) % total


def agreeing(
    model: Reusable,
    watch: Sequence[str],
    *,
    draws: int,
    tune: int,
    confidential: bool = True,
    **settings: Any,
) -> tuple[xr.DataTree, Convergence]:
    """Return chains that agree, run twice as long up to ``ROUNDS`` times if they
    don't.
    """
    for number in range(1, ROUNDS + 1):
        if number > 1:
            announce(number, confidential=confidential)
            tell(
                f"chains disagreed; running them again, longer (round {number} of "
                f"{ROUNDS})"
            )
        longer = 2 ** (number - 1)
        tree = sample(model, draws=draws * longer, tune=tune * longer, **settings)
        found = replace(converged(tree, watch), rounds=number)
        if found.passed:
            break
    require(found)
    return tree, found


def check_tuning(tune: int) -> None:
    """Refuse so few steps of tuning that a sampler can't begin."""
    if tune < SHORTEST_TUNING:
        raise InputError(f"tune must be at least {SHORTEST_TUNING}, got {tune}")


def sample(
    model: Reusable | pm.Model,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    rng: np.random.Generator,
    start: Mapping[str, ArrayLike] | None = None,
    sampler: Sampler = "auto",
) -> xr.DataTree:
    """Draw from the posterior of a model by NUTS."""
    choice(sampler, SAMPLERS, "sampler")
    check_tuning(tune)
    for name, number in (("draws", draws), ("chains", chains)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}")
    graph = model if isinstance(model, pm.Model) else model.model
    known = available(graph, sampler)
    settings: dict[str, Any] = {
        "draws": draws,
        "tune": tune,
        "chains": chains,
        "cores": max(1, min(MOST_CORES, chains, os.cpu_count() or 1)),
    }
    seed = int(rng.integers(2**63 if known == "nutpie" else 2**31))
    with quiet():
        if known == "nutpie":
            tree = _by_nutpie(_compiled(model), graph, start, seed=seed, **settings)
        else:
            point = None
            if start is not None:
                names = [value.name for value in graph.value_vars]
                point = {name: _started(start, name) for name in names}
            settings |= {
                "nuts_sampler": known,
                "random_seed": rng if known == "pymc" else seed,
                "initvals": point,
            }
            with graph:
                tree = pm.sample(
                    progressbar=False,
                    quiet=True,
                    compute_convergence_checks=False,
                    **settings,
                )
    hidden = () if isinstance(model, pm.Model) else model.record_parameters
    groups = {}
    for group in ("posterior", "sample_stats"):
        variables = tree[group].data_vars.items()
        shown = {name: values for name, values in variables if name not in hidden}
        groups[group] = xr.Dataset(shown)
    return xr.DataTree.from_dict(groups)


def available(model: pm.Model, sampler: Sampler) -> str:
    """Return whose NUTS samples a model; refuse one that isn't installed or can't
    sample discrete variables.
    """
    discrete = [
        value.name for value in model.value_vars if np.dtype(value.dtype).kind != "f"
    ]
    if discrete and sampler not in ("auto", "pymc"):
        raise InputError(
            f"{discrete[0]!r} is discrete, which {sampler} can't "
            f"sample; use sampler='pymc'"
        )
    if sampler in ON_JAX and not (find_spec(sampler) and find_spec("jax")):
        raise InputError(
            f"{sampler} and jax are not installed: pip install '{TO_INSTALL[sampler]}' "
            f"jax, or use nutpie or pymc"
        )
    if sampler == "blackjax" and _version_of("blackjax") >= FIRST_UNFIT:
        raise InputError(
            f"PyMC can't call this version of blackjax: pip install "
            f"'{TO_INSTALL[sampler]}', or use nutpie or pymc"
        )
    if sampler == "auto":
        return "pymc" if discrete else "nutpie"
    return sampler


def _version_of(package: str) -> tuple[int, ...]:
    """Return the first two numbers of the version of a package that is installed."""
    major, minor = version(package).split(".")[:2]
    return int(major), int(minor)


def compile_nutpie(model: pm.Model) -> Any:
    """Compile a model for nutpie (seconds)."""
    import nutpie

    tell(COMPILING)
    return nutpie.compile_pymc_model(model, backend="numba")


def _compiled(model: Reusable | pm.Model) -> Any:
    """Return the compiled model with the data as they are now."""
    if isinstance(model, pm.Model):
        return compile_nutpie(model)
    if "nutpie" not in model.compiled:
        model.compiled["nutpie"] = compile_nutpie(model.model)
    compiled = model.compiled["nutpie"]
    return compiled.with_data(
        **{each.name: each.get_value(borrow=True) for each in compiled.shared_var_keys}
    )


def _by_nutpie(
    compiled: Any,
    model: pm.Model,
    start: Mapping[str, ArrayLike] | None,
    **settings: Any,
) -> xr.DataTree:
    import nutpie

    compiled, names_of_dims = _without_commas(compiled)
    adaptation = "low_rank" if compiled.n_dim <= MOST_CORRELATED else "diag"
    if start is not None:
        # in nutpie's order
        names = [model.rvs_to_values[variable].name for variable in model.free_RVs]
        point = np.concatenate(
            [np.ravel(_started(start, name)).astype(np.float64) for name in names]
        )

        def near(seed: int) -> FloatArray:
            return point + np.random.default_rng(seed).uniform(
                -JITTER, JITTER, point.shape
            )

        compiled = replace(compiled, initial_point_func=near)
    settings |= {"save_warmup": False, "progress_bar": False, "adaptation": adaptation}
    watcher = TELL.get()  # in the background thread that reports there is none
    told_last = ""

    def report(chains: Sequence[Any]) -> None:
        done, total = (
            sum(getattr(each, name) for each in chains)
            for name in ("finished_draws", "total_draws")
        )
        seconds = max((each.runtime_ms for each in chains), default=0) / 1000
        left = f", about {seconds * (total - done) / done:.0f} s left" if done else ""
        if watcher is not None and total:
            divergent = sum(each.divergences for each in chains)
            message = (
                f"drawing by NUTS: {done / total:.0%} of {total:,} draws, "
                f"{divergent} divergent{left}"
            )
            nonlocal told_last
            if message != told_last:  # at first no draw is there for a while
                watcher(message)
            told_last = message

    tree: xr.DataTree = nutpie.sample(
        compiled, progress_callback=report, progress_rate=500, **settings
    )
    posterior = tree["posterior"].to_dataset().rename(names_of_dims)
    told = tree["sample_stats"].to_dataset()[list(STATISTICS)]
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": told})


def _without_commas(compiled: Any) -> tuple[Any, dict[str, str]]:
    """Return a compiled model whose dims have no comma, and what the model calls them.

    nutpie takes a comma for the end of a dim's name: ``poly(age, 2)`` would have two.
    """
    dims = dict(compiled.dims or {})
    coords = dict(compiled.coords or {})
    names_of_dims = {}
    names, _, shapes = compiled.shape_info
    for name, shape in zip(names, shapes, strict=True):
        own = dims.get(name) or [f"{name}_dim_{axis}" for axis in range(len(shape))]
        if not any("," in str(dim) for dim in own):
            continue
        plain = tuple(str(dim).replace(",", ";") for dim in own)
        for dim, plain_dim, size in zip(own, plain, shape, strict=True):
            coords[plain_dim] = coords.get(dim, pd.RangeIndex(size))
            names_of_dims[plain_dim] = dim
        dims[name] = plain
    return replace(compiled, dims=dims, _coords=coords), names_of_dims


def _started(start: Mapping[str, ArrayLike], name: str) -> NDArray[Any]:
    if name not in start:
        raise InputError(
            f"start has no value of {name!r}; it takes one of each of model.value_vars"
        )
    return np.asarray(start[name])


@dataclass(frozen=True, kw_only=True)
class ChainMechanism(ModelMechanism, LaplaceOrGaussian):
    """A mechanism that draws from the posterior of a model by NUTS where there is no
    faster way.
    """

    # public; by default the table's, or under add-remove what the mechanism says
    n_records: int | None = None
    # whose: nutpie's, PyMC's own, or numpyro's or blackjax's if they are installed
    nuts: Sampler = "auto"
    draws: int = 1_000  # of NUTS, as what follows
    tune: int = 1_000
    n_chains: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.nuts, SAMPLERS, "nuts")
        for name in ("draws", "tune", "n_chains"):
            check_whole(getattr(self, name), name)
        # Chains run after the charge, which couldn't be redeemed with such a setting.
        check_tuning(self.tune)
