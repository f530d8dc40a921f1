"""Noisy sums as tables that are published, and the likelihood that an analyst makes of
them again.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import Values, public_columns
from pdips.posterior.model import (
    ONE_AT_A_TIME,
    PUBLIC_SEED,
    Blueprint,
    start,
)
from pdips.release.documents import release_home
from pdips.release.folder import read_tables
from pdips.release.release import Release
from pdips.scores.centring import Centring
from pdips.scores.column_cells import ColumnCells
from pdips.scores.noisy_likelihood import Measurement, NoisySums
from pdips.scores.posterior import noises_of
from pdips.scores.record_score import Clipping, RecordScore
from pdips.scores.simulator import Simulator
from pdips.scores.sums import Linearised, Noises, NormalPrior

SUMS = "sums"
REFERENCES = "references"
WHITENING = "whitening_{}"
RECORDS = "number of records"
LAPLACE = "discrete Laplace"
GAUSSIAN = "discrete Gaussian"

# Public columns as files have them, and as models read them; the same rows
Known = tuple[pd.DataFrame, Values]


def parameter_labels(space: Blueprint) -> list[str]:
    """Return a name for each unconstrained parameter, such as ``effects[2]`` or
    ``sd_log__``.
    """
    labels = []
    for value, part in zip(space.model.value_vars, start(space.model), strict=True):
        for place in np.ndindex(part.shape):
            index = ", ".join(map(str, place))
            labels.append(f"{value.name}[{index}]" if place else str(value.name))
    return labels


def published(sums: NoisySums) -> dict[str, pd.DataFrame]:
    """Return the noisy sums, and what they are sums of, as tables.

    ``sums`` has a row for each: the ``step`` that asked for it, ``of`` (a column, or an
    unconstrained parameter), for counts the bounds ``lower`` and ``upper`` of the cell
    (of codes where a column has levels), ``noisy`` in records or whitened scores, the
    ``noise`` and its ``standard_deviation`` in the same unit. ``references`` has for
    each round of scores the parameters (``place``) at which gradients were taken, the
    matrix that whitens them, and the ``radius`` and ``norm`` of the ball into which
    they were pulled.
    """
    law = LAPLACE if sums.laplace else GAUSSIAN
    labels = parameter_labels(sums.space)
    parts = [number_of_records(sums.n_records, sums.n_variance, law)]
    references = []
    for measured in sums.measurements:
        question = measured.question
        if isinstance(question, ColumnCells):
            rows = cell_rows(question)
        else:
            rows = pd.DataFrame({"of": labels, "lower": np.nan, "upper": np.nan})
            references.append(reference_rows(measured.step, question, labels))
        rows.insert(0, "step", measured.step)
        parts.append(
            rows.assign(
                noisy=measured.noisy, noise=law, standard_deviation=measured.deviation
            )
        )
    tables = {SUMS: pd.concat(parts, ignore_index=True)}
    if references:
        tables[REFERENCES] = pd.concat(references, ignore_index=True)
    return tables


def number_of_records(noisy: float, variance: float, law: str) -> pd.DataFrame:
    """Return the row of the number of records."""
    deviation = float(np.sqrt(variance))
    row = {
        "step": RECORDS,
        "of": "",
        "lower": np.nan,
        "upper": np.nan,
        "noisy": noisy,
        "noise": law if deviation else "none",
        "standard_deviation": deviation,
    }
    return pd.DataFrame([row])


def cell_rows(cells: ColumnCells) -> pd.DataFrame:
    """Return a row for each cell, with its bounds."""
    return pd.DataFrame(
        {
            "of": np.repeat(list(cells.edges), cells.sizes),
            "lower": np.concatenate([edges[:-1] for edges in cells.edges.values()]),
            "upper": np.concatenate([edges[1:] for edges in cells.edges.values()]),
        }
    )


def reference_rows(
    step: str, at: Clipping | Centring, labels: list[str]
) -> pd.DataFrame:
    """Return a row for each parameter: where and how its scores were taken."""
    columns = {
        "step": step,
        "parameter": labels,
        "place": at.place,
        "radius": at.radius,
        "norm": at.norm,
    }
    for label, column in zip(labels, at.whitening.T, strict=True):
        columns[WHITENING.format(label)] = column
    return pd.DataFrame(columns)


def seed_of(counts: FloatArray) -> int:
    """Return the seed of the records that are simulated for noisy counts: each release
    has its own error.
    """
    return int(np.abs(counts).sum())


def restored(
    space: Blueprint,
    score: RecordScore,
    prior: NormalPrior,
    tables: dict[str, pd.DataFrame],
    public: Values,
) -> NoisySums:
    """Return noisy sums as they were published, and what simulates their law."""
    opening = tables[SUMS].iloc[0]
    rest = tables[SUMS].iloc[1:]
    measurements = []
    for step, rows in rest.groupby("step", sort=False):
        if rows["lower"].notna().all():
            question: ColumnCells | Clipping = _read_cells(space, rows)
        else:
            question = _read_reference(space, tables[REFERENCES], step)
        noisy = rows["noisy"].to_numpy(float)
        deviation = float(rows["standard_deviation"].iloc[0])
        measurements.append(Measurement(str(step), question, noisy, deviation))
    seed = seed_of(measurements[0].noisy)
    return NoisySums(
        space=space,
        score=score,
        prior=prior,
        simulator=Simulator(space, public, seed=seed),
        n_records=float(opening["noisy"]),
        n_variance=float(opening["standard_deviation"]) ** 2,
        measurements=tuple(measurements),
        laplace=bool(rest["noise"].eq(LAPLACE).all()),
    )


def _read_cells(space: Blueprint, rows: pd.DataFrame) -> ColumnCells:
    edges = {}
    for name, part in rows.groupby("of", sort=False):
        lower = part["lower"].to_numpy(float)
        edges[str(name)] = np.append(lower, part["upper"].iloc[-1])
    return ColumnCells(space.columns, edges)


def _read_reference(space: Blueprint, references: pd.DataFrame, step: Any) -> Clipping:
    if list(dict.fromkeys(references["parameter"])) != parameter_labels(space):
        raise InputError(
            "the model has other parameters than the noisy sums were made for; "
            "measurements='counts' of "
            "noisy_likelihood takes any model"
        )
    at = references[references["step"] == step]
    first = at.iloc[0]
    prefix = WHITENING.format("")
    whitening = at[[name for name in at if str(name).startswith(prefix)]]
    return Clipping(
        place=at["place"].to_numpy(float),
        whitening=whitening.to_numpy(float),
        radius=float(first["radius"]),
        norm=first["norm"],
    )


def read_published(
    release: Release | str | Path,
) -> tuple[Schema, dict[str, pd.DataFrame], Known]:
    """Return the schema, the noisy sums and the public columns of a release, or of its
    folder.
    """
    if isinstance(release, Release):
        schema = release.schema
        tables = dict(release.tables)
        first = release.sets[0]
    else:
        document, tables = read_tables(
            release_home(release, received=True), SUMS, REFERENCES, "synthetic_1"
        )
        schema = document.table_schema
        first = tables.get("synthetic_1", pd.DataFrame())
    if SUMS not in tables:
        raise InputError(
            "the release has no noisy sums of scores: only mechanism "
            "scores publishes them"
        )
    if not schema.public_columns:
        return schema, tables, (pd.DataFrame(), {})
    public = Table(first[list(schema.columns)], schema.without_person())
    return schema, tables, public_columns(public)


def near_mode(
    space: Blueprint,
    tables: dict[str, pd.DataFrame],
    public: Values,
    *,
    only_counts: bool,
) -> tuple[Linearised, Noises]:
    """Return what published noisy sums say near the most probable parameters of a
    model, and the normal laws of which their noise is mixed.
    """
    if only_counts:
        sums_table = tables[SUMS]
        is_count = sums_table["lower"].notna() | (sums_table["step"] == RECORDS)
        tables = {SUMS: sums_table[is_count]}
    with ONE_AT_A_TIME:
        score = RecordScore(space.likelihood)
        prior = NormalPrior.of(space.prior)
        sums = restored(space, score, prior, tables, public).last_scores
        here = sums.precise(sums.mode(sums.last_reference).place)
        return here, noises_of(sums, here, np.random.default_rng(PUBLIC_SEED))
