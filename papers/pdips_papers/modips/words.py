"""What the studies of paper 003 say about themselves, and how its claims fare. The figures come from the table."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pdips.report.formats import MINUS
from pdips_papers.harness.epsilon_curves import Curves, Figures, short
from pdips_papers.harness.framework import Finding
from pdips_papers.modips.modips_words import alike, coverage_target, error_target, modips_coverage, published_and_once

TEXTS = Path(__file__).parents[1] / "texts"
HOLDS, PARTLY, FAILS, TO_COME = "holds", "holds in part", "doesn't hold", "to come"

LAPLACE = ("laplace-one-count", "laplace-both-counts")
PRIORS = ("multinomial-dirichlet", "mcclure-reiter")


def text_of(name: str) -> str:
    """Return the paragraphs of a study in HTML."""
    page, common = ((TEXTS / f"{part}.html").read_text(encoding="utf-8") for part in (name, "common"))
    return page.replace("{{ common }}\n", common)


def proportion_findings(table: pd.DataFrame, curves: Curves) -> list[Finding]:
    """Hold the eight claims of section 4.1, and the one on truncation, against the table."""
    seen, cases = Figures(table), list(curves.cases)
    skewed = [case for case in cases if not case.endswith("pi=0.5")]
    middle, low = seen.middle, seen.epsilons[0]
    return [
        _two_families(seen, skewed, middle),
        _in_the_limit(seen, cases),
        _larger_samples(seen, ("laplace-one-count",), PRIORS, (40, "π = 0.25"), "n={}, pi=0.25", "(3)"),
        _bias_from_priors(seen, middle),
        _best_in_the_middle(seen),
        _smaller_errors(seen, skewed, [case for case in cases if case not in skewed], low),
        _coverage_of_proportions(seen, cases),
        _wider_intervals(seen, cases),
        _truncation(seen, cases),
        published_and_once(seen, cases),
        coverage_target(seen, cases, ("modips-aware", "modips-aware-many", "modips-posterior", "modips-test")),
        error_target(seen, cases),
    ]


def _two_families(seen: Figures, cases: Sequence[str], epsilon: str) -> Finding:
    means = {name: float(np.mean(seen.over([name], cases, "rmse", [epsilon]))) for name in (*LAPLACE, *PRIORS)}
    text = ", ".join(f"{_plain(name)} {value:.3f}" for name, value in means.items())
    return Finding(
        claim="(1) MODIPS and the Laplace sanitizer are alike, so are Multinomial-Dirichlet and McClure-Reiter, and "
        "the former "
        "two are better.",
        found=f"Mean RMSE over the cases with π other than 0.5, at epsilon {short(epsilon)}: {text}. "
        f"RMSE over all these cases and epsilons: {alike(seen, cases)}.",
        verdict=HOLDS if max(means[name] for name in LAPLACE) < min(means[name] for name in PRIORS) else FAILS,
    )


def _in_the_limit(seen: Figures, cases: Sequence[str]) -> Finding:
    top = seen.epsilons[-1]

    def ratio(name: str, to: str) -> float:
        errors, others = (np.array(seen.over([one], cases, "rmse", [top])) for one in (name, to))
        return float(np.mean(errors / others))

    laplace, prior, single = (ratio(name, "original") for name in ("laplace-one-count", *PRIORS))
    synthesis, modips = (ratio(name, "original") for name in ("multiple-synthesis", "modips-published"))
    return Finding(
        claim="(2) Bias, error and undercoverage shrink as epsilon grows; Multinomial-Dirichlet and McClure-Reiter "
        "approach the "
        "original data, MODIPS and the Laplace sanitizer multiple synthesis without privacy.",
        found=f"RMSE over that of the original data at epsilon {short(top)}, mean over cases: Laplace sanitizer "
        f"{laplace:.2f}, "
        f"Multinomial-Dirichlet {prior:.2f}, McClure-Reiter {single:.2f}, MODIPS {modips:.2f}, multiple synthesis "
        f"{synthesis:.2f}. "
        f"Without noise, sets made "
        "straight from counts are copies of the data; those drawn from a posterior aren't; and one drawn set has "
        "twice the variance.",
        verdict=PARTLY if abs(laplace - 1) < abs(laplace - synthesis) else HOLDS,
    )


def _larger_samples(
    seen: Figures, better: Sequence[str], stuck: Sequence[str], sizes: tuple[int, str], pattern: str, number: str
) -> Finding:
    small, where = sizes
    few, many = pattern.format(small), pattern.format(1000)
    share = {
        name: seen.at(name, many, "rmse", seen.middle) / seen.at(name, few, "rmse", seen.middle)
        for name in ("original", *better, *stuck)
    }
    text = ", ".join(f"{_plain(name)} {100 * value:.0f} %" for name, value in share.items())
    return Finding(
        claim=f"{number} More records make noise on counts immaterial, and help little against a prior that grows "
        "with n.",
        found=f"RMSE with 1,000 records as a share of that with {small}, at epsilon {short(seen.middle)} ({where}): "
        f"{text}.",
        verdict=HOLDS if max(share[name] for name in better) < 0.5 * min(share[name] for name in stuck) else PARTLY,
    )


def _bias_from_priors(seen: Figures, epsilon: str) -> Finding:
    bias = {pi: seen.over(PRIORS, [f"n=100, pi={pi}"], "bias", [epsilon]) for pi in ("0.1", "0.5")}
    return Finding(
        claim="(4) Multinomial-Dirichlet and McClure-Reiter are biased towards 0.5, and at their best for π = 0.5.",
        found=f"Bias at n = 100, epsilon {short(epsilon)}: {_both(bias['0.1'])} for π = 0.1, {_both(bias['0.5'])} "
        f"for π = 0.5.",
        verdict=HOLDS if min(bias["0.1"]) > 0.05 > max(np.abs(bias["0.5"])) else FAILS,
    )


def _best_in_the_middle(seen: Figures) -> Finding:
    low = seen.epsilons[0]
    bias = [seen.at("laplace-one-count", f"n=100, pi={pi}", "bias", low) for pi in ("0.1", "0.25", "0.5")]
    error = [seen.at("laplace-one-count", f"n=100, pi={pi}", "rmse", low) for pi in ("0.1", "0.25", "0.5")]
    return Finding(
        claim="(5) The Laplace sanitizer too is at its best for π = 0.5, where clamping skews nothing.",
        found=f"n = 100, epsilon {short(low)}, π = 0.1, 0.25, 0.5: bias {', '.join(map(_signed, bias))}, "
        f"RMSE {', '.join(f'{value:.3f}' for value in error)}.",
        verdict=HOLDS if abs(bias[2]) < bias[1] < bias[0] and error[2] < error[1] < error[0] else PARTLY,
    )


def _smaller_errors(seen: Figures, skewed: Sequence[str], even: Sequence[str], low: str) -> Finding:
    laplace = np.array(seen.over(["laplace-one-count"], skewed, "rmse", seen.epsilons))
    priors = np.array([seen.over([name], skewed, "rmse", seen.epsilons) for name in PRIORS])
    wins = float(np.mean(laplace < priors.min(axis=0)))
    at_half = [
        float(np.mean(seen.over([name], even, "rmse", [low]))) for name in ("laplace-one-count", *PRIORS, "original")
    ]
    return Finding(
        claim="(6) For π other than 0.5 the Laplace sanitizer has much the smaller RMSE for most epsilons; for π = "
        "0.5 the other two "
        "have, at small epsilon, even below the original data.",
        found=f"Smaller than both in {100 * wins:.0f} % of the cases and epsilons with π other than 0.5. For π = 0.5 "
        f"at epsilon {short(low)}: "
        f"Laplace {at_half[0]:.3f}, Multinomial-Dirichlet {at_half[1]:.3f}, McClure-Reiter {at_half[2]:.3f}, "
        f"original {at_half[3]:.3f}.",
        verdict=HOLDS if wins > 0.5 and max(at_half[1:3]) < at_half[0] and min(at_half[1:3]) < at_half[3] else PARTLY,
    )


def _coverage_of_proportions(seen: Figures, cases: Sequence[str]) -> Finding:
    top = seen.epsilons[-1]
    usual = [epsilon for epsilon in seen.epsilons if epsilon not in seen.below(1)]
    low = np.nanmin(seen.over(["laplace-one-count"], cases, "coverage", usual) or [math.nan])
    worst = np.nanmin(seen.over(["laplace-one-count"], cases, "coverage", seen.epsilons))
    at_top = {name: seen.over([name], cases, "coverage", [top]) for name in ("multinomial-dirichlet", "mcclure-reiter")}
    return Finding(
        claim="(7) The Laplace sanitizer covers close to 95 % but for small epsilon and n; all converge to it as "
        "epsilon grows, "
        "except McClure-Reiter.",
        found=f"Laplace sanitizer: {_share(low)} at least for epsilon from 1 on, {_share(worst)} over all. At "
        f"epsilon {short(top)}, worst and "
        f"best case: Multinomial-Dirichlet {_span(at_top['multinomial-dirichlet'])}, McClure-Reiter "
        f"{_span(at_top['mcclure-reiter'])}.",
        verdict=HOLDS
        if max(at_top["mcclure-reiter"]) < min(at_top["multinomial-dirichlet"]) and low > 0.85
        else PARTLY,
    )


def _wider_intervals(seen: Figures, cases: Sequence[str]) -> Finding:
    small = seen.below(math.exp(-1) - 1e-6) or seen.epsilons[:1]
    width = {name: float(np.mean(seen.over([name], cases, "width", small))) for name in ("laplace-one-count", *PRIORS)}
    return Finding(
        claim="(8) Below epsilon = 1/e its intervals are much wider than those of the other two.",
        found="Mean width over all cases: "
        + ", ".join(f"{_plain(name)} {value:.2f}" for name, value in width.items())
        + ".",
        verdict=HOLDS if width["laplace-one-count"] > 2 * max(width[name] for name in PRIORS) else PARTLY,
    )


def _truncation(seen: Figures, cases: Sequence[str]) -> Finding:
    small = seen.below(1) or seen.epsilons[:1]
    clamped, published, repaired = (
        float(np.mean(seen.over([name], cases, "rmse", small)))
        for name in ("laplace-one-count", "laplace-redrawn-published", "laplace-redrawn")
    )
    return Finding(
        claim="Drawing out-of-bounds counts again doesn't compromise privacy; its results are worse than those of "
        "clamping.",
        found="It does: the five sets spend up to twice epsilon (above). Mean RMSE over all cases and the epsilons "
        "below 1: clamped "
        f"{clamped:.3f}, re-drawn as published {published:.3f}, re-drawn at a scale that keeps epsilon {repaired:.3f}.",
        verdict=FAILS,
    )


HISTOGRAMS = ("perturbed-histogram", "smoothed-histogram")


def normal_findings(table: pd.DataFrame, curves: Curves) -> list[Finding]:
    """Hold the claims of section 4.2 against the table."""
    seen = Figures(table)
    skewed = [case for case in curves.cases if case.endswith("lower=-3")]
    return [
        _trade_off(seen, skewed),
        _larger_samples(
            seen,
            ("perturbed-histogram",),
            ("smoothed-histogram",),
            (20, "the mean"),
            "mu, n={}, lower=-3",
            "(2)",
        ),
        _bias_of_moments(seen),
        _errors_of_moments(seen, skewed),
        _coverage_of_moments(seen, skewed),
        _symmetric(seen),
        _price_of_bins(seen, list(curves.cases)),
        published_and_once(seen, list(curves.cases)),
        coverage_target(seen, list(curves.cases), ("modips-aware", "modips-aware-many", "modips-posterior")),
        error_target(seen, list(curves.cases)),
    ]


def _trade_off(seen: Figures, cases: Sequence[str]) -> Finding:
    names = (
        "modips-published",
        "moments-as-printed",
        "moments-about-the-middle",
        "perturbed-histogram",
        "sanitizer-on-bins",
        "smoothed-histogram",
    )
    parts = []
    for parameter in ("mu", "s2"):
        of = [case for case in cases if case.startswith(parameter)]
        means = [f"{_plain(name)} {np.mean(seen.over([name], of, 'rmse', [seen.middle])):.2f}" for name in names]
        parts.append(f"{'mean' if parameter == 'mu' else 'variance'}: {', '.join(means)}")
    mean = [np.mean(seen.over([name], cases, "rmse", [seen.middle])) for name in names]
    return Finding(
        claim="(1) Bias and RMSE shrink as epsilon grows; the perturbed histogram offers the best trade-off between "
        "bias and variance.",
        found=f"Mean RMSE over n at epsilon {short(seen.middle)}, bounds {MINUS}3 to 4, {'; '.join(parts)}.",
        verdict=HOLDS if int(np.argmin(mean)) in (3, 4) else PARTLY,
    )


def _bias_of_moments(seen: Figures) -> Finding:
    low = seen.epsilons[0]
    bias = {
        (p, bound): seen.over(HISTOGRAMS, [f"{p}, n=100, lower={bound}"], "bias", [low])
        for p in ("mu", "s2")
        for bound in (-3, -4)
    }
    return Finding(
        claim="(3) The positive bias in the mean comes from bounds that aren't symmetric; the variance is biased "
        "upwards.",
        found=f"n = 100, epsilon {short(low)}, perturbed and smoothed histogram: mean {_both(bias['mu', -3])} with "
        f"bounds {MINUS}3 to 4, "
        f"{_both(bias['mu', -4])} with {MINUS}4 to 4; variance {_both(bias['s2', -3])}. They are drawn towards an "
        f"even spread over "
        "the bounds, with mean 0.5 and variance 4.1, rather than piled up at the nearer bound, as the paper explains "
        "it.",
        verdict=PARTLY,
    )


def _errors_of_moments(seen: Figures, cases: Sequence[str]) -> Finding:
    small = seen.below(1) or seen.epsilons[:1]
    names = ("modips-published", "moments-about-the-middle", *HISTOGRAMS)
    shown, better = [], {}
    for parameter in ("mu", "s2"):
        of = [case for case in cases if case.startswith(parameter)]
        means = ", ".join(f"{_plain(name)} {np.mean(seen.over([name], of, 'rmse', small)):.2f}" for name in names)
        errors = [
            np.array(seen.over([name], of, "rmse", small)) for name in ("modips-published", "perturbed-histogram")
        ]
        better[parameter] = float(np.mean(errors[1] < errors[0]))
        shown.append(f"{'mean' if parameter == 'mu' else 'variance'}: {means}")
    return Finding(
        claim="(4) For epsilon below 1 histograms have the smaller RMSE for the mean than MODIPS for most n, the "
        "larger one for the variance.",
        found=f"Mean RMSE over n and the epsilons below 1, {'; '.join(shown)}. The perturbed histogram "
        f"(sound) has the smaller one in {100 * better['mu']:.0f} % of the cases for the mean, "
        f"{100 * better['s2']:.0f} % for the variance.",
        verdict=HOLDS if better["mu"] > 0.5 > better["s2"] else PARTLY,
    )


def _coverage_of_moments(seen: Figures, cases: Sequence[str]) -> Finding:
    low = seen.epsilons[0]
    text = [
        f"{_plain(name)} {', '.join(_share(value) for value in seen.over([name], of, 'coverage', [low]))}"
        for name in ("perturbed-histogram-published", *HISTOGRAMS)
        if (of := [case for case in cases if case.startswith("mu")])
    ]
    mu = seen.at("smoothed-histogram", "mu, n=1000, lower=-3", "coverage", low)
    least = min(seen.over(["modips-published"], cases, "coverage", seen.epsilons))
    return Finding(
        claim="(5) MODIPS covers close to 95 % with wide intervals; the perturbed histogram undercovers somewhat; "
        "the smoothed "
        "histogram severely, at small epsilon and large n.",
        found=f"Coverage of the mean at epsilon {short(low)}, n = 20, 100, 1,000: {'; '.join(text)}. "
        f"MODIPS as published, mean and variance, all n: {modips_coverage(seen, cases)}.",
        verdict=HOLDS if mu < 0.5 and least > 0.9 else PARTLY,
    )


def _symmetric(seen: Figures) -> Finding:
    mu, s2 = ([f"{p}, n={n}, lower=-4" for n in (20, 100, 1000)] for p in ("mu", "s2"))
    bias = np.nanmax(np.abs(seen.over(HISTOGRAMS, mu, "bias", seen.epsilons)))
    coverage = np.nanmin(seen.over(HISTOGRAMS, mu, "coverage", seen.epsilons))
    worst = np.nanmin(seen.over(HISTOGRAMS, s2, "coverage", seen.below(1) or seen.epsilons[:1]))
    return Finding(
        claim="(supplement) With symmetric bounds the mean is hardly biased and covered as often as it should be; "
        "the variance is "
        "undercovered severely by histograms at small epsilon.",
        found=f"Perturbed and smoothed histogram over all n and epsilons: largest bias of the mean {bias:.3f}, "
        f"lowest coverage "
        f"{_share(coverage)}; lowest coverage of the variance below epsilon 1 {_share(worst)}.",
        verdict=HOLDS if coverage > 0.9 and worst < 0.5 else PARTLY,
    )


def _price_of_bins(seen: Figures, cases: Sequence[str]) -> Finding:
    means = [
        float(np.mean(seen.over([name], cases, "rmse", [seen.middle])))
        for name in ("perturbed-histogram-published", "perturbed-histogram", "sanitizer-on-bins")
    ]
    return Finding(
        claim="The published histograms are ϵ-differentially private.",
        found="They aren't: their bins are read off the sample. What the repair costs the perturbed histogram: mean "
        f"RMSE over all cases at epsilon {short(seen.middle)} {means[1]:.2f} in place of {means[0]:.2f}; "
        f"{means[2]:.2f} where the same noisy counts are projected and rounded, not drawn from. The smoothed one "
        "pays nothing for public bins.",
        verdict=FAILS,
    )


def _plain(name: str) -> str:
    known = {
        "laplace-one-count": "Laplace sanitizer",
        "laplace-both-counts": "on both counts",
        "multinomial-dirichlet": "Multinomial-Dirichlet",
        "mcclure-reiter": "McClure-Reiter",
        "modips-published": "MODIPS as published",
    }
    return known.get(name, name.replace("-", " ").replace(" published", " (published)"))


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", MINUS)


def _both(values: Sequence[float]) -> str:
    return " and ".join(map(_signed, values))


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _span(values: Sequence[float]) -> str:
    return f"{_share(min(values))} to {_share(max(values))}"
