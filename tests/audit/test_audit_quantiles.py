"""Audits of quantile lines: the flaws of Tran et al. (2023) and their programs are caught, the sound form is not.

Counts engines run 20,000 times at confidence 1 - 1e-6 with fixed seeds: a sound mechanism is accused with that
probability.
"""

import json
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from tables import Flawed

from pdips import KNG
from pdips.audit import Case, audit, audit_cases, overspending, registered_cases
from pdips.audit.cases.quantile import FIRMS, WAGES
from pdips.audit.neighbour_pairs import Pair, table_of, where_allowed

SURE = 1 - 1e-6


def found_by(cases, **more):
    return audit_cases(cases, n_runs=20_000, confidence=SURE, rng=np.random.default_rng(0), **more)


def cases_of(start: str, **settings) -> list[Case]:
    return [case for case in registered_cases("kng", **settings) if case.pair.name.startswith(start)]


def test_the_published_sensitivity_is_caught_at_the_top_percentile():
    exact, counts = found_by(cases_of("percentile", variant="published"))
    assert exact.claim == counts.claim == pytest.approx(0.1)
    assert exact.bound == pytest.approx(4.711, abs=0.0005)
    assert counts.bound > 3
    assert {found.verdict for found in found_by(cases_of("percentile"))} == {"consistent"}


def program(pdips, *words) -> dict[str, dict]:
    """Audit kng by the program; what it found for the 99th percentile, by engine."""
    code, out, err = pdips("audit", "kng", "--runs", 1_000, "--seed", 1, "--json", *words)
    assert (code, err) == (0, "")
    found = json.loads(out)["findings"]
    return {each["engine"]: each for each in found if each["pair"].startswith("percentile")}


def test_the_program_finds_the_violation(pdips):
    # without --epsilon the case has its own claim, and with one it has the user's, however it is spelt
    own = program(pdips, "--variant", "published")
    assert {each["verdict"] for each in own.values()} == {"VIOLATION"}
    assert {each["claim"] for each in own.values()} == {0.1}
    assert own["exact"]["bound"] == pytest.approx(4.711, abs=0.0005)
    spelt = program(pdips, "--variant", "published", "--epsilon", "0.10")
    assert spelt == own  # the seed repeats the counted bound too
    assert {each["verdict"] for each in program(pdips).values()} == {"consistent"}
    asked = program(pdips, "--variant", "published", "--epsilon", "1")
    assert asked["exact"]["claim"] == 1
    assert asked["exact"]["bound"] > 20


def test_settings_are_compared_as_numbers():
    def build(**usual):
        return KNG(**{"epsilon": "0.50", "quantiles": ("0.5",), **usual, "scheme": "stepwise"})

    assert where_allowed(build, epsilon="1/2", quantiles=("1/2",)) is not None
    assert where_allowed(lambda **usual: build(**usual | {"epsilon": 1}), epsilon="1/2") is None
    assert where_allowed(build, scheme="plain") is None
    assert where_allowed(build, quantiles=()) is None


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_line_that_overspends_by_a_quarter_is_caught_by_both_engines(relation):
    more = {"neighbours": relation} | ({"n_records": 9} if relation == "add-remove" else {})
    cases = cases_of("turning", **more)
    honest = audit_cases(cases, n_runs=40_000, confidence=SURE, rng=np.random.default_rng(0))
    claim = max(found.bound for found in honest if found.engine == "exact")
    assert 0.8 < claim < 1
    twins = [Case(overspending(case.mechanism, Fraction(5, 4)), case.pair, case.engine) for case in cases]
    more = {"n_runs": 40_000, "confidence": 0.999, "rng": np.random.default_rng(0), "claim": claim}
    assert {found.verdict for found in audit_cases(twins, **more)} == {"VIOLATION"}


@dataclass(frozen=True, kw_only=True)
class CrossingAtRecords(Flawed):
    """Tran et al. (2023), equations 7 and 9: a line may cross another one where no record is."""

    def observe(self, table, n_runs, bits):
        size = table.codes["size"] / 9.0
        slopes = bits.generator().uniform(-1, 1, n_runs)  # beside a flat line that is 0.2 lower, evenly
        allowed = (0.2 + slopes[:, None] * size >= 0).all(axis=1)
        return np.where(allowed & (slopes < -0.5), 1, 0)[:, None]


def test_a_constraint_on_confidential_rows_is_caught():
    # whether a steep fall is possible depends on the largest firm alone; sizes are confidential here
    from pdips import Schema

    schema = Schema.model_validate(
        {"columns": {name: {"lower": 0, "upper": 10, "bins": bins} for name, bins in (("size", 10), ("wage", 100))}}
    )
    first, second = (table_of([(0, 0), (size, 0)], schema) for size in (0, 9))
    pair = Pair("the largest firm leaves", first, second, "replace-one")
    found = audit(CrossingAtRecords(), pair, n_runs=20_000, confidence=SURE, rng=np.random.default_rng(0))
    assert found.verdict == "VIOLATION"
    assert found.bound > 5
    assert "size" in FIRMS.public_columns  # the sound form asks the public box only, also where sizes are public


@dataclass(frozen=True, kw_only=True)
class ShortChain(Flawed):
    """A chain of 100 steps of 0.1 that starts at the table's own median."""

    def observe(self, table, n_runs, bits):
        wages, rng = table.codes["wage"].astype(float), bits.generator()
        theta = np.full(n_runs, np.median(wages))

        def gradient(at):
            return np.abs((wages <= at[:, None]).sum(axis=1) - len(wages) / 2)

        for _ in range(100):
            proposed = theta + rng.normal(0, 0.1, n_runs)
            accepted = np.log(rng.random(n_runs)) < float(self.epsilon) / 2 * (gradient(theta) - gradient(proposed))
            theta = np.where(accepted, proposed, theta)
        return (theta > 50).astype(np.int64)[:, None]


def test_a_short_chain_from_the_tables_own_estimate_is_caught():
    first, second = (table_of([(0,), (0,), (99,), (99,), (wage,)], WAGES) for wage in (99, 0))
    pair = Pair("the middle one changes sides", first, second, "replace-one")
    found = audit(ShortChain(), pair, n_runs=2_000, confidence=SURE, rng=np.random.default_rng(0))
    assert found.verdict == "VIOLATION"
    assert found.bound > 3
