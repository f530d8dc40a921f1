"""Noisy sums as tables that are published, and the likelihood that an analyst makes of them again."""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pymc as pm

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import Values, public_columns
from pdips.posterior.model import ONE_AT_A_TIME, PUBLIC_SEED, Blueprint, blueprint_of, start
from pdips.posterior.model_file import BuildModel, Source, as_source
from pdips.release.documents import release_home
from pdips.release.folder import read_tables
from pdips.release.release import Release
from pdips.scores.noisy_likelihood import ColumnCells, Measurement, NoisyLikelihood, NoisySums, NormalPrior, Simulator
from pdips.scores.posterior import noises_of
from pdips.scores.record_score import Clipping, Norm, RecordScore

SUMS, REFERENCES = "sums", "references"
WHITENING = "whitening_{}"
RECORDS = "number of records"
LAPLACE, GAUSSIAN = "discrete Laplace", "discrete Gaussian"

Known = tuple[pd.DataFrame, Values]  # Public columns as files have them, and as models read them; the same rows


def parameter_labels(space: Blueprint) -> list[str]:
    """Return a name for each unconstrained parameter, such as ``effects[2]`` or ``sd_log__``."""
    labels = []
    for value, part in zip(space.model.value_vars, start(space.model), strict=True):
        places = [f"[{', '.join(map(str, place))}]" if place else "" for place in np.ndindex(part.shape)]
        labels += [f"{value.name}{place}" for place in places]
    return labels


def published(sums: NoisySums) -> dict[str, pd.DataFrame]:
    """Return the noisy sums, and what they are sums of, as tables.

    ``sums`` has a row for each: the ``step`` that asked for it, ``of`` (a column, or an unconstrained parameter), for
    counts the bounds ``lower`` and ``upper`` of the cell (of codes where a column has levels), ``noisy`` in records or
    whitened scores, the ``noise`` and its ``standard_deviation`` in the same unit. ``references`` has for each round of
    scores the parameters (``place``) at which gradients were taken, the matrix that whitens them, and the ``radius``
    and ``norm`` of the ball into which they were pulled.
    """
    deviation, law = float(np.sqrt(sums.n_variance)), LAPLACE if sums.laplace else GAUSSIAN
    opening = {"step": RECORDS, "of": "", "lower": np.nan, "upper": np.nan, "noisy": sums.n_records}
    parts = [pd.DataFrame([opening | {"noise": law if deviation else "none", "standard_deviation": deviation}])]
    references, labels = [], parameter_labels(sums.space)
    for each in sums.measurements:
        at, rest = each.question, {"noisy": each.noisy, "noise": law, "standard_deviation": each.deviation}
        if isinstance(at, ColumnCells):
            lower, upper = (
                np.concatenate([edges[cut] for edges in at.edges.values()]) for cut in (np.s_[:-1], np.s_[1:])
            )
            of = np.repeat(list(at.edges), at.sizes)
            parts.append(pd.DataFrame({"step": each.step, "of": of, "lower": lower, "upper": upper} | rest))
        else:
            parts.append(pd.DataFrame({"step": each.step, "of": labels, "lower": np.nan, "upper": np.nan} | rest))
            columns = {WHITENING.format(label): at.whitening[:, i] for i, label in enumerate(labels)}
            known = {"step": each.step, "parameter": labels, "place": at.place, "radius": at.radius, "norm": at.norm}
            references.append(pd.DataFrame(known | columns))
    found = {SUMS: pd.concat(parts, ignore_index=True)}
    return found | ({REFERENCES: pd.concat(references, ignore_index=True)} if references else {})


def seed_of(counts: FloatArray) -> int:
    """Return the seed of the records that are simulated for noisy counts: each release has its own error."""
    return int(np.abs(counts).sum())


def restored(
    space: Blueprint, score: RecordScore, prior: NormalPrior, tables: dict[str, pd.DataFrame], public: Values
) -> NoisySums:
    found = tables[SUMS]
    opening, rest = found.iloc[0], found.iloc[1:]
    measurements = []
    for step, rows in rest.groupby("step", sort=False):
        noisy, deviation = rows["noisy"].to_numpy(float), float(rows["standard_deviation"].iloc[0])
        if rows["lower"].notna().all():
            edges = {
                str(name): np.append(part["lower"].to_numpy(float), part["upper"].iloc[-1])
                for name, part in rows.groupby("of", sort=False)
            }
            measurements.append(Measurement(str(step), ColumnCells(space.columns, edges), noisy, deviation))
            continue
        at = tables[REFERENCES]
        if list(dict.fromkeys(at["parameter"])) != parameter_labels(space):
            raise InputError(
                "the model has other parameters than the noisy sums were made for; measurements='counts' of "
                "noisy_likelihood takes any model"
            )
        at = at[at["step"] == step]
        whitening = at[[name for name in at if str(name).startswith(WHITENING.format(""))]].to_numpy(float)
        norm: Norm = at["norm"].iloc[0]
        clipping = Clipping(at["place"].to_numpy(float), whitening, float(at["radius"].iloc[0]), norm)
        measurements.append(Measurement(str(step), clipping, noisy, deviation))
    n, deviation = float(opening["noisy"]), float(opening["standard_deviation"])
    simulator = Simulator(space, public, seed=seed_of(measurements[0].noisy))
    laplace = bool(rest["noise"].eq(LAPLACE).all())
    return NoisySums(space, score, prior, simulator, n, deviation**2, tuple(measurements), laplace)


def read_published(release: Release | str | Path) -> tuple[Schema, dict[str, pd.DataFrame], Known]:
    """Return the schema, the noisy sums and the public columns of a release, or of its folder."""
    if isinstance(release, Release):
        schema, tables, first = release.schema, dict(release.tables), release.sets[0]
    else:
        document, tables = read_tables(release_home(release), SUMS, REFERENCES, "synthetic_1")
        schema, first = document.table_schema, tables.get("synthetic_1", pd.DataFrame())
    if SUMS not in tables:
        raise InputError("the release has no noisy sums of scores: only mechanism scores publishes them")
    if not schema.public_columns:
        return schema, tables, (pd.DataFrame(), {})
    return schema, tables, public_columns(Table(first[list(schema.columns)], schema.without_person()))


def noisy_likelihood(
    model: str | Path | BuildModel | Source,
    release: Release | str | Path,
    *,
    measurements: Literal["all", "counts"] = "all",
) -> pm.Model:
    """Return a PyMC model of the noisy sums of a release: the priors of a model, and what the sums say.

    The free variables and priors are those of ``model``; the noisy sums, made independent, are observed as
    ``noisy_sums``, with the noise, the sampling of records and the error of simulation in their covariance. They are
    normal, with a mean that is linear in the unconstrained parameters about the most probable ones; Laplace noise is a
    mixture of normal ones. Nothing confidential is read.

    Parameters
    ----------
    model : path, name, callable or Source
        The model of the release, or with ``measurements="counts"`` any model of the same columns.
    release : Release or path
        A release of mechanism ``scores``, or its folder.
    measurements : {"all", "counts"}
        All noisy sums, or the counts of cells alone. NoisySums of scores are other data for other models, so that only
        counts compare models, by predictive density or Bayes factors.

    Returns
    -------
    pymc.Model
        To look at, to extend and to sample.

    Raises
    ------
    InputError
        If the release has no noisy sums, or the model has other parameters than they were made for.

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
    """
    schema, tables, (_, public) = read_published(release)
    space = blueprint_of(as_source(model), schema)
    space.check()
    if measurements == "counts":
        tables = {SUMS: tables[SUMS][tables[SUMS]["lower"].notna() | (tables[SUMS]["step"] == RECORDS)]}
    with ONE_AT_A_TIME:
        sums = restored(space, RecordScore(space.likelihood), NormalPrior.of(space.prior), tables, public)
        here = sums.precise(sums.mode(sums.last_reference).place)
        return NoisyLikelihood(space, here, noises_of(sums, here, np.random.default_rng(PUBLIC_SEED))).model
