"""What a release says, in a PyMC model of the analyst's own: post-processing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import xarray as xr
from pymc.model.core import MODEL_MANAGER
from pytensor.graph.replace import clone_replace

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, PlanError
from pdips.outside.noisy_margins import NoisyMargins
from pdips.outside.replays import ANSWERS
from pdips.posterior import model_file
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint, blueprint_of, transformed
from pdips.posterior.model_file import Source, as_source
from pdips.privacy.answers import Answers, PublicFacts
from pdips.privacy.curator import PublishedAnswers
from pdips.privacy.loss import choice
from pdips.release.answers import read_answers
from pdips.release.documents import release_home
from pdips.release.folder import read_tables
from pdips.release.opening import PublishedRelease
from pdips.release.release import Release
from pdips.sampling import written_model
from pdips.scores.centred_answers import restored_centred
from pdips.scores.centred_model import observe_centred
from pdips.scores.noisy_likelihood import (
    NOISY_SUMS,
    numbers_of,
    observe_sums,
    prior_model,
)
from pdips.scores.published import near_mode, read_published
from pdips.scores.tree import labels_of
from pdips.statistics.model import StatisticModel, as_statistic_model
from pdips.statistics.modips import STATISTICS, Modips
from pdips.statistics.noisy_model import Evidence, Likelihood
from pdips.statistics.plan import RECORDS

AnyRelease = Release | PublishedRelease | xr.DataTree | str | Path


def noisy_likelihood(
    model: Any,
    release: AnyRelease,
    *,
    measurements: Literal["all", "counts"] = "all",
    name: str = NOISY_SUMS,
    **options: Any,
) -> Any:
    """Add what the noisy sums of a release say to the PyMC model in context, or return
    a model of them.

    Inside of ``with pm.Model():`` the noisy sums are observed by the variables of that
    model that are called as the free variables of the released one. What is around
    these is the analyst's: other priors, groups, other data with the same parameters,
    a second release. Outside, a model with the priors of the released one is made.

    Parameters
    ----------
    model : callable, str, path or Source
        The model of the release, as :func:`pdips.sample` takes it; or with
        ``measurements="counts"`` any model of the same columns. In context too: it says
        how records follow from the parameters.
    release : Release, PublishedRelease, DataTree or path
        A release of mechanism ``scores``, what :func:`pdips.open` or
        :func:`pdips.sample` returned, or a folder.
    measurements : {"all", "counts"}
        The last noisy sums of scores, as in the release's own posterior, or the counts
        of cells alone. Noisy sums of scores are other data for other models, so that
        only counts compare models, by predictive density or Bayes factors.
    name : str
        Of the observed variable: another one for each release in a model.
    **options
        With a formula ``family``, ``priors`` and other settings of Bambi, as they were
        when it was released.

    Returns
    -------
    pymc.Model or TensorVariable
        Outside of a model's context a model, to look at, to extend and to sample. In
        one the variable that was added.

    Raises
    ------
    InputError
        If the release has no noisy sums, or the model has other parameters than they
        were made for; or if the model in context lacks one of these, or has it in
        another shape or with other labels.

    Notes
    -----
    The noisy sums, made independent, have the noise, the sampling of records and the
    error of simulation in their covariance. Each is observed less what those before it
    say of it, so that its density is that of the sums, normalised, and models may be
    compared by it. They are normal, with a mean that is linear
    in the unconstrained parameters about those that are most probable under the
    released model's priors; Laplace noise is a mixture of normal ones. So a prior of
    your own that moves the posterior far from there moves it to where the mean is less
    accurate. Nothing confidential is read.

    A variable of the model in context may be a free one, a ``pm.Deterministic`` or
    ``pm.Data``. Its values must be among those that the released model allows: a
    standard deviation may not be negative.

    Examples
    --------
    >>> import pymc as pm
    >>> def build_model(data, schema):
    ...     with pm.Model() as model:
    ...         pm.Bernoulli("ill", pm.Beta("share", 1, 1), observed=data["ill"])
    ...     return model
    >>> schema = Schema(columns={"ill": Column(levels=[0, 1])})
    >>> release, record = Scores(epsilon=1, model=build_model).release(
    ...     Table(pd.DataFrame({"ill": [0] * 400 + [1] * 200}), schema)
    ... )
    >>> sorted(noisy_likelihood(build_model, release).named_vars)[:1]
    ['noisy_sums']
    >>> with pm.Model() as own:
    ...     odds = pm.LogNormal("odds", -1, 1)
    ...     share = pm.Deterministic("share", odds / (1 + odds))
    ...     noisy_sums = noisy_likelihood(build_model, release)
    >>> [variable.name for variable in own.observed_RVs]
    ['noisy_sums']
    """
    choice(measurements, ("all", "counts"), "measurements")
    with outside_of_models() as own:
        schema, tables, (written, public) = read_published(_published(release))
        source = source_of_released(model, schema, written, options)
        space = blueprint_for(source, schema)
        model_of_sums = prior_model(space) if own is None else own
        called = str if own is None else space.outside
        _check_new(model_of_sums, name)
        values = _unconstrained(model_of_sums, space, called)
        space.check()
        only_counts = measurements == "counts"
        observe = _observer(space, tables, space.beside(public), only_counts)
    with model_of_sums:
        added = observe(name, values)
    return model_of_sums if own is None else added


def _observer(
    space: Blueprint,
    tables: dict[str, pd.DataFrame],
    public: Values,
    only_counts: bool,
) -> Callable[[str, Sequence[Any]], Any]:
    """Return what observes published noisy sums in the model in context, given its
    unconstrained parameters.
    """
    if not space.covariates:
        here, noises = near_mode(space, tables, public, only_counts=only_counts)
        held = numbers_of(here, noises)
        return lambda name, values: observe_sums(name, values, held)
    if only_counts:
        raise InputError(
            "covariates of the model are confidential, so counts alone don't say how "
            "outcomes follow from them: leave out measurements"
        )
    sums = restored_centred(space, tables, public)
    return lambda name, values: observe_centred(name, values, sums)


def noisy_model(
    release: AnyRelease, model: Any = None, *, likelihood: Likelihood | None = None
) -> pm.Model:
    """Return the PyMC model behind a release of ``modips``: of its noisy statistics,
    which the noise is a part of.

    Parameters
    ----------
    release : Release, PublishedRelease, DataTree or path
        A release of ``modips`` with ``split="once"``, what :func:`pdips.open` returned,
        or a folder.
    model : path, name or StatisticModel, optional
        The model of the noisy statistics: another one than was released, too, if it
        declares the same statistics. Left out, the released one, if it comes with
        pdips. The text of any other stands in ``privacy.json`` and isn't run unasked.
    likelihood : {"noise-aware", "plug-in"}, optional
        By default that of the release. With ``"plug-in"`` noisy statistics are taken as
        if exact.

    Returns
    -------
    pymc.Model
        Of public numbers alone: to look at, to extend and to sample. Variables called
        ``moves of ...`` stand for exact statistics, which nobody knows.

    Raises
    ------
    InputError
        If the release is none of ``modips`` with one sanitization and one model, its
        model must be handed over, or the model declares other statistics.

    Notes
    -----
    Post-processing: no record is read, so that the model and its draws cost nothing. It
    is the model that the release's own posterior is of (``docs/proofs/modips.md``).

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=[0, 1])})
    >>> table = Table(pd.DataFrame({"ill": [0] * 300 + [1] * 100}), schema)
    >>> release, _ = Modips(epsilon=1, model="bernoulli").release(table)
    >>> model = noisy_model(release)
    >>> [variable.name for variable in model.free_RVs]
    ['share of the first level']
    >>> [potential.name for potential in model.potentials]
    ['law of counts']
    """
    with outside_of_models():
        found = _noisy_statistics(_published(release))
        source = _statistic_model(model, found.settings)
        priced: dict[str, Any] = {name: found.settings.get(name) for name in PRICED}
        design = Modips(model=source, **priced).design(found.schema)
        curator = PublishedAnswers(design.priced(), found.facts, found.answers)
        try:
            measured = design.ask(curator)
        except PlanError as error:
            raise InputError(
                f"the release has other answers than the model asks for with these "
                f"settings: {error}"
            ) from None
        seen = likelihood or found.settings["likelihood"]
        choice(seen, ("noise-aware", "plug-in"), "likelihood")
        return source.built(Evidence(measured, seen))


PRICED = ("epsilon", "neighbours", "delta", "budget")
"""Settings of a release of ``modips`` from which its noise follows."""


@dataclass(frozen=True)
class _PublishedStatistics:
    """What a release of ``modips`` says in public."""

    schema: Schema
    settings: Mapping[str, Any]
    answers: Answers
    facts: PublicFacts


def _noisy_statistics(release: Release | str | Path) -> _PublishedStatistics:
    """Read the noisy statistics of a release, or of its folder."""
    if isinstance(release, Release):
        mechanism = release.mechanism
        schema = release.schema
        settings = release.settings
        tables = dict(release.tables)
        records = release.sets[0]
        answers = release.answers
    else:
        home = release_home(release, received=True)
        document, tables = read_tables(home, STATISTICS, ANSWERS, "synthetic_1")
        mechanism = document.mechanism
        schema = document.table_schema
        settings = document.settings
        records = tables.get("synthetic_1", pd.DataFrame())
        answers = Answers()
        if ANSWERS in tables:
            answers = read_answers(document.answers, tables[ANSWERS])
    if mechanism != Modips.name:
        raise InputError(
            f"only a release of {Modips.name} has a model of noisy statistics, and "
            f"this is one of {mechanism}: noisy_likelihood is for scores"
        )
    if settings.get("split") != "once":
        raise InputError(
            "each set has a sanitization of its own, and a model is of one: release "
            "with split = once"
        )
    facts = PublicFacts(None)
    if schema.public_columns:
        # of the first set: they are the table's
        first = Table(records[[*schema.columns]], schema.without_person())
        facts = PublicFacts.of(first, n_public=True)
    elif settings.get("neighbours") == "replace-one":
        [n_records] = tables[STATISTICS].query(f"statistic == '{RECORDS}'")["noisy"]
        facts = PublicFacts(int(n_records))
    return _PublishedStatistics(schema, settings, answers, facts)


def _statistic_model(model: Any, settings: Mapping[str, Any]) -> StatisticModel:
    """Return the model that is handed over, or the released one, if it comes with
    pdips.
    """
    if model is not None:
        return as_statistic_model(model)
    released = str(settings.get("model"))
    name = Path(released).stem
    if name in model_file.names():
        ours = as_statistic_model(name)
        if ours.text == settings.get("model_source"):
            return ours
    raise InputError(
        f"the released model, {released}, doesn't come with this pdips: hand it over. "
        f"Its text is model_source in the settings of privacy.json; read it before "
        f"you run it"
    )


def margin_factor(
    release: NoisyMargins | AnyRelease,
    columns: Sequence[str] | str,
    expected: Any,
    *,
    dims: Sequence[str] | None = None,
    target: Literal["population", "table"] = "population",
    name: str = "margins",
) -> Any:
    """Add what the noisy margins of a release say of some columns to the PyMC model in
    context.

    Parameters
    ----------
    release : NoisyMargins, Release, PublishedRelease, DataTree or path
        Noisy margins, a release that publishes them, or its folder.
    columns, expected, dims, target, name
        As in :meth:`pdips.NoisyMargins.factor`.

    Returns
    -------
    TensorVariable
        The noisy contrasts of the columns' cells.

    Raises
    ------
    InputError
        As :meth:`pdips.NoisyMargins.factor`, or if the release has no noisy margins.

    Examples
    --------
    >>> import pymc as pm
    >>> schema = Schema.model_validate(
    ...     {"columns": {name: {"levels": ["no", "yes"]} for name in ("ill", "old")}}
    ... )
    >>> table = {"ill": ["no", "yes"] * 50, "old": ["yes"] * 60 + ["no"] * 40}
    >>> release, _ = Margins(epsilon=1).release(Table(pd.DataFrame(table), schema))
    >>> with pm.Model(coords={name: ["no", "yes"] for name in ("ill", "old")}) as model:
    ...     share = pm.Dirichlet("share", np.ones(4)).reshape((2, 2))
    ...     noisy = margin_factor(
    ...         release, ["ill", "old"], 100 * share, dims=("ill", "old")
    ...     )
    >>> model.coords["margins_contrast"]
    ('ill[yes]', 'old[yes]', 'ill:old[yes, yes]')
    """
    if not isinstance(release, NoisyMargins):
        release = _margins_of(_published(release))
    return release.factor(columns, expected, dims=dims, target=target, name=name)


def _margins_of(release: Release | str | Path) -> NoisyMargins:
    if isinstance(release, Release):
        return NoisyMargins.of(release)
    return NoisyMargins.read(release)


@contextmanager
def outside_of_models() -> Iterator[pm.Model | None]:
    """Leave the contexts of all models for a while, and yield the innermost: what is
    built there doesn't become a part of it.
    """
    contexts = MODEL_MANAGER.active_contexts
    held = contexts.copy()
    contexts.clear()
    try:
        yield held[-1] if held else None
    finally:
        contexts[:] = held


def _published(release: AnyRelease) -> Release | str | Path:
    """Return a release in memory, or its folder."""
    if isinstance(release, xr.DataTree):
        release = release.pdips.release
    if isinstance(release, PublishedRelease):
        return release.home
    if not isinstance(release, (Release, str, Path)):
        raise InputError(
            f"release must be a release, what pdips.sample or pdips.open returned, or "
            f"a folder, and is of type {type(release).__name__}"
        )
    return release


def source_of_released(
    model: Any, schema: Schema, public: pd.DataFrame, options: Mapping[str, Any]
) -> Source:
    """Return the model of a release in the form that mechanisms take, made beside the
    public columns of its sets.
    """
    if isinstance(model, pm.Model):
        raise InputError(
            "a pm.Model holds the records that it was built on, and a release doesn't: "
            "hand over the function that makes it, make(df) or "
            "build_model(data, schema), its file, or the formula"
        )
    left = dict(options)
    written = written_model(model, schema, left, public_constants=True)
    if left:
        raise InputError(
            f"{', '.join(left)}: no setting of noisy_likelihood; settings of Bambi go "
            f"with a formula"
        )
    if written is None:
        return as_source(model)
    return written.source(public, schema)


def _check_new(own: pm.Model, name: str) -> None:
    if own.name_for(name) in own.named_vars:
        raise InputError(
            f"the model has a variable {name!r} already: call this one otherwise, "
            f"name=..."
        )


def blueprint_for(source: Source, schema: Schema) -> Blueprint:
    """Return the model of one record of a table of a schema."""
    alone = schema.without_person()
    if source.converted is not None:
        alone = source.converted.derived.widened(alone)
    return blueprint_of(source, alone)


def _unconstrained(
    own: pm.Model, space: Blueprint, called: Callable[[str], str]
) -> list[Any]:
    """Return the released model's parameters, as its value variables have them, made of
    the variables of another model, in which they are ``called`` otherwise.
    """
    given = _matched(own, space, called)
    return [
        transformed(
            space.model,
            variable,
            matched,
            clone_replace(variable.owner.inputs, given, rebuild_strict=False),
        )
        for variable, matched in given.items()
    ]


def _matched(
    own: pm.Model, space: Blueprint, called: Callable[[str], str]
) -> dict[Any, Any]:
    """Return the variable of a model that stands for each free one of the released
    model.
    """
    names = {variable: called(variable.name) for variable in space.model.free_RVs}
    shapes = space.model.eval_rv_shapes()
    matched = {}
    for variable, name in names.items():
        # with the name of a model in a model before it
        found = own.named_vars.get(own.name_for(name))
        if found is None:
            raise InputError(
                f"the model in context has no variable {name!r}: the noisy sums are "
                f"about {', '.join(names.values())}; call yours so, or add "
                f"pm.Deterministic({name!r}, ...)"
            )
        _check_shape(name, found, tuple(map(int, shapes[variable.name])))
        _check_labels(own, space, name, variable.name)
        matched[variable] = found
    return matched


def _check_shape(name: str, found: Any, wanted: tuple[int, ...]) -> None:
    shape = pytensor.function([], found.shape, mode="FAST_COMPILE")()
    if tuple(map(int, shape)) != wanted:
        raise InputError(
            f"{name!r} has the shape {tuple(map(int, shape))} in this model, and "
            f"{wanted} in the released one"
        )
    if np.dtype(found.dtype).kind != "f":
        raise InputError(
            f"{name!r} is of type {found.dtype} in this model, and of real numbers in "
            f"the released one"
        )


def _check_labels(own: pm.Model, space: Blueprint, name: str, inside: str) -> None:
    """Refuse labels that say that an entry is about another level than it was."""
    labels = labels_of(space)
    released = space.model.named_vars_to_dims.get(inside) or ()
    dims = own.named_vars_to_dims.get(own.name_for(name)) or ()
    for dim, mine in zip(released, dims, strict=False):
        coords = own.coords.get(mine)
        if dim not in labels or coords is None:
            continue
        wanted = [str(label) for label in labels[dim]]
        if [str(label) for label in coords] != wanted:
            raise InputError(
                f"dimension {mine!r} of {name!r} has other labels than the released "
                f"model, or has them in another order; its order is "
                f"{', '.join(wanted)}"
            )
