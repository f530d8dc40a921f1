"""How far records move over the draws of a posterior, for models and draws in every
form that people have them: inside only.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pymc as pm
import xarray as xr

from pdips.arrays import FloatArray
from pdips.data.databases import snapshot
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.own_models import blueprint_for, outside_of_models
from pdips.posterior import model_file
from pdips.posterior.bounds import Bounds, from_log_likelihood, stream_bounds
from pdips.posterior.columns import Values, record_values
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source, as_source
from pdips.release.opening import PublishedRelease
from pdips.release.opening import open as open_release
from pdips.release.release import Release
from pdips.release.tree import stored_name
from pdips.sampling import MAKE, written_model
from pdips.synthesis import as_schema, as_table

AnyPath = str | Path

OF_STORED = ("variable", "record_dim")
RELEASED = (
    "the tree of a release holds no log-likelihood of records: it is of noisy answers, "
    "and public. Give the model and the confidential table too: "
    "bounds(tree, make, data)"
)


def bounds(
    draws: xr.DataTree | Release | PublishedRelease | AnyPath,
    model: Any = None,
    data: Any = None,
    schema: Any = None,
    *,
    weights: FloatArray | None = None,
    centre: FloatArray | None = None,
    limit: float | None = None,
    independent: bool = False,
    **options: Any,
) -> Bounds:
    """Bound each record's log-likelihood over the draws of a posterior: ``pdips
    bounds``.

    Parameters
    ----------
    draws : DataTree, Release, PublishedRelease or path
        From PyMC, NumPyro or CmdStan by ArviZ: with a group ``log_likelihood`` of
        records or, if there is a model, ``posterior``. Or what :func:`pdips.sample` or
        :func:`pdips.open` returned. A path is a netCDF file, a zarr folder or the
        folder of a release.
    model : optional
        A ``pm.Model`` with its data, or a Python file that leaves one in ``model``.
        With ``data`` in any form that :func:`pdips.sample` takes: a function
        ``make(df)`` or ``build_model(data, schema)``, a file with one, a formula, a
        Bambi model, the name of a model that comes with pdips.
    data : DataFrame, dict, pyarrow.Table, path or Table, optional
        The confidential table.
    schema : Schema, dict or path, optional
        Left out, that of the release whose draws these are. ``make(df)`` does without:
        it is called with the records.
    weights, centre, limit, independent
        As in :func:`pdips.posterior.bounds.stream_bounds`.
    **options
        ``variable`` and ``record_dim`` without a model, as in
        :func:`pdips.posterior.bounds.from_log_likelihood`; ``public`` beside a
        ``schema``, and with a formula ``family``, ``priors`` and so on, as in
        :func:`pdips.sample`.

    Returns
    -------
    Bounds
        Confidential, all of it.

    Raises
    ------
    InputError
        If groups, a model or the table are missing, or the draws don't fit the model.

    Examples
    --------
    >>> import pymc as pm
    >>> def make(df):
    ...     with pm.Model() as model:
    ...         level = pm.Normal("level", 3, 1)
    ...         pm.Normal("y", level, 1, observed=df["pay"].to_numpy())
    ...     return model
    >>> frame = pd.DataFrame({"pay": [3.0, 4.0, 9.5] * 200})
    >>> schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    >>> release, _ = Scores(epsilon=1, model="normal").release(Table(frame, schema))
    >>> bounds(release, "normal", frame, limit=5).n_records
    600
    >>> draws = {"level": np.full((2, 50), 3.0)}
    >>> tree = xr.DataTree.from_dict(
    ...     {"posterior": xr.Dataset({"level": (("chain", "draw"), draws["level"])})}
    ... )
    >>> round(bounds(tree, make(frame)).overall, 2)
    22.04
    """
    tree = _tree_of(draws)
    common: dict[str, Any] = {
        "weights": weights,
        "centre": centre,
        "limit": limit,
        "independent": independent,
    }
    if model is None:
        if data is not None or schema is not None:
            raise InputError("a table is read by a model: give the model too")
        _check_options(options, OF_STORED)
        if tree.attrs.get("inference_library") == "pdips":
            raise InputError(RELEASED)
        return from_log_likelihood(tree, **options, **common)
    if set(OF_STORED) & {*options}:
        raise InputError(
            "variable and record_dim choose among stored log-likelihoods: leave them "
            "out with a model"
        )
    with outside_of_models():
        if data is None:
            _check_options(options, ())
            if schema is not None:
                raise InputError("a schema is of a table: give data too")
            return stream_bounds(_finished(model), None, tree, **common)
        if isinstance(model, pm.Model):
            raise InputError("a pm.Model holds its records: leave data out")
        known = _schema_of(tree, schema)
        if known is None:
            _check_options(options, ())
            made = _made_of_records(model, data)
            return stream_bounds(made, None, tree, **common)
        space, values = _of_table(model, data, known, options)
        return stream_bounds(space.model, values, _inside(tree, space), **common)


def _check_options(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InputError(
            f"{', '.join(unknown)}: no setting of bounds here; public and settings of "
            f"Bambi go with data and a schema"
        )


def _tree_of(draws: Any) -> xr.DataTree:
    if isinstance(draws, Release):
        if draws.posterior_draws is None:
            raise InputError(f"a release of {draws.mechanism} publishes no posterior")
        draws = draws.posterior
    elif isinstance(draws, (str, Path)):
        path = Path(draws)
        homes = (path / "public" / "privacy.json", path / "privacy.json")
        is_release = any(home.is_file() for home in homes)
        draws = open_release(path) if is_release else _opened(path)
    if isinstance(draws, PublishedRelease):
        draws = draws.posterior
    if not isinstance(draws, xr.DataTree):
        raise InputError(
            f"draws must be an ArviZ tree, a release, or the path of one, and are of "
            f"type {type(draws).__name__}"
        )
    return draws


def _opened(path: Path) -> xr.DataTree:
    try:
        return xr.open_datatree(path)
    except (OSError, ValueError, KeyError, TypeError):
        what = "isn't there"
        if path.exists():
            what = "is no netCDF file and no zarr folder of draws, such as ArviZ writes"
        raise InputError(f"{path} {what}") from None


def _finished(model: Any) -> pm.Model:
    """Return a model that has its records."""
    if isinstance(model, pm.Model):
        return model
    if type(model).__module__.partition(".")[0] == "bambi":
        if not model.built:
            model.build()
        built: pm.Model = model.backend.model
        return built
    if isinstance(model, (str, Path)) and Path(model).is_file():
        return _left_in_file(Path(model))
    if isinstance(model, (str, Path)) and Path(model).suffix == ".py":
        raise InputError(f"there is no model file {model}")
    raise InputError(
        "this model is made of a table: give the table too, bounds(draws, model, "
        "data); or give a pm.Model with its data"
    )


def _left_in_file(path: Path) -> pm.Model:
    """Return the model that a file makes by itself."""

    def make() -> Any:
        module, _ = model_file.load(path)
        return module.model if hasattr(module, "model") else module.build_model()

    made, ended = _without_quoting(make)
    if not isinstance(made, pm.Model):
        raise InputError(
            f"{path.name} must run by itself and leave a pm.Model, with its data, in "
            f"the name model, or return one from build_model() without arguments; one "
            f"with make(df) or build_model(data, schema) needs the table too{ended}"
        )
    return made


def _without_quoting(make: Callable[[], Any]) -> tuple[Any, str]:
    """Return what an analyst's code makes of records, or how it ended: no message of
    its own is passed on, as it may quote a record.
    """
    try:
        return make(), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the analyst's own code
        return None, f"; it ended with {type(error.__context__ or error).__name__}"


def _schema_of(tree: xr.DataTree, schema: Any) -> Schema | None:
    """Return a schema that is given, or that of the release that the draws are of."""
    if schema is not None:
        return as_schema(schema)
    try:
        release = tree.pdips.release
    except InputError:  # the draws of another program, or a copy
        return None
    is_open = isinstance(release, PublishedRelease)
    known: Schema = release.privacy.table_schema if is_open else release.schema
    return known


def _made_of_records(model: Any, data: Any) -> pm.Model:
    """Return what a function ``make(df)`` makes of the records themselves."""
    make = model
    if isinstance(model, (str, Path)) and Path(model).is_file():
        # a file may read records itself, and then no message of it is passed on
        module, ended = _without_quoting(lambda: model_file.load(model)[0])
        if module is None:
            raise InputError(f"{Path(model).name} can't be run{ended}")
        make = getattr(module, MAKE, None)
    is_made = callable(make) and not isinstance(make, Source)
    if not is_made or isinstance(data, (str, Path)):
        raise InputError(
            "the model, or the table, is read by a schema: give it too, "
            "bounds(draws, model, data, schema)"
        )
    if isinstance(data, Table):
        data = data.frame
    made, ended = _without_quoting(lambda: make(data))
    if not isinstance(made, pm.Model):
        raise InputError(
            f"make(df) must return a pm.Model of the records, and "
            f"build_model(data, schema) needs the schema too{ended}"
        )
    return made


def _of_table(
    model: Any, data: Any, schema: Schema, options: dict[str, Any]
) -> tuple[Blueprint, Values]:
    """Return the model of one record, as a release has it, and the records' columns."""
    schema = schema.known(options.pop("public", ()))
    written = written_model(model, schema, options, public_constants=True)
    _check_options(options, ())
    source = as_source(model) if written is None else written.source(data, schema)
    if source.converted is not None:
        schema = source.converted.narrowed(schema)
    with snapshot(data) as lent:
        table = as_table(lent, schema, counted=False)
    space = blueprint_for(source, schema)
    return space, space.beside(record_values(table))


def _inside(tree: xr.DataTree, space: Blueprint) -> xr.DataTree:
    """Return the draws under the names that variables have inside."""
    if "posterior" not in tree.children:
        return tree
    dataset = tree["posterior"].to_dataset()
    names = {}
    for variable in space.model.free_RVs:
        stored = stored_name(space.outside(variable.name))
        if stored in dataset and stored != variable.name:
            names[stored] = variable.name
    return xr.DataTree.from_dict({"posterior": dataset.rename(names)})
