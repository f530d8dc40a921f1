"""How the claims of section 4.3.2 of paper 003 fare. The figures come from the table."""

import math
from collections.abc import Sequence

import pandas as pd

from pdips_papers.harness.epsilon_curves import Curves, Figures, short, suffix_of
from pdips_papers.harness.framework import Finding
from pdips_papers.modips.mixed_measures import WITHOUT
from pdips_papers.modips.mixed_words import Averages, figure, span
from pdips_papers.modips.words import FAILS, HOLDS, PARTLY

MEANS, SPREADS = ("mu1", "mu2"), ("s1", "s2", "rho")
PRINTED = ("modips-published", "np-dips-published")
REPAIRED = ("modips-plug-in", "np-dips")
WRONG = ("wrong-published", "wrong-plug-in")
FEW = 0.05


def slomag_findings(table: pd.DataFrame, curves: Curves) -> list[Finding]:
    """Hold the claims of section 4.3.2 against the table."""
    averages = Averages(Figures(table))
    betas = [case for case in curves.cases if case.startswith("beta")]
    return [
        _no_fit(table, averages),
        _wrong(averages, betas),
        _bias(averages, betas),
        _errors(averages, betas),
        _coverage(averages, betas),
        _means(averages),
        _spreads(averages),
        _price(averages, betas),
    ]


def _no_fit(table: pd.DataFrame, averages: Averages) -> Finding:
    found = table[table["column"].str.startswith(WITHOUT)].set_index(["row", "column"])["ours"]

    def share(name: str, epsilon: str) -> float:
        rows = [f"{name}, beta{number}, intercept" for number in "1234"]
        return float(found.reindex([(row, f"{WITHOUT}{suffix_of(epsilon)}") for row in rows]).mean())

    low, top = averages.seen.epsilons[0], averages.seen.epsilons[-1]
    text = [
        f"{label} {figure(share(name, low), 'coverage')} and {figure(share(name, top), 'coverage')}"
        for name, label in (
            ("modips-published", "MODIPS (published)"),
            ("modips-plug-in", "MODIPS plug-in, once"),
            ("np-dips-published", "NP-DIPS (published)"),
            ("wrong-plug-in", "wrong model, once"),
        )
    ]
    return Finding(
        claim="For epsilon e⁻⁴ to e⁻² regressions on MODIPS sets don't converge.",
        found=f"Sets without a fit, mean over the four regressions, at epsilon {short(low)} and {short(top)}: "
        f"{'; '.join(text)}. Noisy coefficients leave a variable with one level. Firth's fit exists under "
        "separation, so the other sets are analysed here, where the paper leaves the epsilon out.",
        verdict=HOLDS if share("modips-published", low) > FEW else FAILS,
    )


def _wrong(averages: Averages, betas: Sequence[str]) -> Finding:
    top = averages.seen.epsilons[-1:]
    bias = averages.words((*WRONG, "modips-published"), betas, "bias", top)
    coverage = averages.words((*WRONG, "modips-published"), betas, "coverage", top)
    return Finding(
        claim="(1) The wrong model, GLOM on the 12 cells, can't tell what the data say: large bias, undercoverage.",
        found=f"Coefficients at epsilon {short(top[0])}, mean absolute bias: {bias}; coverage: {coverage}. Normal laws "
        "with one covariance matrix within cells make every log odds linear in z: GLOM contains such regressions "
        "(discriminant analysis), and is wrong about the margin of z and interactions only.",
        verdict=HOLDS if averages.of(WRONG[0], betas, "coverage", top) < 0.8 else FAILS,
    )


def _bias(averages: Averages, betas: Sequence[str]) -> Finding:
    top = averages.seen.epsilons[-1:]
    where = averages.above(math.exp(-1.01))
    parts = [
        f"epsilon {span(run)}: {averages.words((*PRINTED, *REPAIRED), betas, 'bias', run)}" for run in (where, top)
    ]
    model, histogram = (averages.of(name, betas, "bias", top) for name in PRINTED)
    return Finding(
        claim="(2) Biases of coefficients by MODIPS are close to 0 for epsilon above e⁻¹; those by NP-DIPS don't "
        "diminish.",
        found=f"Mean absolute bias, {'; '.join(parts)}. The printed prior shrinks coefficients of predictors in the "
        "unit ball at every epsilon; bins as fine as Scott's do less harm as noise goes.",
        verdict=HOLDS if model < 0.1 < histogram else FAILS,
    )


def _errors(averages: Averages, betas: Sequence[str]) -> Finding:
    names = ("original", *PRINTED, *REPAIRED, *WRONG)
    middle, top = [averages.seen.middle], averages.seen.epsilons[-1:]
    parts = [f"epsilon {short(run[0])}: {averages.words(names, betas, 'rmse', run)}" for run in (middle, top)]
    ratio = averages.of(PRINTED[0], betas, "rmse", middle) / averages.of("original", betas, "rmse", middle)
    return Finding(
        claim="(3) RMSE is large against that of the original data by every method.",
        found=f"Coefficients, {'; '.join(parts)}.",
        verdict=HOLDS if ratio > 2 else PARTLY,
    )


def _coverage(averages: Averages, betas: Sequence[str]) -> Finding:
    where, low = averages.above(math.exp(-1.01)), averages.seen.epsilons[:1]
    text = averages.words((*PRINTED, *REPAIRED), betas, "coverage", where)
    spread = averages.seen.over([PRINTED[1]], betas, "coverage", where)
    width = averages.words(PRINTED[1:], betas, "width", low), averages.words(PRINTED[1:], betas, "width", where[-1:])
    model = averages.of(PRINTED[0], betas, "coverage", where)
    return Finding(
        claim="(4) MODIPS covers coefficients at or above 95 % for epsilon above e⁻¹, with wide intervals; NP-DIPS "
        "covers some and not others, and its widths hardly vary with epsilon.",
        found=f"Mean coverage for epsilon {span(where)}: {text}. NP-DIPS (published) covers "
        f"{figure(min(spread), 'coverage')} to {figure(max(spread), 'coverage')}; mean width {width[0]} at epsilon "
        f"{short(low[0])}, {width[1]} at {short(where[-1])}.",
        verdict=HOLDS if model > 0.93 else PARTLY,
    )


def _means(averages: Averages) -> Finding:
    low, high = averages.below(math.exp(1)), averages.above(math.exp(1.01))
    parts = [
        f"{label} {averages.words((*PRINTED, *REPAIRED), MEANS, measure, run)}"
        for label, measure, run in (
            (f"RMSE for epsilon {span(low)}:", "rmse", low),
            (f"for {span(high)}:", "rmse", high),
            ("coverage over all:", "coverage", averages.seen.epsilons),
        )
    ]
    model, histogram = (averages.of(name, MEANS, "rmse", low) for name in PRINTED)
    covered = [averages.of(name, MEANS, "coverage", averages.seen.epsilons) for name in PRINTED]
    return Finding(
        claim="(5) For the means NP-DIPS has the smaller bias, RMSE and width for epsilon below e, similar ones above; "
        "both cover about 95 %.",
        found=f"{'; '.join(parts)}.",
        verdict=HOLDS if histogram < model and min(covered) > 0.92 else PARTLY,
    )


def _spreads(averages: Averages) -> Finding:
    where = averages.above(math.exp(-1.99))
    names = (*PRINTED, *WRONG, *REPAIRED)
    model = averages.of(PRINTED[0], SPREADS, "coverage", where)
    others = [averages.of(name, SPREADS, "coverage", averages.seen.epsilons) for name in (PRINTED[1], WRONG[0])]
    return Finding(
        claim="(6) NP-DIPS and the wrong model fall far short of covering variances and correlation at every epsilon; "
        "MODIPS covers them, with smaller bias and RMSE than NP-DIPS for epsilon above e⁻².",
        found=f"Mean coverage for epsilon {span(where)}: {averages.words(names, SPREADS, 'coverage', where)}; RMSE: "
        f"{averages.words(names, SPREADS, 'rmse', where)}; coverage at {short(where[-1])}: "
        f"{averages.words(names, SPREADS, 'coverage', where[-1:])}.",
        verdict=HOLDS if model > 0.93 and max(others) < 0.5 else PARTLY,
    )


def _price(averages: Averages, betas: Sequence[str]) -> Finding:
    middle = [averages.seen.middle]
    return Finding(
        claim="The published procedures are ϵ-differentially private.",
        found="They aren't: bins are read off the sample, and noise on draws of coefficients is n times too small for "
        f"the prior as printed. Mean RMSE of coefficients at epsilon {short(middle[0])}, published and repaired: "
        f"{averages.words((*PRINTED, *REPAIRED), betas, 'rmse', middle)}.",
        verdict=FAILS,
    )
