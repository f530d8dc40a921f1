"""The tree of a release with a model: draws, the sets and the noisy numbers, as ArviZ
and xarray read them. One file, all of it public.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pdips.data.coding import numbers
from pdips.data.column import Column
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.release import VERSION
from pdips.release.documents import StatedLoss
from pdips.release.release import TREE_FILE, Release, RunRecord

# Numbers of the sets that the tree repeats; longer sets are in their own files alone
MOST_NUMBERS = 20_000_000
SHORT = 32_767  # The largest code that two bytes hold
PACKED = {"zlib": True, "complevel": 4, "shuffle": True}
# What is held beside a tree, in this process alone
HELD = "_pdips_held"


class HeldRun:
    """What a tree knows of the run that made it. It goes into no file, no copy and no
    pickle: a record of a run is confidential.
    """

    def __init__(self, release: Any = None, record: RunRecord | None = None) -> None:
        self.release = release
        self.record = record

    def __reduce__(self) -> tuple[type["HeldRun"], tuple[()]]:
        return HeldRun, ()


def hold(tree: xr.DataTree, release: Any, record: RunRecord | None) -> xr.DataTree:
    """Put a release, and the record of its run, beside a tree."""
    # no attribute of a DataTree, so that neither a copy nor a file takes it along
    object.__setattr__(tree, HELD, HeldRun(release, record))
    return tree


def public_tree(release: Release, record: RunRecord | None = None) -> xr.DataTree:
    """Return the tree of a release: groups of draws, sets and noisy numbers, all of
    them public.

    Parameters
    ----------
    release : Release
        Of a mechanism that publishes a posterior.
    record : RunRecord, optional
        Of its run: ``tree.pdips.record`` in this process. Nothing of it is in the tree.

    Returns
    -------
    xarray.DataTree
        Groups ``posterior``, ``posterior_predictive`` (the sets: ``draw`` numbers them)
        and, with public columns, ``constant_data``; others as the mechanism has them.

    Raises
    ------
    InputError
        If the mechanism publishes no posterior.

    Examples
    --------
    >>> schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    >>> table = Table(pd.DataFrame({"pay": [3.0, 4.0, 5.5] * 200}), schema)
    >>> release, record = Scores(epsilon=1, model="normal").release(table)
    >>> tree = public_tree(release, record)
    >>> tree["posterior_predictive"]["pay"].dims
    ('chain', 'draw', 'record')
    """
    draws = release.posterior_draws
    if draws is None:
        raise InputError(f"{release.mechanism} publishes no posterior")
    groups = {**draws.groups, **_groups_of_sets(release)}
    attributes = _attributes(release, draws.sampler)
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), **groups})
    return hold(tree, release, record)


def _attributes(release: Release, sampler: str) -> dict[str, Any]:
    """Return what a file says of its release: public facts that privacy.json states."""
    loss = StatedLoss.model_validate(release.loss)
    attributes = {
        "inference_library": "pdips",
        "inference_library_version": VERSION,
        "mechanism": release.mechanism,
        "release": release.identifier,
        "sampler": sampler,
        "statement": loss.statement,
        "epsilon": loss.epsilon,
        "delta": loss.delta,
        "neighbours": loss.neighbours,
        "kind": loss.kind,
    }
    if loss.rho:
        attributes["rho"] = loss.rho
    if release.receipt is not None:
        attributes["receipt"] = json.dumps(vars(release.receipt), sort_keys=True)
    return attributes


def _groups_of_sets(release: Release) -> dict[str, xr.Dataset]:
    """Return the sets as predictions of their columns, and the public columns beside
    them; nothing of sets that are too long to be repeated, or of several lengths, as
    where each has as many records as a draw of its own says.
    """
    schema = release.schema
    n_numbers = sum(frame.size for frame in release.sets)
    lengths = {len(frame) for frame in release.sets}
    if len(lengths) != 1 or n_numbers > MOST_NUMBERS:
        return {}
    tables = []
    for frame in release.sets:
        columns = frame[[*schema.columns]].reset_index(drop=True)
        tables.append(Table(columns, schema.without_person()))
    predicted = {}
    constant = {}
    for name, column in schema.columns.items():
        if column.public:
            values = _values(tables[0], name)
            constant[name] = ("record", values, _about(column))
        else:
            several = np.stack([_values(table, name) for table in tables])
            dims = ("chain", "draw", "record")
            predicted[name] = (dims, several[None], _about(column))
    coordinates = {"chain": [0], "draw": np.arange(len(tables))}
    groups = {"posterior_predictive": xr.Dataset(_stored(predicted), coordinates)}
    if constant:
        groups["constant_data"] = xr.Dataset(_stored(constant))
    return groups


def _stored(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables by the names that a file can hold."""
    return {stored_name(name): variable for name, variable in variables.items()}


def stored_name(variable: str) -> str:
    """Return what a variable is called in a stored tree, where a slash would end the
    name of a group.
    """
    return variable.replace("/", "\N{DIVISION SLASH}")


def _values(table: Table, name: str) -> NDArray[Any]:
    """Return a column of a set as numbers: those of the schema where its levels are
    numbers, codes of other levels, NaN where a number is missing.
    """
    column = table.schema.columns[name]
    if not column.is_categorical:
        values = numbers(name, table.frame[name], column)
        is_whole = column.integer and not np.isnan(values).any()
        return values.astype(np.int64) if is_whole else values
    codes = table.codes[name]
    if has_number_levels(column):
        levels = np.array(column.levels)
        if column.missing:
            levels = np.append(levels.astype(np.float64), np.nan)
        return levels[codes]
    return codes.astype(np.int16 if column.n_levels <= SHORT else np.int32)


def has_number_levels(column: Column) -> bool:
    """Whether all levels of a column are numbers, which a tree then has as such."""
    levels = column.levels or ()
    are_numbers = [
        isinstance(level, int | float) and not isinstance(level, bool)
        for level in levels
    ]
    return bool(are_numbers) and all(are_numbers)


def _about(column: Column) -> dict[str, Any]:
    """Return what is public of a column, as attributes: ``units``, ``long_name``, and
    the ``levels`` that codes number.
    """
    about: dict[str, Any] = {}
    if column.unit:
        about["units"] = column.unit
    if column.label:
        about["long_name"] = column.label
    if column.is_categorical and not has_number_levels(column):
        about["levels"] = column.names()
    return about


def write_tree(tree: xr.DataTree, path: Path) -> None:
    """Write a tree to a netCDF file; the same tree makes the same bytes."""
    encoding: dict[str, Any] = {}
    for node in tree.subtree:
        packed = {
            name: PACKED
            for name, array in node.data_vars.items()
            if array.ndim and array.dtype.kind in "iuf"
        }
        encoding[node.path] = packed
    tree.to_netcdf(path, engine="h5netcdf", encoding=encoding)


def read_tree(content: bytes) -> xr.DataTree:
    """Return the tree of a file, held in memory.

    Raises
    ------
    InputError
        If it is no netCDF file.
    """
    try:
        with xr.open_datatree(io.BytesIO(content), engine="h5netcdf") as opened:
            return opened.load()
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{TREE_FILE} is damaged: it is no netCDF file") from None


@xr.register_datatree_accessor("pdips")  # type: ignore[no-untyped-call]
class ReleaseAccessor:
    """``tree.pdips``: the release that a tree is of, and what follows from it.

    Examples
    --------
    >>> schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    >>> table = Table(pd.DataFrame({"pay": [3.0, 4.0, 5.5] * 200}), schema)
    >>> tree = public_tree(*Scores(epsilon=1, model="normal").release(table))
    >>> [len(frame) for frame in tree.pdips.more_sets(2)]
    [600, 600]
    """

    def __init__(self, tree: xr.DataTree) -> None:
        self._tree = tree

    @property
    def _held(self) -> HeldRun:
        held = getattr(self._tree, HELD, None)
        return held if isinstance(held, HeldRun) else HeldRun()

    @property
    def release(self) -> Any:
        """The release: a :class:`pdips.Release`, or of a folder a
        :class:`pdips.release.opening.PublishedRelease`.
        """
        if self._held.release is None:
            raise InputError(
                "this tree has no release beside it: copies and files don't take it "
                "along; use the tree that pdips returned, or pdips.open(folder)"
            )
        return self._held.release

    @property
    def record(self) -> RunRecord:
        """The record of the run, which is confidential: in the process that made the
        tree alone.
        """
        if self._held.record is None:
            raise InputError(
                "this tree has no record of its run: it is confidential, and only the "
                "tree that the run returned has it, in its own process"
            )
        return self._held.record

    def publish(self, folder: str | Path, **options: Any) -> None:
        """Write the public folder of the release: as
        :meth:`pdips.Release.publish`, whose ``options`` it takes.
        """
        if not isinstance(self.release, Release):
            raise InputError("this tree was read from a folder: it is published")
        self.release.publish(folder, **options)

    def more_sets(self, n: int, **options: Any) -> list[pd.DataFrame]:
        """Draw more sets of the same noisy answers, at no cost."""
        sets: list[pd.DataFrame] = self.release.more_sets(n, **options)
        return sets
