"""The pictures of a posterior on the curator's report, from the folder ``diagnostics``: all of it confidential."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import IntArray
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.posterior.model_file import stored_name
from pdips.release.documents import PosteriorSummary
from pdips.report import bounds as drawing
from pdips.report import chains, predicted

if TYPE_CHECKING:
    import xarray as xr

Pictures = list[tuple[str, str]]

MOST_PARAMETERS = 12
MOST_COLUMNS = 6
MOST_DOTS = 1_500
DOT_SEED = 4
FEWEST_RANKED = 20


@dataclass(frozen=True, eq=False)
class Stored:
    """Bounds as they were stored: of some records, and by draw."""

    largest: NDArray[Any]
    limit: float | None
    share_by_draw: NDArray[Any]


def write_tree(tree: "xr.DataTree", folder: Path) -> None:
    """Write the groups of a tree into a new folder, a netCDF file each, which needs no library beyond scipy.

    That library writes names in Latin letters only: others are quoted as in web addresses.
    """
    folder.mkdir(mode=0o700)
    for name, group in tree.children.items():
        dataset = group.to_dataset()
        kept = {key: array.astype(_classic(array)) for key, array in dataset.variables.items()}
        kept = {key: array for key, array in kept.items() if key in dataset.data_vars}
        _renamed(dataset.assign(kept), quote).to_netcdf(folder / f"{name}.nc", engine="scipy")


def read_tree(folder: Path) -> "xr.DataTree":
    """Return the tree that :func:`write_tree` wrote: confidential."""
    import xarray as xr

    held = {file.stem: xr.load_dataset(file, engine="scipy") for file in folder.glob("*.nc")}
    return xr.DataTree.from_dict({name: _renamed(dataset, unquote) for name, dataset in held.items()})


def _renamed(dataset: "xr.Dataset", spell: Callable[[str], str]) -> "xr.Dataset":
    """Return a dataset whose variables and dimensions are spelled anew, as far as they change."""
    names = {str(name) for name in (*dataset.variables, *dataset.dims) if not str(name).isascii() or "%" in str(name)}
    return dataset.rename({name: spell(name) for name in sorted(names)}) if names else dataset


def _classic(array: Any) -> Any:
    """Return a type that classic netCDF has."""
    if array.dtype.kind == "b":
        return np.int8
    if array.dtype.kind in "iu":
        return np.int32 if np.abs(array.values.astype(float)).max(initial=0) < 2**31 else np.float64
    return array.dtype


@dataclass(frozen=True, eq=False, kw_only=True)
class Looked:
    """What the report shows of a stored posterior: pictures by kind, titles with each, and BFMI by chain.

    Attributes
    ----------
    stored : bool
        Whether there was a folder of draws.
    parameters, ranks, energy, predicted, bounds : list of (str, str)
        Titles and pictures; none where nothing was stored or the kind doesn't apply.
    bfmi : list of float
        By chain; none where no energies were kept.
    """

    stored: bool = False
    parameters: Pictures = field(default_factory=list)
    ranks: Pictures = field(default_factory=list)
    energy: Pictures = field(default_factory=list)
    predicted: Pictures = field(default_factory=list)
    bounds: Pictures = field(default_factory=list)
    bfmi: list[float] = field(default_factory=list)


def look(path: Path, facts: PosteriorSummary | None, schema: Schema) -> Looked:
    """Read a folder ``diagnostics`` and draw what is in it.

    Columns that the model describes come before public ones. Folders of earlier versions lack some groups.

    Raises
    ------
    InputError
        If a file is damaged.
    """
    if facts is None or not path.is_dir():
        return Looked()
    try:
        tree = read_tree(path)
        draws = _draws(tree, facts)
        energy = chains.energies(tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else None)
        return Looked(
            stored=True,
            parameters=_parameters(draws, facts),
            ranks=_ranks(draws, facts),
            energy=[] if energy is None else [("energy", chains.energy_picture(energy, "energy"))],
            predicted=predicted.pictures(tree, facts, schema),
            bounds=_bounds(tree, schema),
            bfmi=[] if energy is None else chains.bfmi(energy),
        )
    except (OSError, KeyError, IndexError, TypeError, ValueError, RuntimeError, StopIteration):
        raise InputError(f"{path} is damaged") from None


def _draws(tree: "xr.DataTree", facts: PosteriorSummary) -> list[NDArray[Any]]:
    """Return the draws of the parameters that are drawn, (chains, draws) each."""
    posterior = tree["posterior"].to_dataset()
    arrays = {str(name): array.transpose("chain", "draw", ...).to_numpy() for name, array in posterior.items()}
    elements = {name: iter(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)) for name, array in arrays.items()}
    return [next(elements[parameter.name.partition("[")[0]]) for parameter in facts.parameters[:MOST_PARAMETERS]]


def _parameters(each: list[NDArray[Any]], facts: PosteriorSummary) -> Pictures:
    found = []
    for place, (draws, parameter) in enumerate(zip(each, facts.parameters, strict=False)):
        released = [value for value in parameter.released if value is not None]
        picture = drawing.draws_of_parameter(draws, released, parameter.name, f"parameter {place}")
        found.append((parameter.name, picture))
    return found


def _ranks(each: list[NDArray[Any]], facts: PosteriorSummary) -> Pictures:
    """Return pictures of chains' ranks; parameters that never move have none."""
    if facts.chains < 2 or not each or each[0].shape[1] < FEWEST_RANKED:
        return []
    known = [parameter.ess_bulk for parameter in facts.parameters[: len(each)] if parameter.ess_bulk is not None]
    stride = chains.stride(each[0].shape, min(known, default=None))
    return [
        (parameter.name, chains.rank_picture(draws, parameter.name, stride, f"ranks {place}"))
        for place, (draws, parameter) in enumerate(zip(each, facts.parameters, strict=False))
        if draws.std() > 0
    ]


def _bounds(tree: "xr.DataTree", schema: Schema) -> Pictures:
    if "pdips" not in tree.children:
        return []
    group, found = tree["pdips"].to_dataset(), []
    kept = _some(group["largest"].to_numpy())
    shares = group["share_by_draw"].to_numpy() if "share_by_draw" in group else np.zeros((1, 0))
    limit = float(group.attrs["limit"]) if "limit" in group.attrs else None
    stored = Stored(group["largest"].to_numpy()[kept], limit, shares)
    columns = sorted(schema.columns.items(), key=lambda item: item[1].public)[:MOST_COLUMNS]
    values = {_axis(name, column): group[stored_name(f"value_{name}")].to_numpy()[kept] for name, column in columns}
    for title, across in values.items():
        found.append((f"bound against {title}", drawing.bound_against_value(stored, across, title, f"bound {title}")))
    if "weights" in group:
        weights = group["weights"].to_numpy()[kept]
        for title, across in values.items():
            picture = drawing.weights_against_value(weights, across, title, f"weight {title}")
            found.append((f"weight against {title}", picture))
    if shares.size:
        found.append(("records cut off, by draw", drawing.censored_by_draw(stored, "censored")))
    return found


def _axis(name: str, column: Column) -> str:
    return f"{name} (number of the level)" if column.is_categorical else name


def _some(largest: NDArray[Any]) -> IntArray:
    """Return which records are drawn: all, or some with the one whose bound is largest."""
    if len(largest) <= MOST_DOTS:
        return np.arange(len(largest))
    chosen = np.random.default_rng(DOT_SEED).choice(len(largest), MOST_DOTS - 1, replace=False)
    return np.unique(np.append(chosen, np.argmax(largest)))
