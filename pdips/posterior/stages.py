"""What a posterior mechanism knows before its parameters are drawn: public, or paid for in a first stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.readers import read_frame
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior import anchors
from pdips.posterior.columns import ENDS, Values, record_values, stand_ins
from pdips.posterior.grid import Anchor, split
from pdips.posterior.model import STAND_INS
from pdips.posterior.model_checks import on_stand_ins
from pdips.posterior.private_reference import Cells, binned, cells_of_table, measure, no_cells
from pdips.posterior.workspace import ONE_AT_A_TIME, Workspace
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits

Reference = str | Path | Mapping[str, Any]

SIMULATED = 4_096
"""Records drawn from the model at the first stage's parameters: what censoring takes away is worked out on them."""

PRIOR_CENTRE = 64
"""Prior draws over which densities are averaged for ``reference="prior"``."""

PROBED = 256
"""Stand-ins on which a reference must not call what the schema allows impossible."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """What is known before the draw.

    Parameters
    ----------
    anchor : Anchor
        Where to look for parameters.
    n_records : int
        The public number of records, or a noisy one.
    centre : list of ndarray
        Parameter values whose mean density is the centre of each record's term; empty for none.
    simulated : mapping of str to ndarray
        Records drawn from the model at the centre, on which the effect of censoring is worked out; empty for none.
    """

    anchor: Anchor
    n_records: int
    centre: list[FloatArray] = field(default_factory=list)
    simulated: Values = field(default_factory=dict)


def staged(space: Workspace, table: Table, epsilon: Fraction, neighbours: Neighbours, bits: RandomBits) -> Stage:
    """Spend ``epsilon`` on a private reference, and centre on the parameters that fit it best."""
    cells = measure(table, epsilon, neighbours, bits)
    return after(space, cells, _public_rows(table, bits))


def rehearse(space: Workspace) -> None:
    """Go through the first stage without a table, so that what a model makes fail there fails before the charge.

    Raises
    ------
    InputError
        If the model can't be fitted to cells, or records can't be drawn from it.
    """

    def go() -> Stage:
        filled = stand_ins(space.blueprint.schema, STAND_INS)
        public = {name: filled[name] for name in space.blueprint.schema.public_columns}
        with on_stand_ins("the first stage"):
            return after(space, no_cells(space.blueprint.schema), public, n=STAND_INS)

    with ONE_AT_A_TIME:
        space.remembered(("rehearsed",), go)


def after(space: Workspace, cells: Cells, public: Values, *, n: int | None = None) -> Stage:
    """Return what follows from the outcome of the first stage: post-processing, with the public columns of n records.

    By default ``SIMULATED`` records.
    """
    place = anchors.fit(space.density, cells, space.prior)
    simulated = simulate(space, place, public, n=n)
    anchor = anchors.anchor_at(space.density, place, simulated, cells.n_records)
    centre = split(space.model, place[None])
    return Stage(anchor=anchor, n_records=cells.n_records, centre=centre, simulated=simulated)


def simulate(space: Workspace, place: FloatArray, public: Values, *, n: int | None = None) -> dict[str, NDArray[Any]]:
    """Draw records from the model at some public parameters: ``SIMULATED`` of them, or n."""
    rng = np.random.default_rng(anchors.PUBLIC_SEED)
    drawn = space.blueprint.draw(space.values_of(place[None])[0], n or SIMULATED, public, rng)
    return {**public, **drawn}


def _public_rows(table: Table, bits: RandomBits) -> dict[str, NDArray[Any]]:
    """Return the public columns of records chosen at random; neighbouring tables share them."""
    names = list(table.schema.public_columns)
    if not names:
        return {}
    rows = bits.generator().integers(table.n_records, size=SIMULATED)
    return {name: values[rows] for name, values in record_values(table, names).items()}


def referenced(space: Workspace, reference: Reference, n_records: int) -> Stage:
    """Centre on public parameters, a public table, or the prior predictive; nothing is spent.

    Raises
    ------
    InputError
        If the reference gives no density to values that the schema allows.
    """
    if isinstance(reference, str) and reference == "prior":
        draws = space.prior[:PRIOR_CENTRE]
        stage = Stage(
            anchor=anchors.anchor_of_prior(space.prior), n_records=n_records, centre=split(space.model, draws)
        )
    else:
        place = _place(space, reference)
        simulated = simulate(space, place, stand_ins_public(space))
        near = anchors.anchor_at(space.density, place, simulated, n_records)
        anchor = Anchor(place, near.shape, reach=12 * n_records**0.5)
        centre = split(space.model, place[None])
        stage = Stage(anchor=anchor, n_records=n_records, centre=centre, simulated=simulated)
    _check_density(space, stage)
    return stage


def key_of(reference: Reference) -> str:
    """Return a text that differs wherever references do, to the last digit."""
    if isinstance(reference, Mapping):
        return repr({name: np.asarray(value).tolist() for name, value in reference.items()})
    return str(reference)


def stand_ins_public(space: Workspace) -> dict[str, NDArray[Any]]:
    """Return public columns of simulated records where the table's own aren't at hand."""
    schema = space.blueprint.schema
    filled = stand_ins(schema, SIMULATED)
    return {name: filled[name] for name in schema.public_columns}


def _place(space: Workspace, reference: Reference) -> FloatArray:
    if isinstance(reference, Mapping):
        return space.parameters_of(dict(reference))
    if isinstance(reference, str) and "=" in reference:
        return space.parameters_of(_parse(reference))
    if not Path(reference).is_file():
        raise InputError(
            f"reference {str(reference)!r} is no file; give a public table (.csv, .parquet), 'prior', or name=value,..."
        )
    table = Table(read_frame(reference), binned(space.blueprint.schema))
    return anchors.fit(space.density, cells_of_table(table), space.prior)


def _parse(text: str) -> dict[str, Any]:
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = np.array([float(each) for each in value.split()]).squeeze()
        except ValueError:
            raise InputError(f"reference {part.strip()!r} must have the form name=number") from None
    return found


def _check_density(space: Workspace, stage: Stage) -> None:
    """Refuse, on stand-ins, a reference under which what the schema allows can't occur."""
    space.density.at(stage.centre)
    probes = {name: values[len(ENDS) :] for name, values in stand_ins(space.blueprint.schema, PROBED).items()}
    with np.errstate(all="ignore"):
        dead = [bool(np.isneginf(space.density(row)).all()) for row in space.density.rows(probes)]
    if any(dead):
        raise InputError(
            "the reference gives density zero to values that the schema allows, so such records could not be centred; "
            "take a reference that covers all levels and bounds (a wider one, 'prior', or centre=staged)"
        )


def unreferenced(space: Workspace, n_records: int) -> Stage:
    """No centre: terms are log densities themselves, as in paper 004."""
    return Stage(anchor=anchors.anchor_of_prior(space.prior), n_records=n_records)
