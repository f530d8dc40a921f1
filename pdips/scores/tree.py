"""What is published of the posterior of noisy sums: groups of an ArviZ tree, made of
noisy sums and public facts alone.

A model is described by its blueprint, which was built before any record was read. So
its names, dims and the labels of its coords come from the schema and from public
columns, as long as the model's own text holds no record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pdips.arrays import FloatArray
from pdips.posterior.columns import stand_ins
from pdips.posterior.inspection import tree_of
from pdips.posterior.model import PUBLIC_SEED, STAND_INS, Blueprint, split
from pdips.posterior.streams import draws_by_name
from pdips.release.public_draws import (
    MISFIT,
    MISFIT_BY,
    REFERENCE_APART,
    kept_every,
    sample_stats,
)
from pdips.release.tree import stored_name
from pdips.scores.column_cells import ColumnCells
from pdips.scores.noisy_likelihood import Measurement, NoisySums, prior_model
from pdips.scores.posterior import PosteriorDraws, attempt, with_deterministics
from pdips.scores.published import parameter_labels
from pdips.scores.sums import Linearised, MeasuredSums, regular

# Draws of the prior, and at which noisy numbers are predicted, in the file
PRIOR_DRAWS = 1_000
PREDICTED = 400
MOST_PREDICTED = 1_000_000  # Numbers of a group of predictions
LEAST_PREDICTED = 50
CHAINS = 4  # Of independent draws
TABLE_DRAWS = 4_000  # Of the estimate that a table gives without noise
SAMPLE = ("chain", "draw")
# Of the log-likelihood of a count, between draws: below it the draws say nothing of it
LEAST_TOLD = 1e-6
COUNTS = "counts"
SCORES = "scores_{}"
CELL = "cell"
# What the posterior group says of its draws
ABOUT = ("effective", "pareto_k", MISFIT, MISFIT_BY, REFERENCE_APART)
PARAMETER = "parameter"

Labels = Mapping[str, NDArray[Any]]


def labels_of(space: Blueprint) -> Labels:
    """Return the labels of a model's dims, of those that records don't move."""
    made: Labels = space.tried.once("labels of dims", lambda: _labels_of(space))
    return made


def _labels_of(space: Blueprint) -> Labels:
    # A label that is another one on other stand-ins would be a record's on a table.
    several = space.build(stand_ins(space.schema, STAND_INS)).coords
    labels = {}
    for dim, names in space.model.coords.items():
        if names is not None and several.get(dim) == names:
            labels[dim] = _as_labels(names)
    return labels


def _as_labels(names: Sequence[Any]) -> NDArray[Any]:
    """Return labels as a file can hold them: numbers as such, all else as text."""
    labels = np.array([*names])
    if labels.ndim == 1 and labels.dtype.kind in "iuf":
        return labels
    return np.array([str(name) for name in names], dtype=np.str_)


@dataclass(frozen=True, eq=False)
class Dressing:
    """The dims of a model's variables, with their labels."""

    dims: Mapping[str, Sequence[str | None]]
    labels: Labels
    # what the author calls a variable or a dim
    outside: Callable[[str], str] = str

    @classmethod
    def of(cls, space: Blueprint) -> "Dressing":
        """Return those of a model."""
        return cls(space.model.named_vars_to_dims, labels_of(space), space.outside)

    def dataset(self, draws: Mapping[str, NDArray[Any]]) -> xr.Dataset:
        """Return draws, shape (chains, draws, ...) each, with dims and labels."""
        variables = {}
        coordinates = dict[str, NDArray[Any]]()
        n_chains = 1
        n_draws = 0
        for name, values in draws.items():
            n_chains, n_draws = values.shape[:2]
            dims = self._dims_of(name, values.shape[2:])
            for dim, size in zip(dims, values.shape[2:], strict=True):
                labels = self.labels.get(dim, np.arange(size))
                is_labelled = len(labels) == size
                outside = self.outside(dim)
                coordinates[outside] = labels if is_labelled else np.arange(size)
            named = (*SAMPLE, *map(self.outside, dims))
            variables[stored_name(self.outside(name))] = (named, values)
        coordinates["chain"] = np.arange(n_chains)
        coordinates["draw"] = np.arange(n_draws)
        return xr.Dataset(variables, coordinates)

    def _dims_of(self, name: str, shape: tuple[int, ...]) -> list[str]:
        known = self.dims.get(name) or [None] * len(shape)
        if len(known) != len(shape):
            known = [None] * len(shape)
        return [
            dim or f"{stored_name(name)}_dim_{number}"
            for number, dim in enumerate(known)
        ]


def with_dims(space: Blueprint, draws: PosteriorDraws) -> PosteriorDraws:
    """Return posterior draws with the dims and labels of a blueprint's model, whose
    names they keep.
    """
    dataset = draws.tree["posterior"].to_dataset()
    arrays = {
        str(name): array.transpose(*SAMPLE, ...).to_numpy()
        for name, array in dataset.data_vars.items()
    }
    dressing = Dressing(space.model.named_vars_to_dims, labels_of(space))
    groups = {"posterior": dressing.dataset(arrays)}
    if "sample_stats" in draws.tree.children:
        groups["sample_stats"] = draws.tree["sample_stats"].to_dataset()
    return replace(draws, tree=xr.DataTree.from_dict(groups))


def published_posterior(
    draws: PosteriorDraws, outside: Callable[[str], str] = str
) -> xr.Dataset:
    """Return the posterior draws that go into the file, and what their weights are
    worth; ``outside`` is what the author calls a variable or a dim.

    Independent draws are four chains, so that these can be compared.
    """
    dataset = draws.tree["posterior"].to_dataset()
    variables = {}
    coordinates = dict[str, Any]()
    n_chains = 1
    n_draws = 0
    for name, values in draws_by_name(draws.tree).items():
        dims = [str(dim) for dim in dataset[name].dims if dim not in SAMPLE]
        kept = by_chain(draws, values)
        n_chains, n_draws = kept.shape[:2]
        named = (*SAMPLE, *map(outside, dims))
        variables[stored_name(outside(name))] = (named, kept)
        coordinates |= {outside(dim): np.asarray(dataset[dim]) for dim in dims}
    coordinates["chain"] = np.arange(n_chains)
    coordinates["draw"] = np.arange(n_draws)
    about = {}
    for name in ABOUT:
        value = draws.facts["noisy_sums"][name]
        if value is not None:
            about[name] = value
    return xr.Dataset(variables, coordinates, about)


def table_draws(sums: MeasuredSums, rng: np.random.Generator) -> xr.Dataset:
    """Return what the last noisy sums say of the estimate that the table itself gives,
    as draws: nothing but their noise lies between.

    Neither the prior nor the sampling of records enters. The noise is taken as normal,
    the sums as linear near their most probable parameters.
    """
    last = sums.last_scores
    space = sums.space
    here = last.precise(last.mode(last.last_reference).place)
    precise = np.linalg.solve(regular(here.noise), here.slopes)
    covariance = np.linalg.inv(here.slopes.T @ precise)
    place = here.place + covariance @ (precise.T @ here.residual)
    root = np.linalg.cholesky(regular(covariance))
    places = place + rng.standard_normal((TABLE_DRAWS, len(place))) @ root.T
    tree = tree_of(space.values_of(places))
    tree = attempt(with_deterministics, sums, here, tree) or tree
    draws = PosteriorDraws(places, tree, {"noisy_sums": dict.fromkeys(ABOUT)})
    return published_posterior(with_dims(space, draws), space.outside)


def prior_draws(space: Blueprint) -> xr.Dataset:
    """Return two draws of the prior with all that the posterior has, named alike."""
    places = space.prior[:2]
    tree = tree_of(space.values_of(places))
    model = prior_model(space)
    if model.deterministics:
        found = pm.compute_deterministics(
            tree["posterior"].to_dataset(),
            model=model,
            extend_dataset=True,
            progressbar=False,
        )
        tree = xr.DataTree.from_dict({"posterior": found.drop_attrs()})
    draws = PosteriorDraws(places, tree, {"noisy_sums": dict.fromkeys(ABOUT)})
    return published_posterior(with_dims(space, draws), space.outside)


def by_chain(draws: PosteriorDraws, values: NDArray[Any]) -> NDArray[Any]:
    """Return what belongs to the draws of chains one after the other, for those draws
    that go into the file: shape (chains, draws, ...).
    """
    n_chains = draws.tree["posterior"].sizes["chain"]
    if n_chains == 1 and len(values) % CHAINS == 0:
        n_chains = CHAINS
    return values.reshape(n_chains, -1, *values.shape[1:])[:, :: kept_every(draws.tree)]


def public_groups(
    sums: NoisySums, here: Linearised | None, draws: PosteriorDraws
) -> dict[str, xr.Dataset]:
    """Return the other groups, by path; what can't be made is left out, for the release
    is paid for.

    ``prior``; ``log_prior`` at posterior draws, by variable; ``log_likelihood``, one
    number for each answer, given the answers before; ``noisy_statistics``: noisy
    numbers as the posterior predicts them; ``observed_data``: as they are;
    ``sample_stats`` of NUTS, where it drew; and
    ``margins``, a tree of its own for the leave-one-out of counts: see
    :func:`leave_one_out`.
    """
    groups = dict[str, xr.Dataset | None]()
    places = by_chain(draws, draws.places)
    groups["prior"] = attempt(prior_group, sums.space)
    groups["log_prior"] = attempt(log_prior_group, sums.space, places)
    groups["observed_data"] = observed(sums)
    groups["sample_stats"] = sample_stats(draws.tree)
    if here is not None:
        groups["log_likelihood"] = attempt(_log_likelihood, sums, here, places)
        some = few(places, len(sums.noisy))
        groups["noisy_statistics"] = attempt(_predicted, sums, here, some)
        groups |= attempt(leave_one_out, sums, here, some) or {}
    return {path: group for path, group in groups.items() if group is not None}


def few(places: FloatArray, n_sums: int) -> FloatArray:
    """Return some draws, as far apart as they can be, at which numbers are
    predicted.
    """
    affordable = max(min(PREDICTED, MOST_PREDICTED // n_sums), LEAST_PREDICTED)
    n_chains, n_draws, _ = places.shape
    wanted = min(max(affordable // n_chains, 2), n_draws)
    return places[:, np.linspace(0, n_draws - 1, wanted).astype(int)]


def _values(space: Blueprint, places: FloatArray) -> xr.Dataset:
    """Return the free variables at parameters, (chains, draws, parameters)."""
    flat = places.reshape(-1, places.shape[-1])
    drawn = tree_of(space.values_of(flat))["posterior"].to_dataset()
    arrays = {}
    for name, array in drawn.data_vars.items():
        values = array.to_numpy()[0]
        arrays[str(name)] = values.reshape(*places.shape[:2], *values.shape[1:])
    return Dressing.of(space).dataset(arrays)


def prior_group(space: Blueprint) -> xr.Dataset:
    """Return draws from the prior."""
    return _values(space, space.prior[None, :PRIOR_DRAWS])


def log_prior_group(space: Blueprint, places: FloatArray) -> xr.Dataset:
    """Return the log prior density of each free variable at some parameters."""
    flat = places.reshape(-1, places.shape[-1])
    function = log_priors(space.model)
    rows = zip(*split(space.model, flat), strict=True)
    by_variable = zip(*(function(*row) for row in rows), strict=True)
    arrays = {}
    names = [variable.name for variable in space.model.free_RVs]
    for name, values in zip(names, by_variable, strict=True):
        stacked = np.stack(values)
        arrays[name] = stacked.reshape(*places.shape[:2], *stacked.shape[1:])
    return Dressing.of(space).dataset(arrays)


@lru_cache(maxsize=16)
def log_priors(model: pm.Model) -> Any:
    """Return what works out the log prior density of each free variable, in its own
    units, at the value variables.
    """
    terms = model.logp(vars=model.free_RVs, jacobian=False, sum=False)
    return model.compile_fn(
        terms, inputs=model.value_vars, point_fn=False, mode="FAST_COMPILE"
    )


def _numbered(sums: NoisySums) -> Iterator[tuple[str, str, Measurement, slice]]:
    """Yield the name and dim of each answer, the answer, and where its numbers are."""
    first = 0
    for number, measured in enumerate(sums.measurements):
        here = slice(first, first + len(measured.noisy))
        first = here.stop
        is_counts = isinstance(measured.question, ColumnCells)
        name = COUNTS if is_counts else SCORES.format(number)
        yield name, CELL if is_counts else PARAMETER, measured, here


def observed(sums: NoisySums) -> xr.Dataset:
    """Return the noisy numbers as they are published, with the law of their noise."""
    law = "discrete Laplace" if sums.laplace else "discrete Gaussian"
    variables = {}
    for name, dim, measured, _ in _numbered(sums):
        about = {
            "long_name": measured.step,
            "units": "records" if name == COUNTS else "whitened scores",
            "noise": law,
            "standard_deviation": measured.deviation,
        }
        variables[name] = (dim, measured.noisy, about)
    about = {
        "records": sums.n_records,
        "standard_deviation_of_records": float(np.sqrt(sums.n_variance)),
    }
    return xr.Dataset(variables, _coordinates(sums), about)


def _coordinates(sums: NoisySums) -> dict[str, Any]:
    """Return the labels of cells, with their bounds, and those of parameters."""
    coordinates: dict[str, Any] = {PARAMETER: parameter_labels(sums.space)}
    for _, dim, measured, _ in _numbered(sums):
        cells = measured.question
        if isinstance(cells, ColumnCells):
            coordinates[dim] = [*cell_labels(cells)]
            edges = cells.edges.values()
            lower = np.concatenate([each[:-1] for each in edges])
            upper = np.concatenate([each[1:] for each in edges])
            coordinates["lower"] = (dim, lower)
            coordinates["upper"] = (dim, upper)
    return coordinates


def cell_labels(cells: ColumnCells) -> Iterator[str]:
    """Yield what cells are called: ``sex[male]``, ``pay[0, 250)``."""
    for name, edges in cells.edges.items():
        column = cells.columns[name]
        is_by_level = column.is_categorical and len(edges) == column.n_levels + 1
        levels = column.names() if is_by_level else []
        for number, (lower, upper) in enumerate(pairwise(edges)):
            within = f"{lower:.6g}, {upper:.6g})"
            if is_by_level:
                within = f"{levels[number]}]"
            yield f"{name}[{within}"


def _moves(here: Linearised, places: FloatArray) -> FloatArray:
    """Return how far parameters are from the place of a linearisation, a row each."""
    return np.asarray(places.reshape(-1, places.shape[-1]) - here.place)


def _predicted(sums: NoisySums, here: Linearised, places: FloatArray) -> xr.Dataset:
    """Return noisy numbers simulated at posterior draws: exact sums are normal, and
    noise is of its own law.
    """
    rng = np.random.default_rng(PUBLIC_SEED)
    root = np.linalg.cholesky(regular(here.sampling + here.other_noise))
    expected = sums.noisy - here.residual + _moves(here, places) @ here.slopes.T
    simulated = expected + rng.standard_normal(expected.shape) @ root.T
    # noise of predictions, by quantiles: it protects nothing
    quantiles = rng.uniform(-0.5, 0.5, expected.shape)
    scale = np.sqrt(here.laplace / 2)
    simulated -= scale * np.sign(quantiles) * np.log1p(-2 * np.abs(quantiles))
    return _of_answers(sums, simulated.reshape(*places.shape[:2], -1))


def _of_answers(sums: NoisySums, values: FloatArray) -> xr.Dataset:
    """Return numbers, shape (chains, draws, sums), by answer."""
    variables = {}
    for name, dim, measured, part in _numbered(sums):
        about = {"long_name": measured.step}
        variables[name] = ((*SAMPLE, dim), values[:, :, part], about)
    return xr.Dataset(variables, {**_sample(values), **_coordinates(sums)})


def _sample(values: FloatArray) -> dict[str, NDArray[Any]]:
    """Return the coordinates of draws, shape (chains, draws, ...)."""
    return {"chain": np.arange(len(values)), "draw": np.arange(values.shape[1])}


def _log_likelihood(
    sums: NoisySums, here: Linearised, places: FloatArray
) -> xr.Dataset:
    """Return the log-likelihood of each answer as a whole, given the answers before,
    noise being taken as normal.

    Numbers of one answer are sums over the same records, so there is no pointwise
    likelihood of theirs, and ``arviz.loo`` refuses several variables.
    """
    slopes, residual, _ = here.whitened
    residuals = residual - _moves(here, places) @ slopes.T
    root = np.linalg.cholesky(regular(here.sampling + here.noise))
    terms = -(residuals**2) / 2 - np.log(np.diag(root)) - np.log(2 * np.pi) / 2
    shaped = terms.reshape(*places.shape[:2], -1)
    variables = {}
    for name, _, measured, part in _numbered(sums):
        summed = shaped[:, :, part].sum(axis=2)
        variables[name] = (SAMPLE, summed, {"long_name": measured.step})
    return xr.Dataset(variables, _sample(places))


def leave_one_out(
    sums: NoisySums, here: Linearised, places: FloatArray
) -> dict[str, xr.Dataset]:
    """Return a tree for the leave-one-out of noisy counts, each of which has noise of
    its own: the groups that ``arviz.loo`` and ``arviz.loo_pit`` read.

    The counts of a column are of the same records, so a count is left out of a joint
    normal distribution: its likelihood and its prediction at a draw are those given all
    other noisy numbers (Bürkner, Gabry and Vehtari 2021). Noise is taken as normal. A
    cell that is as likely at all draws, such as an empty one far out, is left out.
    """
    rng = np.random.default_rng(PUBLIC_SEED + 1)
    residuals = here.residual - _moves(here, places) @ here.slopes.T
    factor = cho_factor(regular(here.sampling + here.noise), lower=True)
    precision = cho_solve(factor, np.eye(len(here.residual)))
    variances = 1 / np.diag(precision)
    off = residuals @ precision * variances
    terms = -(off**2) / (2 * variances) - np.log(2 * np.pi * variances) / 2
    noise = rng.standard_normal(off.shape) * np.sqrt(variances)
    shape = (*places.shape[:2], -1)
    likely = _of_answers(sums, terms.reshape(shape))[COUNTS]
    predicted = _of_answers(sums, (sums.noisy - off + noise).reshape(shape))
    is_told = np.ptp(likely.to_numpy(), axis=(0, 1)) > LEAST_TOLD
    told = {CELL: np.flatnonzero(is_told)}
    groups = {
        "log_likelihood": likely.to_dataset(),
        "posterior_predictive": predicted[[COUNTS]],
        "observed_data": observed(sums)[[COUNTS]],
    }
    return {
        "margins/posterior": _values(sums.space, places),
        **{f"margins/{name}": group.isel(told) for name, group in groups.items()},
    }
