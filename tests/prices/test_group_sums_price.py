"""What group sums cost, by enumeration: every neighbouring pair of tiny tables of three
groups.

The loss of a person is worked out from the true numbers of all steps and the law of
their noise: |difference| / scale in nats for discrete Laplace noise, difference^2 /
(2 sigma^2) in rho for discrete Gaussian noise (``docs/proofs/groups.md``).
"""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd
import pytest
from tables import with_cap

from pdips import Schema, Table
from pdips.groups.design import GroupDesign
from pdips.groups.group_sums import SQUARES, GroupSums
from pdips.privacy.sensitivity import Sensitivity
from pdips.sampling import source_of_groups

SITES = {"levels": ["a", "b", "c"]}
OUTCOMES = {
    "bernoulli": ({"levels": [0, 1]}, [0, 1]),
    "normal": ({"lower": -2, "upper": 2}, [-2.0, 0.0, 2.0]),
    "poisson": ({"lower": 0, "upper": 3, "integer": True}, [0, 1, 3]),
}
KINDS = {"pure": None, "zcdp": "1e-6"}
CASES = list(product(OUTCOMES, KINDS, ("replace-one", "add-remove"), (1, 2)))


def schema_with(family, cap=1, *, public=False):
    outcome, _ = OUTCOMES[family]
    columns = {"y": outcome, "site": SITES | {"public": public}}
    return with_cap(Schema(columns=columns), cap)


def made(family, kind, relation, **settings):
    if relation == "add-remove":
        settings["n_records"] = 3
    return GroupSums(
        epsilon=Fraction(3, 2),
        delta=KINDS[kind],
        neighbours=relation,
        outcome="y",
        family=family,
        **settings,
    )


def table_of(records, schema):
    persons = {}
    if schema.records.person is not None:
        persons[schema.records.person] = range(len(records))
    frame = pd.DataFrame(records, columns=["y", "site"]).assign(**persons)
    return Table(frame, schema)


def moves(family, relation, cap):
    """Yield what a person has before and after: up to ``cap`` records each."""
    records = list(product(OUTCOMES[family][1], SITES["levels"]))
    persons = [
        each
        for size in range(cap + 1)
        for each in combinations_with_replacement(records, size)
    ]
    for one, other in product(persons, repeat=2):
        if relation == "replace-one" and len(one) == len(other):
            yield one, other
        if relation == "add-remove" and not (one and other):
            yield one, other


def numbers_of(design: GroupDesign, step, records, schema):
    rest = [(OUTCOMES[design.family][1][0], "a"), (OUTCOMES[design.family][1][1], "b")]
    table = table_of([*rest, *records], schema)
    asked = design.squares if step.name == SQUARES else design.ends_by_group
    return asked(table)


def loss(step, one, other) -> Fraction:
    apart = [abs(int(a) - int(b)) for a, b in zip(one, other, strict=True)]
    if step.law == "laplace":
        return sum(apart) / step.scale
    return Fraction(sum(each * each for each in apart)) / (2 * step.variance)


def worst(family, relation, cap, plan, step, pairs=None, numbers=numbers_of):
    """The largest loss of a step in its price."""
    asked = {}

    def of(records):
        if records not in asked:
            asked[records] = numbers(plan.design, step, records, plan.schema)
        return asked[records]

    found = pairs or moves(family, relation, cap)
    return max(loss(step, of(one), of(other)) for one, other in found) / step.price


@pytest.mark.parametrize(("family", "kind", "relation", "cap"), CASES)
def test_each_step_costs_its_price_and_no_more(family, kind, relation, cap):
    plan = made(family, kind, relation).plan(schema_with(family, cap))
    for step in plan.steps:
        ratio = worst(family, relation, cap, plan, step)
        # rounding makes squares of numbers within a step of their bound
        assert 0.999 < ratio <= 1
    total = sum(step.price for step in plan.steps)
    assert total == plan.made_by.total


@pytest.mark.parametrize("family", OUTCOMES)
@pytest.mark.parametrize("kind", KINDS)
def test_who_changes_groups_and_who_stays_and_changes_the_value_cost_the_same(
    family, kind
):
    low, *_, high = OUTCOMES[family][1]
    plan = made(family, kind, "replace-one").plan(schema_with(family))
    ends = plan.steps[0]
    for pair in (((low, "a"),), ((low, "b"),)), (((low, "a"),), ((high, "a"),)):
        assert worst(family, "replace-one", 1, plan, ends, pairs=[pair]) == 1


@pytest.mark.parametrize("family", OUTCOMES)
@pytest.mark.parametrize("kind", KINDS)
def test_public_membership_halves_the_price_of_a_value(family, kind):
    plan = made(family, kind, "replace-one").plan(schema_with(family, public=True))
    ends = plan.steps[0]
    records = [
        (((one, site),), ((other, site),))
        for one, other in product(OUTCOMES[family][1], repeat=2)
        for site in SITES["levels"]
    ]
    assert worst(family, "replace-one", 1, plan, ends, pairs=records) == 1
    hidden = made(family, kind, "replace-one").plan(schema_with(family))
    assert ends.variance * 2 == hidden.steps[0].variance
    assert ends.scale * 2 == hidden.steps[0].scale


def small_share(design, step, records, schema):
    """The broken twin of a record's split: its outcome counts twice, and the number of
    records once, at the price of equal parts.
    """
    table = table_of([(OUTCOMES[design.family][1][0], "a"), *records], schema)
    ends = design.ends_by_group(table).reshape(2, -1)
    size = ends.sum(axis=0)
    off = ends[1] - ends[0]
    return np.concatenate([(size - 2 * off) // 2, (size + 2 * off) // 2])


def test_a_count_with_too_small_a_share_is_found():
    plan = made("poisson", "zcdp", "replace-one").plan(schema_with("poisson"))
    ends = plan.steps[0]
    ratio = worst("poisson", "replace-one", 1, plan, ends, numbers=small_share)
    assert ratio > 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_price_that_forgets_the_block_a_record_comes_to_is_found(kind):
    plan = made("bernoulli", kind, "replace-one").plan(schema_with("bernoulli"))
    one = Sensitivity.of_record(plan.schema, l1=1, l2_squared=1)
    forgotten = replace(plan.steps[0], sensitivity=one)
    assert worst("bernoulli", "replace-one", 1, plan, forgotten) == 2


def test_a_forgotten_cap_is_found():
    plan = made("bernoulli", "zcdp", "replace-one").plan(schema_with("bernoulli", 2))
    capless = Sensitivity.of_record(schema_with("bernoulli"), l1=2, l2_squared=2)
    forgotten = replace(plan.steps[0], sensitivity=capless)
    assert worst("bernoulli", "replace-one", 2, plan, forgotten) == 4


@pytest.mark.parametrize("family", OUTCOMES)
def test_the_steps_of_any_value_are_bounded_and_those_of_a_record_its_own(family):
    design = GroupDesign.of(schema_with(family), "y", family)
    odd = [np.nan, np.inf, -np.inf, -1e300, 1e300, *OUTCOMES[family][1]]
    upper = design.upper_steps(odd)
    assert ((upper >= 0) & (upper <= design.steps)).all()
    alone = [int(design.upper_steps([value])[0]) for value in odd]
    assert upper.tolist() == alone


def slopes_plan(kind, relation):
    """The plan of a slope that differs by three sites, of a public covariate, and a
    table of records of value, site and covariate.
    """
    # public columns tell the number of records
    public = {"public": relation == "replace-one"}
    columns = {
        "y": OUTCOMES["normal"][0],
        "site": SITES,
        "year": {"lower": 0, "upper": 1, "integer": True} | public,
    }
    schema = Schema.model_validate({"columns": columns})
    source = source_of_groups("y ~ year + (1 + year | site)", schema, {})
    settings = {"n_records": 3} if relation == "add-remove" else {}
    made = GroupSums(
        epsilon=Fraction(3, 2),
        delta=KINDS[kind],
        neighbours=relation,
        model=source,
        **settings,
    )
    return made.plan(schema)


def slopes_numbers(plan, step, records):
    rest = [(-2.0, "a", 0), (2.0, "b", 1), *records]
    frame = pd.DataFrame(rest, columns=["y", "site", "year"])
    asked = plan.design.squares if step.name == SQUARES else plan.design.ends_by_group
    return asked(Table(frame, plan.schema))


def worst_of_slopes(plan, step, relation, numbers=slopes_numbers):
    """The largest loss of a step in its price, by what a person may do: change the
    group, or stay and change the value.
    """
    values = OUTCOMES["normal"][1]
    records = list(product(values, SITES["levels"], (0, 1)))
    asked = {each: numbers(plan, step, [each]) for each in records}
    asked[None] = numbers(plan, step, [])
    found = {"moves": Fraction(0), "stays": Fraction(0)}
    pairs = product(records, [None])
    if relation == "replace-one":
        # what is public is the same in both tables
        pairs = (
            pair for pair in product(records, repeat=2) if pair[0][2] == pair[1][2]
        )
    for one, other in pairs:
        does = "moves" if other is None or one[1] != other[1] else "stays"
        of_pair = loss(step, asked[one], asked[other]) / step.price
        found[does] = max(found[does], of_pair)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_slopes_of_a_public_covariate_cost_their_price_and_no_more(kind, relation):
    plan = slopes_plan(kind, relation)
    assert plan.design.n_groups == 6
    ends, squares = plan.steps
    found = worst_of_slopes(plan, ends, relation)
    assert found["moves"] == 1
    # who stays and goes from one end of the range to the other moves as many steps
    assert found["stays"] == (1 if relation == "replace-one" else 0)
    assert max(worst_of_slopes(plan, squares, relation).values()) <= 1
    assert ends.price + squares.price == plan.made_by.total


def weighted_by_covariate(plan, step, records):
    """The broken twin: sums of products with the covariate beside those of values, at
    the price of one of them.
    """
    exact = slopes_numbers(plan, step, records)
    by_year = exact.reshape(-1, 2)
    by_year[:, 0] += by_year[:, 1]
    return by_year.ravel()


@pytest.mark.parametrize("kind", KINDS)
def test_products_with_the_covariate_at_the_price_of_sums_are_found(kind):
    plan = slopes_plan(kind, "replace-one")
    found = worst_of_slopes(
        plan, plan.steps[0], "replace-one", numbers=weighted_by_covariate
    )
    assert min(found.values()) == 2
