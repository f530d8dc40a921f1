"""What is published of models fitted to noisy statistics: groups of an ArviZ tree, made
of noisy statistics and public facts alone.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from pdips.release.public_draws import PublicDraws, kept_every, sample_stats
from pdips.release.tree import stored_name
from pdips.statistics.fitted_model import FittedModel
from pdips.statistics.plan import NoisyStatistics, to_frame

OTHERS = "fits"  # The group of fits where there are several


def published_posteriors(fits: Sequence[FittedModel], heaviest: int) -> PublicDraws:
    """Return what is published of fits, of which one is the tree's own; of several, all
    are groups ``fits/1/posterior``, ``fits/2/posterior``, ...
    """
    fitted = fits[heaviest]
    groups = {"observed_data": observed(fitted.measured)}
    steps = sample_stats(fitted.posterior.tree)
    if steps is not None:
        groups["sample_stats"] = steps
    if len(fits) > 1:
        for number, other in enumerate(fits, start=1):
            path = f"{OTHERS}/{number}"
            about = {"model": other.source.name}
            groups[path] = xr.Dataset(attrs=about)
            groups[f"{path}/posterior"] = _posterior(other)
            groups[f"{path}/observed_data"] = observed(other.measured)
    return PublicDraws(_posterior(fitted), fitted.sampler, lambda: groups)


def _posterior(fitted: FittedModel) -> xr.Dataset:
    """Return the draws of a fit, with what a file takes of names and labels."""
    dataset = fitted.posterior.tree["posterior"].to_dataset().drop_attrs()
    dataset = dataset.isel(draw=slice(None, None, kept_every(fitted.posterior.tree)))
    for dim in dataset.dims:
        size = dataset.sizes[dim]
        labels = np.asarray(dataset.coords[dim]) if dim in dataset.coords else None
        if labels is None:
            dataset = dataset.assign_coords({dim: np.arange(size)})
        elif labels.dtype.kind not in "iuf":
            dataset = dataset.assign_coords({dim: [str(label) for label in labels]})
    return dataset.rename(
        {name: stored_name(str(name)) for name in dataset.data_vars}
    ).assign_attrs(model=fitted.source.name)


def observed(measured: NoisyStatistics) -> xr.Dataset:
    """Return noisy statistics as their table has them, with the law of their noise."""
    variables = {}
    coordinates = {}
    for name, rows in to_frame(measured).groupby("statistic", sort=False):
        stored = stored_name(str(name))
        dim = f"{stored}_cell"
        about = {
            "long_name": str(name),
            "noise": str(rows["noise"].iloc[0]),
            "standard_deviation": float(rows["standard_deviation"].iloc[0]),
        }
        variables[stored] = (dim, rows["noisy"].to_numpy(float), about)
        coordinates[dim] = [str(cell) for cell in rows["cell"]]
    return xr.Dataset(variables, coordinates)
