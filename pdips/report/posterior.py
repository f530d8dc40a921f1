"""The pictures of a posterior on the curator's report, from ``diagnostics.zarr``: all of it confidential."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.report import bounds as drawing
from pdips.report.facts import PosteriorFacts

if TYPE_CHECKING:
    import xarray as xr

MOST_PARAMETERS = 12
MOST_COLUMNS = 6
MOST_DOTS = 2_000
DOT_SEED = 4


@dataclass(frozen=True, eq=False)
class Stored:
    """Bounds as they were stored: of some records, and by draw."""

    largest: NDArray[Any]
    limit: float | None
    share_by_draw: NDArray[Any]


def pictures(path: Path, facts: PosteriorFacts | None) -> dict[str, list[tuple[str, str]]]:
    """Return titles and pictures: of ``parameters``, and of ``bounds``; none where nothing was stored.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    if facts is None or not path.is_dir():
        return {"parameters": [], "bounds": []}
    import xarray as xr

    try:
        with xr.open_datatree(path, engine="zarr", consolidated=False) as opened:
            tree = opened.load()
        return {"parameters": _parameters(tree, facts), "bounds": _bounds(tree)}
    except (OSError, KeyError, ValueError, RuntimeError, StopIteration):
        raise InputError(f"{path} is damaged") from None


def _parameters(tree: "xr.DataTree", facts: PosteriorFacts) -> list[tuple[str, str]]:
    posterior, found = tree["posterior"].to_dataset(), []
    arrays = {str(name): array.transpose("chain", "draw", ...).to_numpy() for name, array in posterior.items()}
    elements = {name: iter(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)) for name, array in arrays.items()}
    for place, parameter in enumerate(facts.parameters[:MOST_PARAMETERS]):
        draws = next(elements[parameter.name.partition("[")[0]])
        released = [value for value in parameter.released if value is not None]
        found.append(
            (parameter.name, drawing.draws_of_parameter(draws, released, parameter.name, f"parameter {place}"))
        )
    return found


def _bounds(tree: "xr.DataTree") -> list[tuple[str, str]]:
    if "pdips" not in tree.children:
        return []
    group, found = tree["pdips"].to_dataset(), []
    kept = _some(group["largest"].to_numpy())
    shares = group["share_by_draw"].to_numpy() if "share_by_draw" in group else np.zeros((1, 0))
    limit = float(group.attrs["limit"]) if "limit" in group.attrs else None
    stored = Stored(group["largest"].to_numpy()[kept], limit, shares)
    columns = [str(name) for name in group.data_vars if str(name).startswith("value_")]
    for name in columns[:MOST_COLUMNS]:
        values = group[name].to_numpy()[kept]
        title = name.removeprefix("value_")
        found.append((f"bound against {title}", drawing.bound_against_value(stored, values, title, f"bound {name}")))
    if "weights" in group:
        for name in columns[:MOST_COLUMNS]:
            values, title = group[name].to_numpy()[kept], name.removeprefix("value_")
            weights = group["weights"].to_numpy()[kept]
            picture = drawing.weights_against_value(weights, values, title, f"weight {name}")
            found.append((f"weight against {title}", picture))
    if shares.size:
        found.append(("records cut off, by draw", drawing.censored_by_draw(stored, "censored")))
    return found


def _some(largest: NDArray[Any]) -> NDArray[np.int64]:
    """Return which records are drawn: all, or some with the one whose bound is largest."""
    if len(largest) <= MOST_DOTS:
        return np.arange(len(largest))
    chosen = np.random.default_rng(DOT_SEED).choice(len(largest), MOST_DOTS - 1, replace=False)
    return np.unique(np.append(chosen, np.argmax(largest)))
