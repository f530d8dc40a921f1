"""What every registered mechanism owes, computed exactly: persons' caps, prices, shares
of a budget, the statement.

Laws are enumerated by the code that releases run (``law``), so there is no randomness.
Each check has a broken twin.
"""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from small_models import PAIRS, cells_of, draw_cells, ready, shares_of_cells
from tables import cases, schema_in, with_cap

from pdips import InputError, Ledger, PrivBayes, Schema, Table
from pdips.audit import overspending
from pdips.audit.cases.margins import BITS, TINY
from pdips.audit.cases.posterior import COIN, GROUPS, AlongTable, coin, mean
from pdips.audit.cases.quantile import ABSENT, FIRMS, WAGES
from pdips.audit.findings import exact_bound, law_of
from pdips.audit.neighbour_pairs import Pair, extremes, table_of, worst_pairs
from pdips.errors import ResumableError
from pdips.margins import elections
from pdips.margins.elections import (
    STEPS_PER_UNIT,
    group_width,
    node_width,
)
from pdips.posterior import censored_posterior as prices
from pdips.privacy.loss import DIGITS, largest_rho, zcdp
from pdips.registry import AUDITS, MECHANISMS
from pdips.statistics.model import StatisticModel
from pdips.statistics.statistic import Counts

ROUNDING = 1e-9
CAPS = (1, 2, 3)
NUMBERS = Schema(columns={"x": {"lower": -4, "upper": 4, "bins": 8}})
ALONG = table_of([(0,), (2,), (4,), (6,)], NUMBERS)
"""Of which the noisy numbers are on which the references of scores depend."""
ALL_BUT = "0.999"

OBJECTS = {"coin": coin, "mean": mean, "ALONG": ALONG}
SCHEMAS = {
    "COIN": COIN,
    "WAGES": WAGES,
    "ABSENT": ABSENT,
    "FIRMS": FIRMS,
    "TINY": TINY,
    "GROUPS": GROUPS,
    "BITS": BITS,
}
SCHEMAS |= {
    "NUMBERS": NUMBERS,
    "FOUR": Schema(columns={name: {"levels": [0, 1]} for name in "ab"}),
    "AGES": Schema(
        columns={"age": {"lower": 0, "upper": 9, "integer": True, "bins": 9}}
    ),
    "STRATA": Schema(
        columns={
            "g": {"levels": ["a", "b"], "public": True},
            "wage": WAGES.columns["wage"],
        }
    ),
}


def with_objects(settings):
    return settings | {
        key: OBJECTS[value]
        for key, value in settings.items()
        if key in ("model", "along")
    }


LAWS = {
    name: [
        (with_objects(settings), SCHEMAS[schema], shown)
        for settings, schema, shown in rows
    ]
    for name, rows in cases(__file__, "laws").items()
}
"""Settings, a schema, and how much of epsilon the pairs below show at least."""


def laws(least: float = 0):
    for name, settings, schema, shown in (
        (n, *each) for n, rows in LAWS.items() for each in rows
    ):
        for relation in ready(name).offers.relations:
            if not (
                relation == "add-remove"
                and (schema.public_columns or settings.get("utility") == "bic")
            ):
                words = [
                    f"{key}={value}"
                    for key, value in settings.items()
                    if isinstance(value, (str, int))
                ]
                if shown >= least:
                    yield pytest.param(
                        name,
                        relation,
                        settings,
                        schema,
                        shown,
                        id="-".join([name, relation, *words]),
                    )


def made_of(name, relation, settings, epsilon=1):
    mechanism = AlongTable if "along" in settings else ready(name)
    if relation == "add-remove" and "n_records" in mechanism.__dataclass_fields__:
        settings = {"n_records": 4, **settings}
    return mechanism(epsilon=epsilon, neighbours=relation, **settings)


def moved(schema: Schema, relation: str, cap: int) -> list[Pair]:
    """Pairs in which all ``cap`` records of one person move, together or to places of
    their own, or leave.
    """
    schema = with_cap(schema, cap)
    first, last = extremes(schema)
    top = {
        k: column.n_levels - 1
        for k, column in enumerate(schema.columns.values())
        if column.public
    }
    low, high = (
        tuple(top.get(k, level) for k, level in enumerate(end)) for end in (first, last)
    )
    persons, crowd = [0, 1, *[2] * cap], [first, last]
    ends = [[high] * cap, [(low, high)[k % 2] for k in range(cap)]]
    mixed = table_of([*crowd, *[low] * cap], schema, persons)
    if relation == "add-remove":
        others = [table_of(crowd, schema, persons[:2])]
    else:
        others = [table_of([*crowd, *end], schema, persons) for end in ends]
    usual = (
        worst_pairs(schema, relation) if cap == 1 and not schema.public_columns else []
    )
    return [
        *usual,
        *(Pair("all records of a person", mixed, other, relation) for other in others),
    ]


# The list.


def test_every_registered_mechanism_is_held_to_the_contract():
    assert set(LAWS) == set(MECHANISMS) == set(AUDITS)
    priced = {name for name in MECHANISMS if "sound" in ready(name).variants}
    assert {name for name, rows in LAWS.items() if rows} == priced
    covered = {
        (name, relation) for name, relation, *_ in (each.values for each in laws())
    }
    assert covered == {
        (name, relation) for name in priced for relation in ready(name).offers.relations
    }


# Persons of several records.


def outcomes_of(made, table) -> dict[tuple[int, ...], tuple]:
    return {
        each.key: (each.log_probability, each.statistics, each.scales)
        for each in law_of(made, table).outcomes
    }


def are_one_law(one, other) -> bool:
    """Whether two laws have the same outcomes, true statistics, scales of noise, and
    probabilities.
    """
    if one.keys() != other.keys() or any(one[key][1:] != other[key][1:] for key in one):
        return False
    return all(math.isclose(one[key][0], other[key][0], abs_tol=1e-7) for key in one)


def uneven(schema: Schema) -> list[tuple[int, ...]]:
    """Records that tell columns apart: elections and networks that score all columns
    alike would hide their price.
    """
    first, last = extremes(schema)
    stairs = [(*last[:k], *first[k:]) for k in range(len(first) + 1)]
    return [*stairs, stairs[1], stairs[1], tuple(level // 2 for level in last)]


def costs_in_proportion(name, relation, settings, schema, charged) -> bool:
    """Whether at a cap of c and c times epsilon a table is treated as at a cap of 1:
    every stage, at every scale.
    """
    records = uneven(schema)
    alone = outcomes_of(
        made_of(name, relation, settings), table_of(records, with_cap(schema, 1))
    )
    return all(
        are_one_law(
            alone,
            outcomes_of(made_of(name, relation, settings, cap), charged(records, cap)),
        )
        for cap in CAPS[1:]
    )


@pytest.mark.slow_cases(
    "censored-posterior-replace-one-centre=reference",
)
@pytest.mark.parametrize(
    ("name", "relation", "settings", "schema", "shown"), list(laws())
)
def test_a_person_of_c_records_costs_c_times_in_every_stage(
    name, relation, settings, schema, shown
):
    proportion = partial(costs_in_proportion, name, relation, settings, schema)
    assert proportion(lambda records, cap: table_of(records, with_cap(schema, cap)))
    # the broken twin reads a cap of 1 whatever the schema says
    assert not proportion(lambda records, cap: table_of(records, with_cap(schema, 1)))


def test_a_stage_that_forgets_the_cap_is_seen(monkeypatch):
    whole = PrivBayes.choice_sensitivity

    def forgetful(self, schema):
        found = whole(self, schema)
        return replace(found, l1=found.l1 / schema.records.max_per_person)

    settings = {"degree": 1, "network_share": ALL_BUT, "usefulness": 0}
    charged = lambda records, cap: table_of(records, with_cap(BITS, cap))  # noqa: E731
    assert costs_in_proportion("privbayes", "replace-one", settings, BITS, charged)
    monkeypatch.setattr(PrivBayes, "choice_sensitivity", forgetful)
    assert not costs_in_proportion("privbayes", "replace-one", settings, BITS, charged)


# The exact loss of one person, at any split of the budget.


def worst(made, pairs) -> float:
    return max(exact_bound(made, pair).epsilon for pair in pairs)


@pytest.mark.slow_cases(
    "scores-add-remove-1",
    "scores-replace-one-1",
)
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize(
    ("name", "relation", "settings", "schema", "shown"), list(laws())
)
def test_a_person_loses_at_most_epsilon(name, relation, settings, schema, shown, cap):
    found = worst(made_of(name, relation, settings), moved(schema, relation, cap))
    assert found <= 1 + ROUNDING
    if cap == 1 and relation == "replace-one":
        assert found >= shown - ROUNDING


@pytest.mark.slow_cases(
    "scores-add-remove",
    "scores-replace-one",
)
@pytest.mark.parametrize(
    ("name", "relation", "settings", "schema", "shown"), list(laws(least=1))
)
def test_what_spends_or_moves_more_than_is_declared_is_caught(
    name, relation, settings, schema, shown
):
    made, pairs = made_of(name, relation, settings), moved(schema, relation, 1)
    # scale x price is the sensitivity, neither more nor less
    assert worst(made, pairs) == pytest.approx(1)
    assert worst(overspending(made, Fraction(5, 4)), pairs) == pytest.approx(5 / 4)
    # the broken twin: two records of one person, read under a schema that says that
    # nobody has more than one
    once, twice = with_cap(schema, 1, None), moved(schema, relation, 2)
    read = [
        [Table(side.frame.drop(columns="person"), once) for side in (p.first, p.second)]
        for p in twice
    ]
    misread = [SimpleNamespace(first=first, second=second) for first, second in read]
    assert worst(made, misread) == pytest.approx(2)


def losses_by_scale(made, pairs) -> list[float]:
    """The worst loss of the statistics of each scale of noise, over pairs."""
    found: dict[Fraction, float] = {}
    for pair in pairs:
        (a,), (b,) = (
            law_of(made, table).outcomes for table in (pair.first, pair.second)
        )
        for scale in {scale for scale in a.scales if scale}:
            here = zip(a.statistics, b.statistics, a.scales, strict=True)
            lost = float(
                sum(abs(x - y) / scale for x, y, each in here if each == scale)
            )
            found[scale] = max(found.get(scale, 0.0), lost)
    return sorted(found.values())


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize(
    ("name", "settings", "schema"),
    [
        ("steps", {"order": ("ill",), "layers": 1, "budget": ("1/4", "3/4")}, TINY),
        (
            "steps",
            {"order": ("ill",), "layers": 1, "budget": ("999/1000", "1/1000")},
            TINY,
        ),
        ("kng-residual", {"bins": 4}, ABSENT),
        ("laplace-sanitizer", {}, TINY),
    ],
)
def test_each_noised_stage_loses_what_its_item_says(name, settings, schema, cap):
    made = ready(name)(epsilon=1, **settings)
    schema_capped = with_cap(schema, cap)
    first, last = extremes(schema)
    far = tuple(
        level - column.missing
        for level, column in zip(last, schema.columns.values(), strict=True)
    )
    here, there = (
        table_of([first, *[end] * cap], schema_capped, [0, *[1] * cap])
        for end in (first, far)
    )
    found = losses_by_scale(
        made,
        [*moved(schema, "replace-one", cap), Pair("ends", here, there, "replace-one")],
    )
    items = [float(item.epsilon) for item in made.spends(schema_capped)]
    if name == "kng-residual":  # one item a column: a fifth of it says who has a value
        items = [items[0] / 5, items[0] * 4 / 5]
    assert found == pytest.approx(sorted(items))
    swapped = list(reversed(found))
    assert len(found) == 1 or swapped != pytest.approx(sorted(items))


# Elections: a step's nats times the most steps that a person moves scores by.


@pytest.mark.parametrize(("relation", "nodes"), [("add-remove", 1), ("replace-one", 2)])
def test_rounding_of_scores_is_paid_for(relation, nodes, monkeypatch):
    # AICs that are exact to 1e-9 and rise by 0 and 2, beside the boundary of a step:
    # rounding adds two
    boundary, error = (7 + 0.5) / STEPS_PER_UNIT, 1e-9
    monkeypatch.setattr(elections, "one_way_aic", lambda values, **_: values)
    ends = np.array(
        [[boundary - error, boundary + 2 + error], [boundary + error, boundary - error]]
    )
    (a, b), (c, d) = elections.aic_steps(ends, penalty=2.0)
    spread = (b - a) - (d - c)
    assert spread == 2 * STEPS_PER_UNIT + 2
    assert spread * nodes == node_width(relation) * STEPS_PER_UNIT
    assert spread * nodes > 2 * nodes * STEPS_PER_UNIT  # the broken twin: no slack
    # of a mean AIC, either way
    most = (
        2 + 1 / STEPS_PER_UNIT if relation == "replace-one" else 1 + 1 / STEPS_PER_UNIT
    )
    assert group_width(relation) == pytest.approx(2 * (2 * most + 1 / STEPS_PER_UNIT))


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("elect", ["node", "layer", "groups"])
def test_elections_spend_what_they_are_charged(elect, neighbours, cap):
    made = ready("steps")(
        epsilon=1, elect=elect, election_share=ALL_BUT, neighbours=neighbours
    )
    schema = with_cap(TINY, cap)
    width = group_width(neighbours) if elect == "groups" else node_width(neighbours)
    units = [
        1 / step.scale for step in made.plan(schema).steps if step.law == "exponential"
    ]
    spent = [unit * width * STEPS_PER_UNIT * cap for unit in units]
    assert sum(spent) == Fraction(ALL_BUT)
    assert [
        item.epsilon for item in made.spends(schema) if "noisy" not in item.step
    ] == spent


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("n_sets", [1, 3])
def test_rounds_of_a_network_spend_what_they_are_charged(n_sets, cap):
    settings = {
        "n_sets": n_sets,
        "split": "per-set",
        "degree": 1,
        "network_share": ALL_BUT,
    }
    made, schema = PrivBayes(epsilon=1, **settings), with_cap(BITS, cap)
    choices, n_rounds = made.plan(schema).steps[0], made.plan(schema).design.n_rounds
    items = [
        item.epsilon
        for item in made.spends(schema)
        if item.step.startswith("choice of the network")
    ]
    # two scores move in opposite directions
    assert items == [2 / choices.scale * cap * n_rounds] * n_sets
    assert choices.times == n_rounds > 1
    assert sum(items) == Fraction(ALL_BUT)


# Prices.


@pytest.mark.parametrize(
    ("name", "relation", "settings", "schema", "shown"), list(laws())
)
def test_items_add_up_to_the_price_whatever_the_split(
    name, relation, settings, schema, shown
):
    splits = ready(name).splits
    if settings.get("measure") == "pairs":  # one answer for all sets
        splits = ("once",)
    for split in splits:
        more = {"split": split, "n_sets": 3} if len(splits) > 1 else {}
        made = made_of(name, relation, settings | more, epsilon="0.7")
        for loss in (made.privacy_loss(schema), made.privacy_loss()):
            assert (loss.kind, loss.neighbours, loss.epsilon) == (
                "pure",
                relation,
                Fraction(7, 10),
            )
        assert sum(item.epsilon for item in made.spends(schema)) == Fraction(7, 10)


@pytest.mark.parametrize("epsilon", ["0.1", "1", "7/3", "50"])
@pytest.mark.parametrize("share", ["1/1000", "1/3", "999/1000"])
@pytest.mark.parametrize("n_draws", [1, 3, 7])
def test_a_concentrated_price_never_exceeds_what_was_asked_for(epsilon, share, n_draws):
    asked, delta = Fraction(epsilon), Fraction(1, 10**6)
    price, most = (
        prices.concentrated(asked, delta, Fraction(share), n_draws),
        largest_rho(asked, delta),
    )
    assert price.rho == price.stage**2 / 2 + n_draws * price.draw**2 / 8 <= most
    assert zcdp(price.rho, delta, "replace-one", "").epsilon <= asked
    assert price.rho > most * (1 - Fraction(1, 10**6))
    assert price.stage**2 <= 2 * most * Fraction(share)
    # the twin, rounded up
    assert (price.stage + Fraction(1, DIGITS)) ** 2 > 2 * most * Fraction(share)


# Shares of the budget: refused before the charge, or released.

SMALL = schema_in("contract_small")
SIX = pd.DataFrame(
    {"g": list("aabbab"), "x": [1.0, 2, 3, 9, 4, 5], "y": [10.0, 20, 90, 40, None, 60]}
)
SPAN = {"levels": [1, 2], "public": True}
YEAR = {"lower": 0, "upper": 10, "missing": True}
PANEL = Schema(columns={"first": SPAN, "last": SPAN, "e_1": YEAR, "e_2": YEAR})
UNITS = pd.DataFrame(
    {
        "first": [1, 1, 2, 1],
        "last": [2, 2, 2, 1],
        "e_1": [3.0, 4.0, None, 9.0],
        "e_2": [4.0, 9.0, 3.0, None],
    }
)

OBJECTS["TWICE"] = StatisticModel(
    lambda schema: cells_of(schema) | {"again": Counts(by=("g",))},
    shares_of_cells,
    draw_cells,
    "twice",
)
SHARES = [
    (name, option, with_objects(settings))
    for name, option, settings in cases(__file__, "shares")
]
EXTREME = [*product(("1e-12", "0.999999999999"), ("1e-6", "1e-3"))]
EXTREME += [("1e-6", "1e-3"), ("0.999999", "1e-6"), ("0.999999", "50")]
"""A share, and an epsilon."""


def ended(name, option, value, epsilon, settings, path) -> str:
    """Release to a ledger, and say how it ended."""
    ledger = Ledger(path / f"{name}{option}{value}{epsilon}".replace("/", ""))
    table = Table(UNITS, PANEL) if "panel" in settings else Table(SIX, SMALL)
    if option == "second_share":  # from four columns on
        table = Table(
            SIX.assign(h=SIX["g"]),
            Schema(columns={**SMALL.columns, "h": SMALL.columns["g"]}),
        )
    shares = (
        {"cells": value, "again": 1 - Fraction(value)}
        if name == "modips"
        else {"g": 1, "x": value, "y": 1}
    )
    named = {"budget": shares}
    try:
        made = ready(name)(
            epsilon=epsilon, **{**settings, option: named.get(option, value)}
        )
        made.release(table, ledger=ledger, rng=np.random.default_rng(0))
    except (InputError, ResumableError) as error:
        charged = ledger.path.exists() and ledger.entries()
        return f"charged and then dead: {error}" if charged else f"refused: {error}"
    return "released"


@pytest.mark.slow_cases(
    "pairs-second_share-1",
    "pairs-single_share-0",
    "pairs-single_share-1",
)
@pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning")
@pytest.mark.parametrize(
    ("name", "option", "settings"),
    SHARES,
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_share_is_refused_before_the_charge_or_works(
    name, option, settings, tmp_path
):
    found = [
        ended(name, option, value, epsilon, settings, tmp_path)
        for value, epsilon in EXTREME
    ]
    assert {end.partition(":")[0] for end in found} <= {"released", "refused"}, found
    if option != "delta":
        assert "released" in found
    said = [end for end in found if end.startswith("refused")]
    assert all("epsilon" in end or option in end for end in said), said


def test_every_share_there_is_is_tried():
    tried = {(name, option) for name, option, _ in SHARES}
    names = MECHANISMS.keys() - {"censored-posterior", "pseudo-posterior"}
    fields = {
        (name, field) for name in names for field in ready(name).__dataclass_fields__
    }
    assert {each for each in fields if each[1].endswith("share")} <= tried


def test_a_share_that_dies_after_the_charge_is_seen(monkeypatch, tmp_path):
    from pdips.quantile import column_plan, kng

    for module in (column_plan, kng):
        monkeypatch.setattr(module, "SMALLEST_EPSILON", Fraction(0))
    monkeypatch.setattr("pdips.privacy.plan.check_scale", lambda *_: None)
    # otherwise so small an epsilon leaves no line to pay for
    lines = {"predictors": {"y": ("x",)}}
    assert ended(
        "kng-residual", "line_share", "0.999999999999", "1e-6", lines, tmp_path
    ).startswith("charged")


# The statement: each assumption exactly where the schema or the settings call for it.


def cap_of(schema: Schema) -> int:
    return schema.records.max_per_person


STATED = {
    "That no person has more than one record is declared": lambda s, m: (
        not s.records.person and cap_of(s) == 1
    ),
    "That no person has more than 2 records is declared": lambda s, m: (
        not s.records.person and cap_of(s) == 2
    ),
    "Records without a value in 'person' are taken to be of a different "
    "person": lambda s, m: bool(s.records.person),
    "up to 2 records": lambda s, m: cap_of(s) == 2,
    "Public columns, their values copied": lambda s, m: bool(s.public_columns),
    "replacing all that one person": lambda s, m: m.neighbours == "replace-one",
    "adding or removing all that one person": lambda s, m: m.neighbours == "add-remove",
    "the number of records is public": lambda s, m: m.neighbours == "replace-one",
    "delta = 0.000001": lambda s, m: getattr(m, "delta", None) is not None,
    "with epsilon = 0.7 in total over 1 synthetic set:": lambda s, m: True,
    "Assumptions: the schema": lambda s, m: True,
    "NO GUARANTEE": lambda s, m: False,
}


def statements():
    for name in (
        name for name in sorted(MECHANISMS) if "sound" in ready(name).variants
    ):
        mechanism = ready(name)
        kinds = (
            ("pure", "zcdp") if "delta" in mechanism.__dataclass_fields__ else (None,)
        )
        for relation, kind in product(mechanism.offers.relations, kinds):
            yield pytest.param(
                name,
                relation,
                {"delta": "1e-6"} if kind == "zcdp" else {},
                id=f"{name}-{relation}-{kind}",
            )


@pytest.mark.slow_cases(
    "censored-posterior-add-remove-pure",
    "censored-posterior-add-remove-zcdp",
    "censored-posterior-replace-one-pure",
    "censored-posterior-replace-one-zcdp",
    "scores-add-remove-pure",
    "scores-add-remove-zcdp",
    "scores-replace-one-pure",
    "scores-replace-one-zcdp",
)
@pytest.mark.parametrize(("name", "relation", "settings"), list(statements()))
def test_the_statement_says_what_the_schema_and_the_settings_call_for(
    name, relation, settings
):
    made, n_checked = made_of(name, relation, settings, epsilon="0.7"), 0
    for base, cap, person in product((TINY, PAIRS), (1, 2), (None, "person")):
        schema = with_cap(base, cap, person)
        try:
            said = made.privacy_loss(schema).statement
        except InputError:  # a plan is for schemas that the mechanism takes
            continue
        n_checked += 1
        assert said.startswith(f"{name} with epsilon")
        assert {words: words in said for words in STATED} == {
            words: due(schema, made) for words, due in STATED.items()
        }
    assert n_checked >= 4


def test_a_release_states_what_ran():
    for name in ("laplace-sanitizer", "kng-residual"):
        made = made_of(name, "replace-one", {})
        schema = with_cap(SMALL, 2)
        table = Table(SIX.assign(person=list("aabbcc")), schema)
        seeded, drawn = (
            made.release(table, rng=rng)[0].loss.statement
            for rng in (np.random.default_rng(0), None)
        )
        assert drawn == made.privacy_loss(schema).statement
        assert seeded.endswith(drawn)
        assert seeded.startswith("MADE FROM A SEED") > drawn.startswith(
            "MADE FROM A SEED"
        )
