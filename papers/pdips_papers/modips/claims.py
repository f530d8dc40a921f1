"""Claims of Bowen and Liu (2020), sections 4.1 and 4.2, on two simulations, and what
our own rows are to reach.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from pdips.privacy.loss import positive
from pdips.report.formats import MINUS
from pdips_papers.harness.curves import CurveFigures, short, suffix_of
from pdips_papers.harness.study import HOLDS, PARTLY, PROVED, Claims, Said, say

LOW = 0.93
HIGH = 0.97
FAR_APART = 4.0
"""Standard errors; of 243 comparisons of equal laws none is further apart, 49 times in
50.
"""

NO_WORSE = 1.02
"""Ratio of errors up to which one counts as no larger than another."""

SMALLEST = math.exp(-2) - 1e-6
ONE = "laplace-one-count"
PRIORS = ("multinomial-dirichlet", "mcclure-reiter")
HISTOGRAMS = ("perturbed-histogram", "smoothed-histogram")
PARAMETERS = {"mu": "mean", "s2": "variance"}

proportions: Claims[CurveFigures] = Claims("proportions", "modips")
moments: Claims[CurveFigures] = Claims("normal-moments", "modips")


def _signed(*values: float) -> str:
    return " and ".join(f"{value:.3f}".replace("-", MINUS) for value in values)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _span(values: Sequence[float]) -> str:
    return f"{_share(min(values))} to {_share(max(values))}"


def _each(
    seen: CurveFigures,
    names: Sequence[str],
    value: Callable[[str], float],
    digits: int = 2,
) -> str:
    return ", ".join(f"{seen.said[name]} {value(name):.{digits}f}" for name in names)


def _more_records(
    seen: CurveFigures,
    better: str,
    stuck: Sequence[str],
    few: tuple[int, str],
    case: str,
) -> Said:
    """Compare errors with 1,000 records with those of a few."""
    small, where = few
    share = {}
    for name in ("original", better, *stuck):
        of_many = seen.one(name, case.format(1000), "rmse", seen.middle)
        of_few = seen.one(name, case.format(small), "rmse", seen.middle)
        share[name] = of_many / of_few
    shares = (f"{seen.said[name]} {100 * value:.0f} %" for name, value in share.items())
    text = (
        f"RMSE with 1,000 records as a share of that with {small}, at epsilon "
        f"{short(seen.middle)} ({where}): {', '.join(shares)}."
    )
    least = min(share[name] for name in stuck)
    return text, HOLDS if share[better] < 0.5 * least else PARTLY


# Simulation 1: a proportion.


def _skewed(seen: CurveFigures) -> list[str]:
    return [case for case in seen.cases if not case.endswith("pi=0.5")]


@proportions
def _two_families(seen: CurveFigures) -> Said:
    names = (ONE, "laplace-both-counts", *PRIORS)
    skewed = _skewed(seen)
    means = {name: seen.mean(name, skewed, "rmse", [seen.middle]) for name in names}
    alike = seen.ratio("modips-published", ONE)
    worst_of_noise = max(means[name] for name in names[:2])
    best_of_priors = min(means[name] for name in PRIORS)
    shown = _each(seen, names, means.__getitem__, 3)
    return say(
        worst_of_noise < best_of_priors, means=shown, low=alike.min(), high=alike.max()
    )


@proportions
def _in_the_limit(seen: CurveFigures) -> Said:
    names = (ONE, *PRIORS, "modips-published", "multiple-synthesis")
    ratio = {}
    for name in names:
        ratio[name] = float(seen.ratio(name, "original", [seen.top]).mean())
    from_original = abs(ratio[ONE] - 1)
    from_synthesis = abs(ratio[ONE] - ratio["multiple-synthesis"])
    judged = PARTLY if from_original < from_synthesis else HOLDS
    return say(judged, ratios=_each(seen, names, ratio.__getitem__))


@proportions
def _larger_samples(seen: CurveFigures) -> Said:
    return _more_records(seen, ONE, PRIORS, (40, "π = 0.25"), "n={}, pi=0.25")


@proportions
def _bias_from_priors(seen: CurveFigures) -> Said:
    low, even = (
        seen.over(PRIORS, [f"n=100, pi={pi}"], "bias", [seen.middle])
        for pi in ("0.1", "0.5")
    )
    text = (
        f"Bias at n = 100, epsilon {short(seen.middle)}: {_signed(*low)} for π = "
        f"0.1, {_signed(*even)} for π = 0.5."
    )
    return text, min(low) > 0.05 > max(np.abs(even))


@proportions
def _best_in_the_middle(seen: CurveFigures) -> Said:
    cases = [f"n=100, pi={pi}" for pi in ("0.1", "0.25", "0.5")]
    bias, error = (
        seen.over([ONE], cases, measure, [seen.lowest]) for measure in ("bias", "rmse")
    )
    biases_fall = abs(bias[2]) < bias[1] < bias[0]
    errors_fall = error[2] < error[1] < error[0]
    judged = HOLDS if biases_fall and errors_fall else PARTLY
    biases = ", ".join(map(_signed, bias))
    return say(judged, bias=biases, error=", ".join(map(_signed, error)))


@proportions
def _smaller_errors(seen: CurveFigures) -> Said:
    skewed = _skewed(seen)
    laplace, *priors = (
        np.array(seen.over([name], skewed, "rmse", seen.epsilons))
        for name in (ONE, *PRIORS)
    )
    wins = float(np.mean(laplace < np.min(priors, axis=0)))
    even = [case for case in seen.cases if case not in skewed]
    names = (ONE, *PRIORS, "original")
    at_half = {name: seen.mean(name, even, "rmse", [seen.lowest]) for name in names}
    of_priors = [at_half[name] for name in PRIORS]
    smaller_at_half = max(of_priors) < at_half[ONE]
    below_original = min(of_priors) < at_half["original"]
    judged = HOLDS if wins > 0.5 and smaller_at_half and below_original else PARTLY
    errors = _each(seen, names, at_half.__getitem__, 3)
    return say(judged, wins=100 * wins, errors=errors)


@proportions
def _coverage_of_proportions(seen: CurveFigures) -> Said:
    usual = [epsilon for epsilon in seen.epsilons if positive(epsilon, "epsilon") >= 1]
    low = _least_coverage(seen, usual)
    worst = _least_coverage(seen, seen.epsilons)
    dirichlet, single = (
        seen.over([name], seen.cases, "coverage", [seen.top]) for name in PRIORS
    )
    judged = HOLDS if max(single) < min(dirichlet) and low > 0.85 else PARTLY
    return say(
        judged,
        low=_share(low),
        worst=_share(worst),
        dirichlet=_span(dirichlet),
        single=_span(single),
    )


def _least_coverage(seen: CurveFigures, epsilons: Sequence[str]) -> float:
    shares = seen.over([ONE], seen.cases, "coverage", epsilons)
    return float(np.nanmin(shares or [math.nan]))


@proportions
def _wider_intervals(seen: CurveFigures) -> Said:
    small = seen.below(math.exp(-1) - 1e-6)
    names = (ONE, *PRIORS)
    width = {name: seen.mean(name, seen.cases, "width", small) for name in names}
    text = f"Mean width over all cases: {_each(seen, names, width.__getitem__)}."
    widest_of_priors = max(width[name] for name in PRIORS)
    return text, HOLDS if width[ONE] > 2 * widest_of_priors else PARTLY


@proportions
def _truncation(seen: CurveFigures) -> Said:
    clamped, published, repaired = (
        seen.mean(name, seen.cases, "rmse", seen.below(1))
        for name in (ONE, "laplace-redrawn-published", "laplace-redrawn")
    )
    return say(PROVED, clamped=clamped, published=published, repaired=repaired)


@proportions
def _bounds(seen: CurveFigures) -> Said:
    wide = "modips-published-wide"
    apart = []
    ratio = seen.ratio("modips-published-wide", "modips-published")
    measures = ("bias", "rmse", "coverage")
    for case, epsilon, measure in product(seen.cases, seen.epsilons, measures):
        at = ([case], measure, epsilon)
        value, of_value = _with_error(seen, wide, *at)
        usual, of_usual = _with_error(seen, "modips-published", *at)
        error = max(math.hypot(of_value, of_usual), 1e-12)
        apart.append(abs(value - usual) / error)
    beyond = int((np.array(apart) > FAR_APART).sum())
    return say(
        [beyond == 0],
        beyond=beyond,
        all=len(apart),
        FAR_APART=FAR_APART,
        low=ratio.min(),
        high=ratio.max(),
    )


@proportions
def _variances(seen: CurveFigures) -> Said:
    rules = ("-fully-synthetic", "-raab-nowok-dibben", "-rubin", "")
    rows = [f"modips-published{rule}" for rule in rules]
    ends = []
    below = []
    above = []
    for row in rows:
        both = [
            _with_error(seen, row, seen.cases, "coverage", epsilon)
            for epsilon in (seen.lowest, seen.top)
        ]
        ends.append(both)
        below.append([value < 0.95 - 2 * error for value, error in both])
        above.append([value > 0.95 + 2 * error for value, error in both])
    shown = "; ".join(
        f"{words} {' and '.join(_give_or_take(*end) for end in both)}"
        for words, both in zip(VARIANCES, ends, strict=True)
    )
    covered = seen.over(["modips-published"], seen.cases, "coverage", seen.epsilons)
    usual = np.array(covered)
    right = float(((usual >= LOW) & (usual <= HIGH)).mean())
    nearly = abs(ends[1][1][0] - 0.95) < HIGH - 0.95
    judged = [
        below[0][0],
        above[0][1],
        below[1][0] and nearly,
        all(above[2]),
        right == 1,
    ]
    return say(
        judged,
        shown=shown,
        low=_share(LOW),
        high=_share(HIGH),
        right=100 * right,
        least=_share(float(usual.min())),
    )


VARIANCES = ("(1 + 1/m) B - W", "(1 + 2/m) W", "(1 + 1/m) B + W", "B/m + W")


def _give_or_take(value: float, error: float) -> str:
    return f"{_share(value)} ± {100 * error:.1f}"


def _with_error(
    seen: CurveFigures, method: str, cases: Sequence[str], measure: str, epsilon: str
) -> tuple[float, float]:
    """Return the mean over cases, which are independent, and its standard error."""
    column = f"{measure}{suffix_of(epsilon)}"
    errors = [seen.error(f"{method}, {case}", column) for case in cases]
    error = math.hypot(*errors) / len(errors)
    return seen.mean(method, cases, measure, [epsilon]), error


# Simulation 2: mean and variance.


def _lower(seen: CurveFigures, parameter: str = "") -> list[str]:
    """Return the cases with bounds that aren't symmetric, of one parameter or both."""
    return [
        case
        for case in seen.cases
        if case.endswith("lower=-3") and case.startswith(parameter)
    ]


@moments
def _trade_off(seen: CurveFigures) -> Said:
    names = (
        "modips-published",
        "moments-as-printed",
        "moments-about-the-middle",
        "perturbed-histogram",
        "sanitizer-on-bins",
        "smoothed-histogram",
    )

    def errors_of(cases: Sequence[str]) -> dict[str, float]:
        at = (cases, "rmse", [seen.middle])
        return {name: seen.mean(name, *at) for name in names}

    parts = []
    for key, label in PARAMETERS.items():
        errors = errors_of(_lower(seen, key))
        parts.append(f"{label}: {_each(seen, names, errors.__getitem__)}")
    best = int(np.argmin(list(errors_of(_lower(seen)).values())))
    text = (
        f"Mean RMSE over n at epsilon {short(seen.middle)}, bounds {MINUS}3 to 4, "
        f"{'; '.join(parts)}."
    )
    return text, HOLDS if best in (3, 4) else PARTLY


@moments
def _larger_samples_of_moments(seen: CurveFigures) -> Said:
    return _more_records(
        seen, *HISTOGRAMS[:1], HISTOGRAMS[1:], (20, "the mean"), "mu, n={}, lower=-3"
    )


EVEN_SPREAD = 0.5
"""Mean of an even spread over -3 to 4, where the true mean is 0."""


@moments
def _bias_of_moments(seen: CurveFigures) -> Said:
    skewed, even, variance = (
        seen.over(HISTOGRAMS, [case], "bias", [seen.lowest])
        for case in (
            "mu, n=100, lower=-3",
            "mu, n=100, lower=-4",
            "s2, n=100, lower=-3",
        )
    )
    away_from_even = min(skewed) > max(map(abs, even))
    # beyond what an even spread gives: values at the nearer bound
    piled = all(value > EVEN_SPREAD for value in skewed)
    return say(
        [away_from_even, min(variance) > 0, piled],
        skewed=_signed(*skewed),
        even=_signed(*even),
        variance=_signed(*variance),
    )


@moments
def _errors_of_moments(seen: CurveFigures) -> Said:
    small = seen.below(1)
    names = ("modips-published", "moments-about-the-middle", *HISTOGRAMS)
    shown = []
    better = {}
    for key, label in PARAMETERS.items():
        of = _lower(seen, key)
        means = {name: seen.mean(name, of, "rmse", small) for name in names}
        shown.append(f"{label}: {_each(seen, names, means.__getitem__)}")
        model = np.array(seen.over(names[:1], of, "rmse", small))
        histogram = np.array(seen.over(HISTOGRAMS[:1], of, "rmse", small))
        better[key] = float(np.mean(histogram < model))
    judged = HOLDS if better["mu"] > 0.5 > better["s2"] else PARTLY
    wins = {key: 100 * share for key, share in better.items()}
    return say(judged, means="; ".join(shown), **wins)


@moments
def _coverage_of_moments(seen: CurveFigures) -> Said:
    shares = []
    of_mean = _lower(seen, "mu")
    for name in ("perturbed-histogram-published", *HISTOGRAMS):
        covered = seen.over([name], of_mean, "coverage", [seen.lowest])
        shares.append(f"{seen.said[name]} {', '.join(map(_share, covered))}")

    def least(epsilons: Sequence[str]) -> float:
        published = ["modips-published"]
        return min(seen.over(published, _lower(seen), "coverage", epsilons))

    small = seen.below(1)
    rest = [epsilon for epsilon in seen.epsilons if epsilon not in small]
    parts = []
    if small:
        parts.append(f"{_share(least(small))} at least below epsilon 1")
    if rest:
        parts.append(f"{_share(least(rest))} at least from {short(rest[0])} on")
    smoothed = seen.one(
        "smoothed-histogram", "mu, n=1000, lower=-3", "coverage", seen.lowest
    )
    judged = HOLDS if smoothed < 0.5 and least(seen.epsilons) > 0.9 else PARTLY
    return say(judged, shares="; ".join(shares), parts=", ".join(parts))


@moments
def _symmetric(seen: CurveFigures) -> Said:
    mu, s2 = (
        [f"{key}, n={n}, lower=-4" for n in (20, 100, 1000)] for key in PARAMETERS
    )
    bias = np.nanmax(np.abs(seen.over(HISTOGRAMS, mu, "bias", seen.epsilons)))
    coverage = float(np.nanmin(seen.over(HISTOGRAMS, mu, "coverage", seen.epsilons)))
    worst = float(np.nanmin(seen.over(HISTOGRAMS, s2, "coverage", seen.below(1))))
    judged = HOLDS if coverage > 0.9 and worst < 0.5 else PARTLY
    return say(judged, bias=bias, coverage=_share(coverage), worst=_share(worst))


@moments
def _rules_for_bins(seen: CurveFigures) -> Said:
    names = (
        "perturbed-histogram-published",
        "perturbed-histogram-by-sturges",
        "perturbed-histogram-by-freedman",
    )
    rules = ("Scott", "Sturges", "Freedman-Diaconis")
    shown = []
    best = []
    for key, label in PARAMETERS.items():
        of = _lower(seen, key)
        by_rule = [_with_error(seen, name, of, "rmse", seen.middle) for name in names]
        errors = []
        for rule, (value, error) in zip(rules, by_rule, strict=True):
            errors.append(f"{rule} {value:.3f} ± {error:.3f}")
        shown.append(f"{label} {', '.join(errors)}")
        (scott, of_scott), *others = by_rule
        no_worse = [
            scott <= value + 2 * math.hypot(error, of_scott) for value, error in others
        ]
        best.append(all(no_worse))
    text = (
        f"Mean RMSE over n at epsilon {short(seen.middle)}, bounds {MINUS}3 to 4: "
        f"{'; '.join(shown)}."
    )
    return text, best


@moments
def _price_of_bins(seen: CurveFigures) -> Said:
    published, sound, projected = (
        seen.mean(name, seen.cases, "rmse", [seen.middle])
        for name in (
            "perturbed-histogram-published",
            "perturbed-histogram",
            "sanitizer-on-bins",
        )
    )
    return say(PROVED, sound=sound, published=published, projected=projected)


# Both: what our own rows are to reach.


@proportions
@moments
def _published_and_once(seen: CurveFigures) -> Said:
    small = seen.below(1)
    names = ("modips-published", "modips-plug-in", "modips-posterior")
    error = {name: seen.mean(name, seen.cases, "rmse", small) for name in names}
    cover = {
        name: min(seen.over([name], seen.cases, "coverage", small)) for name in names
    }
    text = ", ".join(
        f"{seen.said[name]} {error[name]:.3f} and {100 * cover[name]:.0f} %"
        for name in names
    )
    smaller = error["modips-plug-in"] < error["modips-published"]
    judged = HOLDS if smaller and cover["modips-plug-in"] < 0.8 else PARTLY
    return (
        f"Mean RMSE and lowest coverage over all cases and the epsilons below 1: "
        f"{text}."
    ), judged


@proportions
@moments
def _coverage_target(seen: CurveFigures) -> Said:
    epsilons = seen.above(SMALLEST)
    parts = []
    met = False
    for name in (
        "modips-aware",
        "modips-aware-many",
        "modips-posterior",
        "modips-test",
    ):
        values = np.array(seen.over([name], seen.cases, "coverage", epsilons))
        if np.isnan(values).all():
            continue
        low = int((values < LOW).sum())
        high = int((values > HIGH).sum())
        within = values.size - low - high
        parts.append(
            f"{seen.said[name]}: {within} of {values.size} within, "
            f"{low} below (lowest {_share(values.min())}), {high} above"
        )
        met = met or low + high == 0
    plug_in = min(seen.over(["modips-plug-in"], seen.cases, "coverage", epsilons))
    return say(
        HOLDS if met else PARTLY, parts="; ".join(parts), plug_in=_share(plug_in)
    )


@proportions
@moments
def _error_target(seen: CurveFigures) -> Said:
    pairs = {
        "five sets": ("modips-aware", "modips-plug-in"),
        "100 sets against five of plug-in": ("modips-aware-many", "modips-plug-in"),
        "published posterior against MODIPS as published": (
            "modips-posterior",
            "modips-published",
        ),
    }
    ratios = {title: seen.ratio(*pair) for title, pair in pairs.items()}
    parts = []
    for title, ratio in ratios.items():
        average = np.exp(np.log(ratio).mean())
        share = 100 * np.mean(ratio <= NO_WORSE)
        parts.append(
            f"{title} {average:.2f} on average, {ratio.max():.2f} at most, "
            f"{share:.0f} % of cases not above {NO_WORSE}"
        )
    text = f"RMSE over that of plug-in, all cases and epsilons: {'; '.join(parts)}."
    right = all((ratio <= NO_WORSE).all() for ratio in list(ratios.values())[1:])
    return text, HOLDS if right else PARTLY
