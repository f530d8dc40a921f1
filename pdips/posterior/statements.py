"""What a censored posterior tells a disclosure board."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdips.convergence import ROUNDS
from pdips.data.schema import Schema
from pdips.posterior.model import UNRECORDED
from pdips.privacy.loss import as_float, exact

PLAIN = ("n_sets", "neighbours", "split", "weights", "clip", "kind", "sampler", "n_records")

CENTRES = {
    "staged": "Terms are centred on the log density at parameters that fit a private reference best: noisy counts or a "
    "synthetic table, which cost their share of epsilon.",
    "reference": "Terms are centred on the log density under a public reference.",
    "zero": "Terms are not centred, so they and the window depend on the units of the columns.",
}

SAMPLING = {
    "grid": "Parameters are one of finitely many public cells, chosen exactly with the probabilities that the proof is "
    "about, and a point inside the cell that depends on no record.",
    "rejection": "Parameters are exact draws by rejection from the prior; how long that takes depends on the records, "
    "so the running time must not be shown.",
    "nuts": "ASSUMPTION THAT NOTHING CERTIFIES: Markov chains (NUTS) have converged, so that a draw of theirs is one "
    "from the posterior. The guarantee holds for the exact posterior; if the chains' law is off by a total variation "
    "distance of at most gamma for every table, it holds with delta = (1 + e^epsilon) gamma. Whether chains agree is "
    f"checked on the confidential table: they are run up to {ROUNDS} times, longer each time, until they do, and "
    "without a release if they never do. These decisions are not covered by the guarantee. Each record's term is "
    "worked out by the library from the model of a single record, so no record can enter the term of another.",
}


def law(mechanism: Any, sampler: str | None, schema: Schema | None) -> str:
    """Return what a ``CensoredPosterior`` does, for :func:`pdips.mechanism.statement`."""
    n_sets, n_draws = mechanism.n_sets, mechanism.n_draws
    drawn = "one draw" if n_draws == 1 else f"{n_draws} independent draws, one for each set,"
    parts = [
        f"Synthetic records come from the analyst's model at {drawn} of its parameters from a posterior in which each "
        "record's term is kept inside a window, so that no record can move the log density by more than its share.",
        CENTRES[mechanism.centred_on],
    ]
    if mechanism.weights == "public":
        parts.append("Terms are weighed by weights that depend on their record and on public values only.")
    parts.append(SAMPLING[sampler] if sampler else f"Depending on the model: {SAMPLING['grid']} Or: {SAMPLING['nuts']}")
    if mechanism.kind == "zcdp":
        spent = "Draws and the private reference" if mechanism.centred_on == "staged" else "Draws"
        parts.append(f"{spent} are added up as zero-concentrated losses and read at delta.")
    if n_sets > 1 and n_draws == 1:
        parts.append(
            f"All {n_sets} sets share one draw: what differs between them does not show how uncertain parameters are."
        )
    if schema is not None:
        names = ", ".join(name for name, column in schema.columns.items() if not column.public)
        parts.append(f"The model of {names} and its priors are public, and were not chosen by looking at the table.")
    if mechanism.model is not None and not mechanism.model.text:
        parts.append(UNRECORDED)
    return " ".join(parts)


def settings(mechanism: Any) -> dict[str, Any]:
    """Return the settings of a censored posterior as plain values, with the text of the model."""
    model, given, staged = mechanism.model, mechanism.reference, mechanism.centred_on == "staged"
    return {
        "epsilon": as_float(exact(mechanism.epsilon, "epsilon")),
        **{name: getattr(mechanism, name) for name in PLAIN},
        "centre": mechanism.centred_on,
        "reference": dict(given) if isinstance(given, Mapping) else given if given is None else Path(given).name,
        "share": as_float(exact(mechanism.share, "share")) if staged else None,
        "delta": as_float(exact(mechanism.delta, "delta")) if mechanism.kind == "zcdp" else 0.0,
        "model": None if model is None else model.name,
        "model_source": None if model is None else model.text or None,
    }
