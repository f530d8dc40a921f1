"""What a release of quantile lines costs, computed exactly: all tiny tables, all
neighbours, all outcomes.

The exact law of the choices is enumerated by the code that releases run; counts have
discrete Laplace noise of known scale, so the loss of an outcome is the difference of
log probabilities and of counts divided by scales. No randomness.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product

import pandas as pd
import pytest
from quantile_tables import Lines
from tables import loss_between as loss

from pdips import KNG, KNGResidual, Schema, Table
from pdips.privacy.replay import exact_law
from pdips.quantile.gradient import Gradient
from pdips.quantile.line_search import Fitter
from pdips.quantile.quantile_plan import SCHEMES, QuantilePlan

EPSILON = Fraction(3, 2)
ROUNDING = 1e-9
THIRDS = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
VALUES = (0.0, 0.01, 1.0)


def neighbours_of(records, universe, relation):
    for i in range(len(records)):
        rest = records[:i] + records[i + 1 :]
        if relation == "add-remove":
            yield rest
        else:
            yield from (
                tuple(sorted((*rest, other)))
                for other in universe
                if other != records[i]
            )


def worst_loss(law_of, universe, relation, sizes=(1, 2, 3)) -> float:
    """The worst loss over all tables of these sizes and their neighbours."""
    laws = {}

    def known(records):
        if records not in laws:
            laws[records] = law_of(records)
        return laws[records]

    pairs = (
        (records, other)
        for n in sizes
        for records in combinations_with_replacement(universe, n)
        for other in neighbours_of(records, universe, relation)
    )
    return max(loss(known(a), known(b)) for a, b in pairs)


def lines_law(plan, relation, *, n_candidates=3, n_predictors=0, norm="hull"):
    """Return the law of the lines of records (x_1, ..., x_p, y) as a function of
    them.
    """
    fitter = Fitter(neighbours=relation, n_intercepts=n_candidates, norm=norm)
    return Lines(plan, fitter, EPSILON, n_predictors).law


ALONE = [(value,) for value in VALUES]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantiles_of_a_column_cost_at_most_epsilon(scheme, neighbours):
    plan = QuantilePlan(taus=THIRDS, scheme=scheme, main=THIRDS[1:])
    law = lines_law(plan, neighbours, n_candidates=3)
    assert 0.3 < worst_loss(law, ALONE, neighbours, (1, 2)) <= EPSILON + ROUNDING


def test_a_quantile_attains_its_price_and_half_the_sensitivity_is_found_out(
    neighbours, monkeypatch
):
    # most candidates lie where one table's score falls, one where it rises: the loss
    # comes close to epsilon
    plan, crowd = QuantilePlan(taus=(Fraction(1, 2),), scheme="stepwise"), [(1e-9,)] * 2
    law = lines_law(plan, neighbours, n_candidates=64)
    pair = [[*crowd, (1.0,)], crowd if neighbours == "add-remove" else [*crowd, (0.0,)]]
    found = loss(*map(law, pair))
    whole = Gradient.sensitivity
    assert 0.6 * EPSILON < found <= EPSILON
    monkeypatch.setattr(
        Gradient, "sensitivity", lambda self, neighbours: whole(self, neighbours) // 2
    )
    assert loss(*map(lines_law(plan, neighbours, n_candidates=64), pair)) > EPSILON


ON_A_LINE = [(x, y) for x in (-1.0, 1.0) for y in (0.0, 1.0)]


@pytest.mark.parametrize(
    ("scheme", "slopes", "norm"),
    [
        *product(("plain", "stepwise", "sandwich"), ("fixed", "varying"), ("hull",)),
        *product(("plain",), ("varying",), ("linf", "l1")),
    ],
)
def test_lines_on_a_confidential_predictor_cost_at_most_epsilon(
    scheme, slopes, norm, neighbours
):
    plan = QuantilePlan(taus=THIRDS[1:], scheme=scheme, slopes=slopes, main=THIRDS[1:2])
    law = lines_law(plan, neighbours, n_candidates=8, n_predictors=1, norm=norm)
    assert 0.03 < worst_loss(law, ON_A_LINE, neighbours, (1,)) <= EPSILON + ROUNDING


def frame_law(made, schema):
    """Return the law of a whole release as a function of the table's records, also of
    several columns, if noisy counts steer nothing.
    """
    names = list(schema.columns)

    def law(records):
        return exact_law(
            made, Table(pd.DataFrame(list(records), columns=names), schema)
        ).outcomes

    return law


Y = "[columns.y]\nlower = 0\nupper = 1\nresolution = 0.5\n"
PUBLIC_X = Schema.from_toml("[columns.x]\nlower = 0\nupper = 10\npublic = true\n" + Y)
SECRET_G = Schema.from_toml('[columns.g]\nlevels = ["a", "b"]\n' + Y)
MISSING = Schema.from_toml(Y + "missing = true\n")
FEW = {"epsilon": EPSILON, "n_candidates": 6}


def kinds(relation="replace-one"):
    more = {"neighbours": relation} | (
        {"n_records": 9} if relation == "add-remove" else {}
    )
    made = [
        KNG(
            **FEW,
            **more,
            quantiles=("1/2", "3/4"),
            scheme=scheme,
            main=("1/2",),
            slopes=slopes,
        )
        for scheme, slopes in (("stepwise", "fixed"), ("sandwich", "varying"))
    ]
    return [*made, KNGResidual(**FEW, **more, bins=2)]


@pytest.mark.parametrize(
    "made", kinds(), ids=lambda m: f"{m.name}-{getattr(m, 'slopes', '')}"
)
def test_lines_on_a_public_predictor_cost_at_most_epsilon(made):
    law = frame_law(made, PUBLIC_X)
    laws = {
        ys: law(zip((0.0, 10.0), ys, strict=True))
        for ys in product((0.0, 1.0), repeat=2)
    }
    found = max(
        loss(laws[a, b], laws[other])
        for a, b in laws
        for other in ((1 - a, b), (a, 1 - b))
    )
    assert 0.03 < found <= EPSILON + ROUNDING


SEPARATE = [(g, y) for g in "ab" for y in (0.0, 1.0)]


def test_confidential_strata_cost_epsilon_also_for_a_record_that_changes_stratum(
    neighbours,
):
    # an empty stratum costs and releases like any other; a residual's histogram attains
    # the price
    made = kinds(neighbours)[-1].__class__(
        **{**kinds(neighbours)[-1].__dict__, "by": ("g",)}
    )
    sizes = (1, 2) if neighbours == "replace-one" else (2,)
    assert worst_loss(
        frame_law(made, SECRET_G), SEPARATE, neighbours, sizes
    ) == pytest.approx(float(EPSILON))


@pytest.mark.parametrize("kind", [0, 2])
def test_a_value_that_goes_missing_costs_at_most_epsilon(kind, neighbours):
    law = frame_law(replace(kinds(neighbours)[kind], n_candidates=12), MISSING)
    laws = [law([(0.5,), (value,)]) for value in (0.0, 1.0, None)]
    others = [law([(0.5,)])] if neighbours == "add-remove" else laws
    assert (
        0.5
        < max(loss(one, other) for one, other in product(laws, others))
        <= EPSILON + ROUNDING
    )


def test_all_items_of_a_plan_add_up_to_its_epsilon():
    main = [("1/2",), ("1/4", "1/2"), ("1/2", "3/4"), ("1/4", "1/2", "3/4")]
    for scheme, some in product(("plain", "stepwise", "sandwich"), main):
        made = KNG(epsilon=1, scheme=scheme, quantiles=("1/4", "1/2", "3/4"), main=some)
        for p in (0, 1):
            assert sum(made.quantile_plan.shares(p).values()) == 1
