"""What modips tells a disclosure board, and its settings as plain values."""

from collections.abc import Mapping
from typing import Any

from pdips.data.schema import Schema
from pdips.privacy.loss import as_float, exact

PLAIN = ("n_sets", "neighbours", "likelihood", "split", "kind", "n_records")


KINDS = {
    "Counts": "counts by cell",
    "Sums": "sums of columns counted from the middle of their public bounds",
    "Products": "sums of products of such columns",
    "Logistic": "coefficients of regularised logistic regressions",
}
"""What is said of the statistics that ship, by the names of their types."""


def law_of(mechanism: Any, schema: Schema | None) -> str:
    """Return what a ``Modips`` does, for :func:`pdips.mechanism.statement`."""
    each = mechanism.n_sanitizations
    noise = (
        "independent discrete Laplace noise of scale (sensitivity / its share of epsilon) is added to each number that "
        "isn't public"
        if mechanism.kind == "pure"
        else "independent discrete Gaussian noise is added to each number that isn't public, and losses are added up "
        "as zero-concentrated ones"
    )
    repeated = f" This is done {each} times, once for each set, each with its part of the budget." if each > 1 else ""
    return (
        f"Bounded statistics of the table{_kinds(mechanism, schema)} are worked out in whole numbers, and {noise}."
        f"{repeated} Everything else, Markov chains where there are any, is worked out from these noisy statistics and "
        "public facts, so that it costs nothing: neither how well chains mix nor how many sets are drawn weakens the "
        "guarantee. The model and its priors say what the synthetic records look like; they were not chosen by looking "
        "at the table."
    )


def _kinds(mechanism: Any, schema: Schema | None) -> str:
    """Return in words which statistics are measured, where that is known."""
    if schema is None or mechanism.model is None:
        return ""
    names = {type(statistic).__name__ for statistic in mechanism.plan(schema).statistics.values()}
    known = [words for name, words in KINDS.items() if name in names]
    others = ["others that the model declares"] if names - set(KINDS) else []
    return f" ({', '.join([*known, *others])})"


def settings_of(mechanism: Any) -> dict[str, Any]:
    """Return the settings of a ``Modips`` as plain values, with the text of the model."""
    model, budget = mechanism.model, mechanism.budget
    shares = {name: str(share) for name, share in budget.items()} if isinstance(budget, Mapping) else budget
    return {
        "epsilon": as_float(exact(mechanism.epsilon, "epsilon")),
        **{name: getattr(mechanism, name) for name in PLAIN},
        "budget": shares,
        "delta": as_float(exact(mechanism.delta, "delta")) if mechanism.kind == "zcdp" else 0.0,
        "model": None if model is None else model.name,
        "model_source": None if model is None else model.text,
    }
