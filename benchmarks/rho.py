"""What releases at pure epsilon 1 are charged in an account that is kept in rho: the
exact price of each mechanism beside epsilon^2 / 2.

    python -m benchmarks.rho

Plans alone: no table is read. Each mechanism has the first of the schemas that it
takes; the table in ``docs/results/planning.md`` is what this prints.
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from pdips import Schema
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import READING_DIGITS, also_read
from pdips.privacy.plan import Plan
from pdips.privacy.rho import rounded_up
from pdips.registry import MECHANISMS, find

EXAMPLES = Path(__file__).parents[1] / "examples"
EPSILON = Fraction(1)
BEFORE = EPSILON**2 / 2
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "censored-posterior": [{"model": "normal"}],
    "modips": [{"model": "linear_regression"}],
    "multinomial-dirichlet": [{}, {"n_records": 1_000}],
    "scores": [{"model": "normal"}],
    "smoothed-histogram": [{}, {"n_records": 1_000}],
    "margins": [{}, {"measure": "pairs"}],
    "steps": [{"layers": 2}],
}
"""Of mechanisms that need some, or are priced otherwise with others."""


def schemas() -> dict[str, Schema]:
    """Return the schemas that are tried, by what the table calls them."""
    examples = {
        name: Schema.load(EXAMPLES / f"{name}.toml") for name in ("youth", "earnings")
    }
    number = {"columns": {"pay": {"lower": 0, "upper": 10}}}
    return {**examples, "one number": Schema.model_validate(number)}


def planned(made: Mechanism) -> tuple[str, Plan] | None:
    """Return the plan for the first schema that a mechanism takes, and which it is."""
    for name, schema in schemas().items():
        try:
            return name, made.plan(schema)
        except InputError:  # not for such tables
            continue
    return None


def rows() -> Iterator[str]:
    """Yield the rows of the table."""
    for name in sorted(MECHANISMS):
        for settings in SETTINGS.get(name, [{}]):
            found = planned(find(name)(epsilon=EPSILON, **settings))
            if found is None or found[1].kind != "pure":
                continue
            table, plan = found
            said = [f"`{name}`", *(f"{key}={each}" for key, each in settings.items())]
            n_answers = sum(step.times * step.strata for step in plan.steps)
            reading = rounded_up(also_read(plan.rho), READING_DIGITS)
            yield (
                f"| {', '.join(said)} | {table} | {n_answers} | {float(BEFORE):g} "
                f"| {float(plan.rho):.4f} | {float(reading):g} |"
            )


def main() -> None:
    """Print the table."""
    print("| mechanism | table | answers | rho before | rho | epsilon at 10^-6 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    main()
