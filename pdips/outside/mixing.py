"""A PyMC model of the analyst's own, fitted to each synthetic set, and its draws mixed
by the rule that combines the sets.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.stats import rankdata

from pdips.arrays import FloatArray
from pdips.convergence import converged
from pdips.errors import InputError, UselessWarning
from pdips.inference.combine import combine
from pdips.inference.rules import Rule, nearest_rule
from pdips.release.opening import PublishedRelease

# Levels of intervals at which the law of a rule is worked out; between them it is
# interpolated
N_LEVELS = 100
# Means and variances are averaged over the sets, so that chains of each need agree less
# than those of one posterior
MOST_RHAT = 1.05
UNCONSTRAINED = "unconstrained_posterior"


@dataclass(frozen=True, kw_only=True, eq=False)
class SetPosterior:
    """The draws of a model on one synthetic set."""

    model: pm.Model
    tree: xr.DataTree

    @classmethod
    def of(
        cls,
        make: Callable[[pd.DataFrame], pm.Model],
        frame: pd.DataFrame,
        settings: Mapping[str, Any],
    ) -> "SetPosterior":
        model = make(frame.copy())
        if not isinstance(model, pm.Model):
            raise InputError(
                f"make must return a pm.Model, and returned {type(model).__name__}"
            )
        kept = {"include_transformed": True}
        with model:
            tree = pm.sample(
                **settings, idata_kwargs=kept, compute_convergence_checks=False
            )
        return cls(model=model, tree=tree)

    @property
    def posterior(self) -> xr.Dataset:
        return self.tree["posterior"].to_dataset()

    def values(self, name: str) -> FloatArray:
        """Return the draws of a variable, or of what stands for a free one on the whole
        line, shape (draws, ...).
        """
        has_own = UNCONSTRAINED in self.tree.children
        group = self.posterior
        if has_own and name in self.tree[UNCONSTRAINED].data_vars:
            group = self.tree[UNCONSTRAINED].to_dataset()
        array = group[name].transpose("chain", "draw", ...).to_numpy()
        return np.asarray(array.reshape(-1, *array.shape[2:]), dtype=np.float64)


def mix(
    public: PublishedRelease,
    make: Callable[[pd.DataFrame], pm.Model],
    **settings: Any,
) -> xr.DataTree:
    """Fit a model to each set, and mix the draws: see
    :meth:`pdips.release.opening.PublishedRelease.mix`.
    """
    rule, warning = nearest_rule(public.home)
    if warning:
        warnings.warn(warning, UselessWarning, 3)
    settings = {"progressbar": False, "quiet": True} | settings
    fits = [SetPosterior.of(make, frame, settings) for frame in public.sets]
    _check_alike(fits)
    n_apart = sum(converged(fit.tree).largest_rhat > MOST_RHAT for fit in fits)
    if n_apart:
        warnings.warn(
            f"chains didn't converge for {n_apart} of {len(fits)} sets: take more "
            f"tuning and draws, or another parametrisation",
            UselessWarning,
            3,
        )
    first = fits[0]
    free = [variable.name for variable in first.model.free_RVs]
    mixed = _free_variables(fits, rule)
    for name in first.posterior.data_vars:
        if name not in free:
            mixed[str(name)] = mixed_draws(
                [fit.values(str(name)) for fit in fits], rule
            )
    dataset = _like(first.posterior, mixed, len(fits))
    dataset.attrs |= {"rule": rule, "n_sets": len(fits), "converged": int(not n_apart)}
    return xr.DataTree.from_dict({"posterior": dataset})


def _check_alike(fits: Sequence[SetPosterior]) -> None:
    """Refuse models whose variables aren't the same for all sets."""
    first = fits[0].posterior
    for fit in fits[1:]:
        own = fit.posterior
        if {*own.data_vars} != {*first.data_vars}:
            raise InputError("make returns other variables for some sets")
        for name, array in first.data_vars.items():
            same_shape = own[name].shape == array.shape
            if not same_shape or not all(
                own[name][dim].equals(array[dim]) for dim in array.dims
            ):
                raise InputError(
                    f"{name!r} has another shape or other labels for some sets, as "
                    f"where a set lacks a level: take levels from the schema, as in "
                    f"pd.Categorical(df['region'], ['north', 'south'])"
                )


def _free_variables(fits: Sequence[SetPosterior], rule: Rule) -> dict[str, FloatArray]:
    """Return mixed draws of the free variables: on the whole line, where a law that is
    symmetric fits a standard deviation or a share better, and then taken back.
    """
    model = fits[0].model
    values = [variable.name for variable in model.value_vars]
    names = [variable.name for variable in model.free_RVs]
    outputs = [each for each in model.unobserved_value_vars if each.name in names]
    back = model.compile_fn(outputs, inputs=model.value_vars, point_fn=False)
    mixed = [mixed_draws([fit.values(name) for fit in fits], rule) for name in values]
    taken_back = [back(*draw) for draw in zip(*mixed, strict=True)]
    return {
        output.name: np.stack([draw[place] for draw in taken_back])
        for place, output in enumerate(outputs)
    }


def mixed_draws(by_set: Sequence[FloatArray], rule: Rule) -> FloatArray:
    """Return draws of numbers by the law that the rule gives each of them.

    Parameters
    ----------
    by_set : sequence of ndarray, shape (draws, ...)
        Of each set.
    rule : str

    Returns
    -------
    ndarray, shape (sets x draws, ...)
        Each number has the law of the rule: its centre, and its quantiles about it. The
        ranks are those of the sets' draws about their means, so that numbers go
        together as in the sets' posteriors.
    """
    draws = np.stack(by_set)
    shape = draws.shape
    flat = draws.reshape(shape[0], shape[1], -1)
    means = flat.mean(axis=1)
    combined = combine(means, flat.var(axis=1), rule=rule)
    centred = (flat - means[:, None]).reshape(-1, flat.shape[2])
    n = len(centred)
    # how far from the middle, from -1 to 1
    ranks = (rankdata(centred, axis=0) - 0.5) / n * 2 - 1
    levels = np.append(0.0, 1 - np.geomspace(0.99, 0.5 / n, N_LEVELS))
    halves = np.stack([combined.half_width(level) for level in levels[1:]])
    halves = np.vstack([np.zeros((1, halves.shape[1])), halves])
    off = [
        np.interp(np.abs(ranks[:, k]), levels, halves[:, k])
        for k in range(ranks.shape[1])
    ]
    mixed = combined.estimate + np.sign(ranks) * np.stack(off, axis=1)
    return np.asarray(mixed.reshape(-1, *shape[2:]))


def _like(posterior: xr.Dataset, mixed: Mapping[str, FloatArray], n_sets: int) -> Any:
    """Return mixed draws with the dims and labels of a posterior, a chain for each
    set.
    """
    arrays = {}
    coords = dict[Any, Any]()
    for name, array in posterior.data_vars.items():
        values = mixed[str(name)]
        dims = [dim for dim in array.dims if dim not in ("chain", "draw")]
        shaped = values.reshape(n_sets, -1, *values.shape[1:])
        arrays[name] = (["chain", "draw", *dims], shaped)
        coords |= {dim: posterior[dim] for dim in dims}
    return xr.Dataset(arrays, coords)
