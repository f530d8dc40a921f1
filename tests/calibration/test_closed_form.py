"""Errors told from public facts: against dense least squares, exact convolutions, other
formulas and real releases.
"""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from tables import cases, grown, random_table, schema_of

from pdips import LaplaceSanitizer, Margins, Steps, UniversalHistogram
from pdips.margins.consistency import consistent
from pdips.margins.domain import domain_of
from pdips.margins.forecast import errors_of, label
from pdips.margins.margin_error import tree_errors, view_errors
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.registry import find


def law_of(terms: list[tuple[int, int, float]]) -> np.ndarray:
    """Probabilities of a sum of whole multiples of discrete Laplace draws, by
    convolution; 0 is in the middle.
    """
    found = np.ones(1)
    for weight, n, scale in terms:
        reach = math.ceil(40 * scale)
        one = np.zeros(2 * reach * weight + 1)
        one[::weight] = stats.dlaplace(1 / scale).pmf(np.arange(-reach, reach + 1))
        for _ in range(n):
            found = np.convolve(found, one)
    return found


def exact_half_width(terms: list[tuple[int, int, float]], level: float) -> int:
    law = law_of(terms)
    centre = len(law) // 2
    within = law[centre] + 2 * np.cumsum(law[centre + 1 :])
    return 0 if law[centre] >= level else 1 + int(np.argmax(within >= level))


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(
    "terms", cases(__file__, "half_widths_are_those_of_the_exact_law")
)
def test_half_widths_are_those_of_the_exact_law(terms, level):
    total = NoiseSum(
        tuple(Terms(float(weight), n, Fraction(scale)) for weight, n, scale in terms)
    )
    exact = exact_half_width(terms, level)
    assert (
        exact <= total.half_width(level) <= exact * 1.005 + 0.005 * total.standard_error
    )
    assert total.scaled(-0.3).half_width(level) == pytest.approx(
        0.3 * total.half_width(level), rel=1e-4
    )
    law = law_of(terms)
    squares = (np.arange(len(law)) - len(law) // 2) ** 2
    assert total.standard_error == pytest.approx(math.sqrt(law @ squares), rel=1e-6)


@pytest.mark.parametrize(("twin", "accepted"), [(1, True), (2, False)])
def test_intervals_hold_as_often_as_they_say(twin, accepted):
    # 20,000 sums by the exact sampler; 5 standard errors of a share of 0.95, error rate
    # 3e-7 each side. The broken twin forgets that replacing a record changes two
    # counts, so its scale is half of what it must be.
    scale, n = Fraction(6), 20_000
    claimed = NoiseSum((Terms(1.0, 4, scale / twin), Terms(-0.5, 8, scale / twin)))
    drawn = discrete_laplace(
        scale, 12 * n, RandomBits(np.random.default_rng(11))
    ).reshape(n, 12)
    covered = (
        np.abs(drawn @ np.array([1.0] * 4 + [-0.5] * 8)) <= claimed.half_width(0.95)
    ).mean()
    assert (abs(covered - 0.95) < 5 * math.sqrt(0.95 * 0.05 / n)) == accepted


def test_widths_of_normal_parts_and_of_other_units():
    assert NoiseSum((), 4.0).half_width(0.95) == pytest.approx(2 * 1.959964, rel=0.005)
    assert NoiseSum(()).half_width(0.95) == 0.0
    one = NoiseSum((Terms(1.0, 3, Fraction(7)), Terms(-0.4, 2, Fraction(5))), 2.0)
    assert one.scaled(0.25).half_width(0.9) == pytest.approx(
        one.half_width(0.9) / 4, rel=1e-4
    )
    assert one.averaged(4).terms[0] == Terms(0.25, 12, Fraction(7))
    assert NoiseSum((Terms(1.0, 1, Fraction(100), "gaussian"),)).half_width(
        0.95
    ) == pytest.approx(19.6 + 1, rel=0.005)


def test_margins_have_the_errors_of_the_card():
    schema = schema_of(3, 2, 4, 2, 5, 3)
    made = Margins(epsilon=1, n_sets=3, split="per-set")
    views = made.plan(schema).design.views
    told = {
        label(item.columns): item.standard_error
        for item in view_errors(domain_of(schema), views)
    }
    found = errors_of(made.plan(schema), "all")
    assert {
        name: each.standard_error * math.sqrt(3) for name, each in found.items()
    } == pytest.approx(told)


def dense_weights(parents, n_by_layer, variances, pick) -> np.ndarray:
    """What each noisy count weighs in a sum of least squares cells, by the estimator
    itself, one count at a time.
    """
    weights = []
    for layer, n in enumerate(n_by_layer):
        for node in range(n if layer else 0):
            observed = [np.zeros(size) for size in n_by_layer]
            observed[layer][node] = 1.0
            weights.append(consistent(parents, observed, variances)[0][-1] @ pick)
    return np.array(weights)


@pytest.mark.parametrize(
    ("sizes", "name", "settings"),
    [
        ((3, 2, 2), "laplace-sanitizer", {}),
        ((2, 3, 4), "steps", {"order": ("c",), "below": "cells"}),
        (
            (2, 3, 2),
            "steps",
            {"order": ("b", "a"), "below": "cells", "budget": "half-to-leaves"},
        ),
        ((7, 2, 3), "universal-histogram", {"attribute": "a", "fan_out": 2}),
        ((9,), "universal-histogram", {"attribute": "a", "fan_out": 3}),
        ((5, 2), "universal-histogram", {"attribute": "a", "fan_out": 4}),
        ((4, 1), "universal-histogram", {"attribute": "a", "fan_out": 2}),
    ],
)
def test_weights_of_trees_and_intervals_are_those_of_least_squares(
    neighbours, sizes, name, settings
):
    schema = schema_of(*sizes, records={"max_per_person": 2})
    made = find(name)(epsilon=2, neighbours=neighbours, **settings)
    measured = grown(made.plan(schema), random_table(schema, 50))
    n_by_layer, every = (
        [layer.n_nodes for layer in measured.layers],
        np.arange(math.prod(sizes)),
    )
    levels = np.column_stack([measured.levels(every, j) for j in range(len(sizes))])
    variances = np.concatenate(measured.variances[1:])
    for size in range(1, min(len(sizes), 2 if "fan_out" in settings else 3) + 1):
        for columns in combinations(range(len(sizes)), size):
            words = label(["abc"[j] for j in columns])
            (found,) = errors_of(made.plan(schema), words).values()
            cells = np.ndindex(*(sizes[j] for j in columns))
            picks = [
                (levels[:, columns] == cell).all(axis=1).astype(float) for cell in cells
            ]
            weights = [
                dense_weights(measured.parents, n_by_layer, measured.variances, pick)
                for pick in picks
            ]
            worst = max(weights, key=lambda each: round(float(each**2 @ variances), 9))
            ours = np.concatenate(
                [np.zeros(0), *(np.full(part.n, part.weight) for part in found.terms)]
            )
            ours, theirs = (each[np.abs(each) > 1e-9] for each in (ours, worst))
            np.testing.assert_allclose(np.sort(ours), np.sort(theirs), atol=1e-8)
            assert found.variance == pytest.approx(worst**2 @ variances)


def test_public_columns_and_layers_that_arent_counted():
    schema = schema_of(2, 3, 2, 2)
    columns = {
        **schema.columns,
        "a": schema.columns["a"].model_copy(update={"public": True}),
    }
    schema = schema.model_copy(update={"columns": columns})
    made = Steps(epsilon=1, order=(("b", "c"),), below="cells")
    measured = grown(made.plan(schema), random_table(schema, 60))
    errors = tree_errors(
        measured.domain, measured.layers, measured.scales, n_public=True
    )
    told = {label(item.columns): item.standard_error for item in errors}
    found = errors_of(made.plan(schema), "all")
    assert {name: each.standard_error for name, each in found.items()} == pytest.approx(
        told
    )
    with_intervals = UniversalHistogram(epsilon=1, attribute="b", fan_out=2)
    plan = with_intervals.plan(schema)
    public = errors_of(plan, "a x b")["a x b"].variance
    assert 0 < public < errors_of(plan, "b")["b"].variance


@pytest.mark.parametrize(
    "made",
    [
        LaplaceSanitizer(epsilon="1/4"),
        LaplaceSanitizer(
            epsilon="1/4", neighbours="add-remove", n_sets=2, split="per-set"
        ),
        Steps(epsilon="1/2", order=("b", "a"), below="cells"),
        UniversalHistogram(epsilon="1/2", attribute="a", fan_out=2),
    ],
    ids=lambda made: f"{made.name} {made.neighbours}",
)
def test_releases_have_the_errors_that_were_told(made):
    # Root mean square over 80 seeded releases of 4,000 records, where no count is near
    # 0. Of the three cells of c at least two errors are free: a relative standard error
    # of sqrt(5 / 160) / 2 = 9 % at most (kurtosis 6); 4.5 of them, error rate below
    # 1e-5. The twin forgets a factor of 2 in the scale, as 1 / epsilon for replace-one
    # would.
    schema = schema_of(4, 2, 3)
    table = random_table(schema, 4_000)
    true = np.bincount(table.codes["c"], minlength=3)
    squares = []
    for child in np.random.SeedSequence(5).spawn(80):
        release, _ = made.release(table, rng=np.random.default_rng(child))
        counts = [np.bincount(each["c"], minlength=3) for each in release.sets]
        squares.append((np.mean(counts, axis=0) - true) ** 2)
    found = math.sqrt(np.mean(squares))
    told = errors_of(made.plan(schema), "c")["c"].standard_error
    assert abs(found / told - 1) < 0.4
    assert abs(found / (told / 2) - 1) > 0.4
