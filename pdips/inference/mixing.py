"""Posterior mixing: the analyst's own posteriors, one a set, pooled into one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.errors import InputError

Draws = NDArray[Any]


def mix(posteriors: Sequence[Any]) -> Any:
    """Pool draws of the posteriors that an analyst has from each set, with equal weights.

    Parameters
    ----------
    posteriors : sequence of array_like, of dict of array_like, or of DataTree or Dataset
        One a set, all of one kind. Arrays have draws first. A DataTree gives its ``posterior`` group; trees and
        Datasets have dimensions ``chain`` and ``draw``, as ArviZ has them.

    Returns
    -------
    ndarray, dict of ndarray, or DataTree
        Draws of the mixture, set after set; a DataTree with the one group ``posterior`` and one chain (R-hat over sets
        means nothing: check each set's own). Where sets have different numbers of draws, each gives as many as the
        least has, evenly spread over its own.

    Raises
    ------
    InputError
        If there are fewer than two posteriors, they are of different kinds, or their parameters or shapes differ.

    Notes
    -----
    Räisä, Jälkö and Honkela (2023): if the sets are posterior predictive draws given one release (``modips``,
    ``split="once"``, noise-aware), the analyst's model agrees with the one that made them, and **each set is much
    larger than the original**, the mixture tends to the posterior given the release. Sets as large as the original
    make it up to 1.73 times too wide (``docs/inference.md#mixing-posteriors``): use :func:`combine` with
    ``"posterior-predictive"`` there.

    Examples
    --------
    >>> import xarray as xr
    >>> draws = [xr.Dataset({"mean": (("chain", "draw"), np.full((2, 5), each))}) for each in (0.0, 1.0)]
    >>> float(mix([xr.DataTree.from_dict({"posterior": each}) for each in draws])["posterior"]["mean"].mean())
    0.5
    """
    items = list(posteriors)
    if len(items) < 2:
        raise InputError("mixing pools the posteriors of at least 2 sets; one set's posterior stays as it is")
    trees = [hasattr(one, "data_vars") or hasattr(one, "children") for one in items]
    dicts = [isinstance(one, Mapping) and not tree for one, tree in zip(items, trees, strict=True)]
    if len({*zip(trees, dicts, strict=True)}) > 1:
        raise InputError("posteriors must all be of one kind: arrays, dicts of arrays, or DataTrees")
    if all(trees):
        return _trees(items)
    if not all(dicts):
        return _pool([np.asarray(one) for one in items], "posteriors")
    named = [{name: np.asarray(value) for name, value in one.items()} for one in items]
    _same_names([list(one) for one in named])
    for one in named:
        if len({len(value) if value.ndim else -1 for value in one.values()}) != 1:
            raise InputError("all parameters of one posterior need the same number of draws, and at least one")
    return {name: _pool([one[name] for one in named], name) for name in named[0]}


def _same_names(names: list[list[str]]) -> None:
    if not names[0] or any({*each} != {*names[0]} for each in names):
        raise InputError("every posterior must have the same parameters")


def _pool(draws: list[Draws], name: str) -> Draws:
    if any(one.ndim < 1 or not len(one) for one in draws) or len({one.shape[1:] for one in draws}) > 1:
        raise InputError(f"{name} must have draws first, at least one, and the same shape in every posterior")
    least = min(len(one) for one in draws)
    return np.concatenate([one[np.arange(least) * len(one) // least] for one in draws])


def _trees(items: list[Any]) -> Any:
    import xarray as xr

    groups = []
    for one in items:
        if isinstance(one, xr.DataTree):
            if "posterior" not in one.children:
                raise InputError("a DataTree needs a group posterior to be mixed")
            one = one["posterior"].to_dataset()
        if not isinstance(one, xr.Dataset) or not {"chain", "draw"} <= {*map(str, one.dims)}:
            raise InputError("a posterior must be a DataTree or Dataset with dimensions chain and draw")
        groups.append(one)
    _same_names([[str(name) for name in group.data_vars] for group in groups])
    pooled = {}
    for name in groups[0].data_vars:
        first = [group[name].transpose("chain", "draw", ...) for group in groups]
        flat = [each.to_numpy().reshape(-1, *each.shape[2:]) for each in first]
        pooled[name] = (first[0].dims, _pool(flat, str(name))[None])
    kept = {name: value for name, value in groups[0].coords.items() if not {"chain", "draw"} & {*value.dims}}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(pooled, coords=kept)})
