"""Claims of Bowen and Liu (2020), sections 4.1 and 4.2, on two simulations, and what our own rows are to reach."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from pdips.privacy.loss import positive
from pdips.report.formats import MINUS
from pdips_papers.harness.curves import CurveFigures, short, suffix_of
from pdips_papers.harness.study import HOLDS, PARTLY, PROVED, Claims, Said, say

LOW, HIGH = 0.93, 0.97
FAR_APART = 4.0
"""Standard errors; of 243 comparisons of equal laws none is further apart, 49 times in 50."""

SMALLEST = math.exp(-2) - 1e-6
ONE, PRIORS = "laplace-one-count", ("multinomial-dirichlet", "mcclure-reiter")
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


def _each(seen: CurveFigures, names: Sequence[str], value: Callable[[str], float], digits: int = 2) -> str:
    return ", ".join(f"{seen.said[name]} {value(name):.{digits}f}" for name in names)


def _more_records(seen: CurveFigures, better: str, stuck: Sequence[str], few: tuple[int, str], case: str) -> Said:
    """Compare errors with 1,000 records with those of a few."""
    names, (small, where) = ("original", better, *stuck), few
    share = {
        name: seen.one(name, case.format(1000), "rmse", seen.middle)
        / seen.one(name, case.format(small), "rmse", seen.middle)
        for name in names
    }
    text = ", ".join(f"{seen.said[name]} {100 * value:.0f} %" for name, value in share.items())
    found = (
        f"RMSE with 1,000 records as a share of that with {small}, at epsilon {short(seen.middle)} ({where}): {text}."
    )
    return found, HOLDS if share[better] < 0.5 * min(share[name] for name in stuck) else PARTLY


# Simulation 1: a proportion.


def _skewed(seen: CurveFigures) -> list[str]:
    return [case for case in seen.cases if not case.endswith("pi=0.5")]


@proportions
def _two_families(seen: CurveFigures) -> Said:
    names = (ONE, "laplace-both-counts", *PRIORS)
    means = {name: seen.mean(name, _skewed(seen), "rmse", [seen.middle]) for name in names}
    alike = seen.ratio("modips-published", ONE)
    judged = max(means[name] for name in names[:2]) < min(means[name] for name in PRIORS)
    return say(judged, means=_each(seen, names, means.__getitem__, 3), low=alike.min(), high=alike.max())


@proportions
def _in_the_limit(seen: CurveFigures) -> Said:
    names = (ONE, *PRIORS, "modips-published", "multiple-synthesis")
    ratio = {name: float(seen.ratio(name, "original", [seen.top]).mean()) for name in names}
    judged = PARTLY if abs(ratio[ONE] - 1) < abs(ratio[ONE] - ratio["multiple-synthesis"]) else HOLDS
    return say(judged, ratios=_each(seen, names, ratio.__getitem__))


@proportions
def _larger_samples(seen: CurveFigures) -> Said:
    return _more_records(seen, ONE, PRIORS, (40, "π = 0.25"), "n={}, pi=0.25")


@proportions
def _bias_from_priors(seen: CurveFigures) -> Said:
    low, even = (seen.over(PRIORS, [f"n=100, pi={pi}"], "bias", [seen.middle]) for pi in ("0.1", "0.5"))
    text = f"Bias at n = 100, epsilon {short(seen.middle)}: {_signed(*low)} for π = 0.1, {_signed(*even)} for π = 0.5."
    return text, min(low) > 0.05 > max(np.abs(even))


@proportions
def _best_in_the_middle(seen: CurveFigures) -> Said:
    cases = [f"n=100, pi={pi}" for pi in ("0.1", "0.25", "0.5")]
    bias, error = (seen.over([ONE], cases, measure, [seen.lowest]) for measure in ("bias", "rmse"))
    judged = HOLDS if abs(bias[2]) < bias[1] < bias[0] and error[2] < error[1] < error[0] else PARTLY
    return say(judged, bias=", ".join(map(_signed, bias)), error=", ".join(map(_signed, error)))


@proportions
def _smaller_errors(seen: CurveFigures) -> Said:
    skewed = _skewed(seen)
    laplace, *priors = (np.array(seen.over([name], skewed, "rmse", seen.epsilons)) for name in (ONE, *PRIORS))
    wins = float(np.mean(laplace < np.min(priors, axis=0)))
    even, names = [case for case in seen.cases if case not in skewed], (ONE, *PRIORS, "original")
    at_half = {name: seen.mean(name, even, "rmse", [seen.lowest]) for name in names}
    two = [at_half[name] for name in PRIORS]
    judged = HOLDS if wins > 0.5 and max(two) < at_half[ONE] and min(two) < at_half["original"] else PARTLY
    return say(judged, wins=100 * wins, errors=_each(seen, names, at_half.__getitem__, 3))


@proportions
def _coverage_of_proportions(seen: CurveFigures) -> Said:
    usual = [epsilon for epsilon in seen.epsilons if positive(epsilon, "epsilon") >= 1]
    low, worst = (
        float(np.nanmin(seen.over([ONE], seen.cases, "coverage", epsilons) or [math.nan]))
        for epsilons in (usual, seen.epsilons)
    )
    dirichlet, single = (seen.over([name], seen.cases, "coverage", [seen.top]) for name in PRIORS)
    judged = HOLDS if max(single) < min(dirichlet) and low > 0.85 else PARTLY
    return say(judged, low=_share(low), worst=_share(worst), dirichlet=_span(dirichlet), single=_span(single))


@proportions
def _wider_intervals(seen: CurveFigures) -> Said:
    small, names = seen.below(math.exp(-1) - 1e-6), (ONE, *PRIORS)
    width = {name: seen.mean(name, seen.cases, "width", small) for name in names}
    text = f"Mean width over all cases: {_each(seen, names, width.__getitem__)}."
    return text, HOLDS if width[ONE] > 2 * max(width[name] for name in PRIORS) else PARTLY


@proportions
def _truncation(seen: CurveFigures) -> Said:
    clamped, published, repaired = (
        seen.mean(name, seen.cases, "rmse", seen.below(1))
        for name in (ONE, "laplace-redrawn-published", "laplace-redrawn")
    )
    return say(PROVED, clamped=clamped, published=published, repaired=repaired)


@proportions
def _bounds(seen: CurveFigures) -> Said:
    wide, apart, ratio = "modips-published-wide", [], seen.ratio("modips-published-wide", "modips-published")
    for case, epsilon, measure in product(seen.cases, seen.epsilons, ("bias", "rmse", "coverage")):
        one, other = (_with_error(seen, name, [case], measure, epsilon) for name in (wide, "modips-published"))
        apart.append(abs(one[0] - other[0]) / max(math.hypot(one[1], other[1]), 1e-12))
    beyond = int((np.array(apart) > FAR_APART).sum())
    return say([beyond == 0], beyond=beyond, all=len(apart), FAR_APART=FAR_APART, low=ratio.min(), high=ratio.max())


@proportions
def _variances(seen: CurveFigures) -> Said:
    rules = ("-fully-synthetic", "-raab-nowok-dibben", "-rubin", "")
    rows = [f"modips-published{rule}" for rule in rules]
    ends = [[_with_error(seen, row, seen.cases, "coverage", at) for at in (seen.lowest, seen.top)] for row in rows]
    shown = "; ".join(
        f"{words} {_share(low)} ± {100 * of_low:.1f} and {_share(high)} ± {100 * of_high:.1f}"
        for words, ((low, of_low), (high, of_high)) in zip(
            ("(1 + 1/m) B - W", "(1 + 2/m) W", "(1 + 1/m) B + W", "B/m + W"), ends, strict=True
        )
    )
    below = [[value < 0.95 - 2 * error for value, error in row] for row in ends]
    above = [[value > 0.95 + 2 * error for value, error in row] for row in ends]
    usual = np.array(seen.over(["modips-published"], seen.cases, "coverage", seen.epsilons))
    right = float(((usual >= LOW) & (usual <= HIGH)).mean())
    nearly = abs(ends[1][1][0] - 0.95) < HIGH - 0.95
    judged = [below[0][0], above[0][1], below[1][0] and nearly, all(above[2]), right == 1]
    return say(
        judged, shown=shown, low=_share(LOW), high=_share(HIGH), right=100 * right, least=_share(float(usual.min()))
    )


def _with_error(
    seen: CurveFigures, method: str, cases: Sequence[str], measure: str, epsilon: str
) -> tuple[float, float]:
    """Return the mean over cases, which are independent, and its standard error."""
    column = f"{measure}{suffix_of(epsilon)}"
    errors = [seen.error(f"{method}, {case}", column) for case in cases]
    return seen.mean(method, cases, measure, [epsilon]), math.hypot(*errors) / len(errors)


# Simulation 2: mean and variance.


def _lower(seen: CurveFigures, parameter: str = "") -> list[str]:
    """Return the cases with bounds that aren't symmetric, of one parameter or both."""
    return [case for case in seen.cases if case.endswith("lower=-3") and case.startswith(parameter)]


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
    parts = [
        f"{label}: {', '.join(f'{seen.said[name]} {seen.mean(name, of, "rmse", [seen.middle]):.2f}' for name in names)}"
        for key, label in PARAMETERS.items()
        for of in [_lower(seen, key)]
    ]
    best = int(np.argmin([seen.mean(name, _lower(seen), "rmse", [seen.middle]) for name in names]))
    text = f"Mean RMSE over n at epsilon {short(seen.middle)}, bounds {MINUS}3 to 4, {'; '.join(parts)}."
    return text, HOLDS if best in (3, 4) else PARTLY


@moments
def _larger_samples_of_moments(seen: CurveFigures) -> Said:
    return _more_records(seen, *HISTOGRAMS[:1], HISTOGRAMS[1:], (20, "the mean"), "mu, n={}, lower=-3")


EVEN_SPREAD = 0.5
"""Mean of an even spread over -3 to 4, where the true mean is 0."""


@moments
def _bias_of_moments(seen: CurveFigures) -> Said:
    biases = tuple(
        seen.over(HISTOGRAMS, [case], "bias", [seen.lowest])
        for case in ("mu, n=100, lower=-3", "mu, n=100, lower=-4", "s2, n=100, lower=-3")
    )
    skewed, even, variance = (_signed(*each) for each in biases)
    piled = [value > EVEN_SPREAD for value in biases[0]]  # beyond what an even spread gives: values at the nearer bound
    judged = [min(biases[0]) > max(map(abs, biases[1])), min(biases[2]) > 0, all(piled)]
    return say(judged, skewed=skewed, even=even, variance=variance)


@moments
def _errors_of_moments(seen: CurveFigures) -> Said:
    small, names = seen.below(1), ("modips-published", "moments-about-the-middle", *HISTOGRAMS)
    shown, better = [], {}
    for key, label in PARAMETERS.items():
        of = _lower(seen, key)
        means = {name: seen.mean(name, of, "rmse", small) for name in names}
        shown.append(f"{label}: {_each(seen, names, means.__getitem__)}")
        model, histogram = (np.array(seen.over([name], of, "rmse", small)) for name in (names[0], names[2]))
        better[key] = float(np.mean(histogram < model))
    judged = HOLDS if better["mu"] > 0.5 > better["s2"] else PARTLY
    return say(judged, means="; ".join(shown), mu=100 * better["mu"], s2=100 * better["s2"])


@moments
def _coverage_of_moments(seen: CurveFigures) -> Said:
    shares = {
        name: ", ".join(map(_share, seen.over([name], _lower(seen, "mu"), "coverage", [seen.lowest])))
        for name in ("perturbed-histogram-published", *HISTOGRAMS)
    }
    small = seen.below(1)
    rest = [epsilon for epsilon in seen.epsilons if epsilon not in small]
    parts = [
        f"{_share(min(seen.over(['modips-published'], _lower(seen), 'coverage', run)))} at least {where}"
        for run, where in ((small, "below epsilon 1"), (rest, f"from {short(rest[0])} on" if rest else ""))
        if run
    ]
    smoothed = seen.one("smoothed-histogram", "mu, n=1000, lower=-3", "coverage", seen.lowest)
    least = min(seen.over(["modips-published"], _lower(seen), "coverage", seen.epsilons))
    judged = HOLDS if smoothed < 0.5 and least > 0.9 else PARTLY
    return say(
        judged, shares="; ".join(f"{seen.said[name]} {share}" for name, share in shares.items()), parts=", ".join(parts)
    )


@moments
def _symmetric(seen: CurveFigures) -> Said:
    mu, s2 = ([f"{key}, n={n}, lower=-4" for n in (20, 100, 1000)] for key in PARAMETERS)
    bias = np.nanmax(np.abs(seen.over(HISTOGRAMS, mu, "bias", seen.epsilons)))
    coverage = float(np.nanmin(seen.over(HISTOGRAMS, mu, "coverage", seen.epsilons)))
    worst = float(np.nanmin(seen.over(HISTOGRAMS, s2, "coverage", seen.below(1))))
    judged = HOLDS if coverage > 0.9 and worst < 0.5 else PARTLY
    return say(judged, bias=bias, coverage=_share(coverage), worst=_share(worst))


@moments
def _rules_for_bins(seen: CurveFigures) -> Said:
    names = ("perturbed-histogram-published", "perturbed-histogram-by-sturges", "perturbed-histogram-by-freedman")
    shown, best = [], []
    for key, label in PARAMETERS.items():
        found = [_with_error(seen, name, _lower(seen, key), "rmse", seen.middle) for name in names]
        words = zip(("Scott", "Sturges", "Freedman-Diaconis"), found, strict=True)
        shown.append(f"{label} {', '.join(f'{name} {value:.3f} ± {error:.3f}' for name, (value, error) in words)}")
        best.append(all(found[0][0] <= value + 2 * math.hypot(error, found[0][1]) for value, error in found[1:]))
    text = f"Mean RMSE over n at epsilon {short(seen.middle)}, bounds {MINUS}3 to 4: {'; '.join(shown)}."
    return text, best


@moments
def _price_of_bins(seen: CurveFigures) -> Said:
    published, sound, projected = (
        seen.mean(name, seen.cases, "rmse", [seen.middle])
        for name in ("perturbed-histogram-published", "perturbed-histogram", "sanitizer-on-bins")
    )
    return say(PROVED, sound=sound, published=published, projected=projected)


# Both: what our own rows are to reach.


@proportions
@moments
def _published_and_once(seen: CurveFigures) -> Said:
    small, names = seen.below(1), ("modips-published", "modips-plug-in", "modips-posterior")
    error = {name: seen.mean(name, seen.cases, "rmse", small) for name in names}
    cover = {name: min(seen.over([name], seen.cases, "coverage", small)) for name in names}
    text = ", ".join(f"{seen.said[name]} {error[name]:.3f} and {100 * cover[name]:.0f} %" for name in names)
    right = cover["modips-plug-in"] < 0.8 and error["modips-plug-in"] < error["modips-published"]
    found = f"Mean RMSE and lowest coverage over all cases and the epsilons below 1: {text}."
    return found, HOLDS if right else PARTLY


@proportions
@moments
def _coverage_target(seen: CurveFigures) -> Said:
    epsilons = seen.above(SMALLEST)
    parts, met = [], False
    for name in ("modips-aware", "modips-aware-many", "modips-posterior", "modips-test"):
        values = np.array(seen.over([name], seen.cases, "coverage", epsilons))
        if np.isnan(values).all():
            continue
        low, high = int((values < LOW).sum()), int((values > HIGH).sum())
        parts.append(
            f"{seen.said[name]}: {values.size - low - high} of {values.size} within, {low} below (lowest "
            f"{_share(values.min())}), {high} above"
        )
        met = met or low + high == 0
    plug_in = min(seen.over(["modips-plug-in"], seen.cases, "coverage", epsilons))
    return say(HOLDS if met else PARTLY, parts="; ".join(parts), plug_in=_share(plug_in))


@proportions
@moments
def _error_target(seen: CurveFigures) -> Said:
    pairs = {
        "five sets": ("modips-aware", "modips-plug-in"),
        "100 sets against five of plug-in": ("modips-aware-many", "modips-plug-in"),
        "published posterior against MODIPS as published": ("modips-posterior", "modips-published"),
    }
    ratios = {title: seen.ratio(*pair) for title, pair in pairs.items()}
    text = "; ".join(
        f"{title} {np.exp(np.log(ratio).mean()):.2f} on average, {ratio.max():.2f} at most, "
        f"{100 * np.mean(ratio <= 1.02):.0f} % of cases not above 1.02"
        for title, ratio in ratios.items()
    )
    right = all((ratio <= 1.02).all() for ratio in list(ratios.values())[1:])
    return f"RMSE over that of plug-in, all cases and epsilons: {text}.", HOLDS if right else PARTLY
