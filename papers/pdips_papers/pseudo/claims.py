"""The claims of Hu et al. (2022): sections 4.2 to 4.4 on simulations, section 5 on salaries; and our targets."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from pdips.report.formats import number
from pdips_papers.harness.study import FAILS, PARTLY, PROVED, Claims, Figures, Finding, Said, verdict
from pdips_papers.pseudo.synthesizers import (
    BOUND,
    BOUNDS,
    CENSOR_UW,
    CENSOR_W,
    CONFIDENTIAL,
    COUNT,
    DOWNSCALED_AT,
    EPSILON,
    FRESH,
    PH,
    PHS,
    SCALE,
    STAGED,
    UNWEIGHTED,
    UTILITY,
    WEIGHTED,
    WEIGHTED_E,
    epsilons_in,
    row_of,
    sound_row,
)

TARGETS = {"5": 0.060, "4": 0.065, "3": 0.070, "1": 0.09}
"""Mean max-ECDF that the default is to stay below, by true epsilon."""

MEAN_COUNT = f"{COUNT}: Mean"
STATISTICS = UTILITY[2:]
RANKED = ("max-ECDF", "avg-ECDF", "Mean", "Median", "15th Q", "90th Q")
CLAIMING = (WEIGHTED, WEIGHTED_E, CENSOR_W, CENSOR_UW)
"""The published forms."""


class CensoredFigures(Figures):
    """The table of the simulations by row and column."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(table)
        self.epsilons = epsilons_in(self.rows)
        self.claimed = [epsilon for epsilon in self.epsilons if row_of(CENSOR_UW, epsilon) in self.rows]

    def of(self, form: str, epsilon: str, column: str) -> float:
        """Return the figure of a form at an epsilon; Weighted's is the same at all."""
        return self.at(row_of(form, "" if form == WEIGHTED else epsilon), column)

    def each(self, form: str, column: str) -> list[float]:
        """Return the figures of a form at each claimed epsilon."""
        return [self.of(form, epsilon, column) for epsilon in self.claimed]

    def off(self, form: str, column: str) -> list[float]:
        """Return how far a statistic's mean lies from that of fresh samples, at each claimed epsilon."""
        truth = self.at(FRESH, column)
        return [abs(value - truth) for value in self.each(form, column)]

    @property
    def where(self) -> str:
        """The claimed epsilons as text."""
        return f"ϵ = {', '.join(self.claimed)}"

    def lowest(self, form: str, others: Sequence[str]) -> list[bool]:
        """Say at each claimed epsilon and in both ECDF measures whether a form is below all others."""
        return [
            self.of(form, epsilon, column) < min(self.of(other, epsilon, column) for other in others)
            for column in UTILITY[:2]
            for epsilon in self.claimed
        ]


claims: Claims[CensoredFigures] = Claims()
down_scaling: Claims[CensoredFigures] = Claims()


def simulated_findings(table: pd.DataFrame) -> list[Finding]:
    """Hold the claims of sections 4.2, 4.3 and 4.4 against the table, then our own targets."""
    seen = CensoredFigures(table)
    found = claims.judge(seen) if seen.claimed else []
    if not np.isnan(seen.at(row_of(WEIGHTED, "", SCALE), BOUND)):
        found += down_scaling.judge(seen)
    return found + _targets(seen)


def _series(values: Iterable[float]) -> str:
    return ", ".join(number(value) for value in values)


def _by_form(values: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(f"{form} {_series(each)}" for form, each in values.items())


def _all_below(low: Sequence[float], high: Sequence[float]) -> bool:
    return all(a < b for a, b in zip(low, high, strict=True))


def _rising(values: Sequence[float]) -> bool:
    return _all_below(values[:-1], values[1:])


@claims("(4.2) Lipschitz bounds range from around 7.5 to 15 for Unweighted, from around 2 to 3.5 for Weighted.")
def _weighting(seen: CensoredFigures) -> Said:
    (low, high), (least, most) = ([seen.at(row, name) for name in BOUNDS[2:4]] for row in (UNWEIGHTED, WEIGHTED))
    text = f"Least to greatest: {_series((low, high))} and {_series((least, most))}."
    return text, [5.5 < low < 9 and 10 < high < 20, 1.5 < least < 2.5 and 2.8 < most < 4.2]


@claims("(4.2) Weighted-e has more concentrated bounds than Weighted at every ϵ, and cannot keep them below ϵ / 2.")
def _concentration(seen: CensoredFigures) -> Said:
    spread, above, most = (seen.each(WEIGHTED_E, BOUNDS[place]) for place in (1, 4, 3))
    weighted = seen.at(WEIGHTED, BOUNDS[1])
    text = (
        f"Standard deviation at {seen.where}: {_series(spread)}; Weighted {number(weighted)}. Share of replicates "
        f"above ϵ / 2: {_series(above)}; greatest bound {_series(most)}."
    )
    return text, [all(value < weighted for value in spread), max(above) > 0]


@claims("(4.2) Censor_w and Censor_uw keep the bounds at or below ϵ / 2; at ϵ = 5 many of Censor_w's are below.")
def _strict(seen: CensoredFigures) -> Said:
    above, first = [*seen.each(CENSOR_W, BOUNDS[4]), *seen.each(CENSOR_UW, BOUNDS[4])], seen.claimed[0]
    least, mean = (seen.of(CENSOR_W, first, name) for name in (BOUNDS[2], BOUND))
    text = (
        f"None is above, by construction. Least bound of Censor_w at ϵ = {first}: {number(least)}, mean {number(mean)}."
    )
    return text, [max(above) == 0, least < float(first) / 2]


@claims(
    "(4.2) Censor_uw censors more records than Censor_w, Weighted-e truncates fewer than Censor_w censors; all more as "
    "ϵ falls."
)
def _counts(seen: CensoredFigures) -> Said:
    dropped, weighted, plain = (seen.each(form, MEAN_COUNT) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW))
    printed = [seen.paper(row_of(CENSOR_W, epsilon), MEAN_COUNT) for epsilon in seen.claimed]
    text = (
        f"Means at {seen.where}: Censor_uw {_series(plain)}; Censor_w {_series(weighted)}; Weighted-e "
        f"{_series(dropped)}. Censor_w's own counts differ from the paper's ({_series(printed)}), Censor_uw's "
        "don't. Why isn't known: the paper gives its weights up to proportionality and allows a scale and a shift "
        "without naming them, and weights scaled by 1.1 to 1.25 and shifted come near."
    )
    rising = [_rising(each) for each in (dropped, weighted, plain)]
    return text, [_all_below(weighted, plain), _all_below(dropped, weighted), *rising]


@claims("(3, 4.2) Censor_uw and Censor_w are ϵ-differentially private, with one record replaced.")
def _guarantee(seen: CensoredFigures) -> Said:
    text = (
        "They aren't. Terms censored at ±ϵ / 2 bound the posterior's ratio by 2 ϵ, and a table exists that attains it: "
        "Censor_uw spends 2 ϵ. Censor_w's weights come from a fit to all records, so that one record moves the weights "
        "of all others: no finite ϵ is shown. Bounds of one table at 1,000 draws say nothing of either."
    )
    return text, PROVED


@claims("(4.3) Weighted has the lowest max-ECDF and avg-ECDF of all synthesizers.")
def _weighted_first(seen: CensoredFigures) -> Said:
    better = seen.lowest(WEIGHTED, (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH))
    ours, unweighted = (_series(seen.at(row, column) for column in UTILITY[:2]) for row in (WEIGHTED, UNWEIGHTED))
    text = (
        f"Means {ours}, the lowest in {sum(better)} of {len(better)} comparisons over ϵ and both measures. The "
        f"unweighted posterior, which the paper leaves out: {unweighted}."
    )
    return text, better


@claims("(4.3) Of the others Censor_w has the lowest max-ECDF at every ϵ, and the lowest avg-ECDF at 4 and 3.")
def _censor_w(seen: CensoredFigures) -> Said:
    better = seen.lowest(CENSOR_W, (WEIGHTED_E, CENSOR_UW, PH))
    values = {form: seen.each(form, UTILITY[0]) for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)}
    text = (
        f"Mean max-ECDF at {seen.where}: {_by_form(values)}. Lowest in {sum(better)} of {len(better)} comparisons over "
        "ϵ and both measures."
    )
    return text, better


@claims("(4.3) All but Weighted lose utility as ϵ decreases, Weighted-e rapidly.")
def _deteriorates(seen: CensoredFigures) -> Said:
    values = {form: seen.each(form, UTILITY[0]) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH)}
    return f"Mean max-ECDF at {seen.where}: {_by_form(values)}.", [_rising(each) for each in values.values()]


@claims("(4.3) Censor_uw is consistently worse than Censor_w.")
def _below_unweighted(seen: CensoredFigures) -> Said:
    plain, weighted = (seen.each(form, UTILITY[0]) for form in (CENSOR_UW, CENSOR_W))
    text = f"Mean max-ECDF at {seen.where}: {_series(plain)} and {_series(weighted)}."
    return text, [b < a for a, b in zip(plain, weighted, strict=True)]


@claims("(4.3) PH clearly performs worse than almost all proposed Bayesian synthesizers.")
def _histogram(seen: CensoredFigures) -> Said:
    parts, right = [], []
    for histogram in PHS:
        for column in UTILITY[:2]:
            worse = [
                seen.of(histogram, e, column) > seen.of(form, e, column) for form in CLAIMING for e in seen.claimed
            ]
            parts.append(f"{histogram}, {column} {_series(seen.each(histogram, column))}, worse in {sum(worse)}")
            right.append(sum(worse) > 0.75 * len(worse))
    text = (
        f"At {seen.where}, of {len(worse)} comparisons with the four others: {'; '.join(parts)}. PH has sqrt(n) "
        "= 45 bins, the other row ln(n) = 8: the paper allows both and doesn't say which it took. The distance comes "
        "from the first bin, inside which records lie evenly. PH's ϵ is true, theirs isn't."
    )
    return text, right


@claims(
    "(4.3) Weighted is best for mean, median and quantiles, Censor_w next for the median; Censor_uw is worse than "
    "Censor_w in all."
)
def _statistics(seen: CensoredFigures) -> Said:
    off = {form: np.array([seen.off(form, column) for column in STATISTICS]) for form in CLAIMING}
    median = [seen.off(form, "median") for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)]
    best_median = [min(values) == values[0] for values in zip(*median, strict=True)]
    worse = float((off[CENSOR_UW] > off[CENSOR_W]).mean())
    best = float((off[WEIGHTED] <= np.min(list(off.values()), axis=0)).mean())
    text = (
        f"Distance of the mean statistic from fresh samples': Weighted is nearest in {number(100 * best)} % of the "
        f"cases (four statistics, {seen.where}); Censor_uw is farther off than Censor_w in {number(100 * worse)} %; "
        f"Censor_w has the nearest median of the rest at {sum(best_median)} of {len(best_median)} ϵ."
    )
    return text, [best == 1, worse == 1, all(best_median)]


@down_scaling(
    "(4.4) Down-scaling (c1 = 0.8, ϵ = 4) gives lower, more concentrated bounds, fewer censored records and better "
    "utility."
)
def _downscaling(seen: CensoredFigures) -> Said:
    def pair(form: str, column: str) -> tuple[float, float]:
        epsilon = "" if form == WEIGHTED else DOWNSCALED_AT
        return seen.at(row_of(form, epsilon), column), seen.at(row_of(form, epsilon, SCALE), column)

    forms = (WEIGHTED, WEIGHTED_E, CENSOR_W)
    bounds, spreads, average = ([pair(form, name) for form in forms] for name in (BOUND, BOUNDS[1], "avg-ECDF"))
    counts = [pair(form, MEAN_COUNT) for form in forms[1:]]
    text = "; ".join(
        f"{form} {number(b[0])} to {number(b[1])}, {number(a[0])} to {number(a[1])}"
        for form, b, a in zip(forms, bounds, average, strict=True)
    )
    fewer = "; ".join(f"{form} {number(a)} to {number(b)}" for form, (a, b) in zip(forms[1:], counts, strict=True))
    better = [b < a for pairs in (bounds, spreads, average, counts) for a, b in pairs]
    return f"Mean bound and mean avg-ECDF: {text}. Counts: {fewer}.", better


def _targets(seen: CensoredFigures) -> list[Finding]:
    """Return how the default fares against our own targets, at each epsilon that has one."""
    wanted = [epsilon for epsilon in TARGETS if not np.isnan(seen.at(sound_row("staged", epsilon), UTILITY[0]))]
    if not wanted:
        return []
    found = {
        f"centre {centre}": [seen.at(sound_row(centre, e), UTILITY[0]) for e in wanted]
        for centre in ("staged", "zero", "Beta(0.6, 2)")
    }
    limits, text = [TARGETS[epsilon] for epsilon in wanted], _by_form(found)
    references = _series(seen.at(row, UTILITY[0]) for row in (FRESH, UNWEIGHTED))
    return [
        Finding(
            claim="(Ours) The default, centred on a private reference, has a mean max-ECDF of at most "
            f"{_series(limits)} at true ϵ = {', '.join(wanted)}.",
            found=f"{text[0].upper()}{text[1:]}; PH {_series(seen.at(row_of(PH, e), UTILITY[0]) for e in wanted)}. "
            f"A fresh sample and the posterior without privacy have {references}.",
            verdict=verdict([a <= b for a, b in zip(found["centre staged"], limits, strict=True)]),
        )
    ]


# Section 5: the application.

application: Claims[Figures] = Claims()


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{column} {number(value)}" for column, value in values.items())


@application(
    "Censor_w and Censor_uw achieve the target ϵ = 5; Weighted and Weighted-e exceed it somewhat (5.24, 5.22)."
)
def _application_bounds(seen: Figures) -> Said:
    bounds, target = {column: seen.at("Lipschitz", column) for column in CLAIMING}, EPSILON / 2
    text = (
        f"Mean Lipschitz bounds: {_text(bounds)}; ϵ / 2 is {number(target)}. A bound of one table is no guarantee: "
        "true ϵ is 10 for Censor_uw, and none is shown for the others."
    )
    return text, PARTLY if min(bounds[WEIGHTED], bounds[WEIGHTED_E]) > target else FAILS


@application("Weighted has the highest utility, Weighted-e comes second, Censor_w third.")
def _order(seen: Figures) -> Said:
    def off(row: str, column: str) -> float:
        return seen.at(row, column) if "ECDF" in row else abs(seen.at(row, column) - seen.at(row, CONFIDENTIAL))

    columns = (*CLAIMING, PH)
    totals = {
        column: float(sum(off(row, other) <= off(row, column) for other in columns for row in RANKED))
        for column in columns
    }
    best = sorted(totals, key=lambda column: totals[column])
    text = f"Sum of ranks over the six utility rows: {_text(totals)}."
    return text, [best[place] == wanted for place, wanted in enumerate((WEIGHTED, WEIGHTED_E, CENSOR_W))]


@application("Censor_uw and PH are inferior: more records are censored, and PH uses neither model nor covariates.")
def _inferior(seen: Figures) -> Said:
    values = {column: seen.at("max-ECDF", column) for column in (*CLAIMING, *PHS)}
    others = max(values[column] for column in (WEIGHTED, WEIGHTED_E, CENSOR_W))
    text = (
        f"Mean max-ECDF: {_text(values)}. Both measures look at the number alone, not at how it goes with the "
        "covariates, which PH destroys."
    )
    return text, [values[column] > others for column in (CENSOR_UW, *PHS)]


@application("(Ours) The default form of censored-posterior is at true ϵ = 5 and 1 no worse than any published form.")
def _ours(seen: Figures) -> Said:
    staged = {column: seen.at("max-ECDF", column) for column in STAGED}
    published = min(seen.at("max-ECDF", column) for column in CLAIMING)
    text = (
        f"Mean max-ECDF: {_text(staged)}; the best published {number(published)}. A dash: the chains did not agree, so "
        "nothing was released."
    )
    return text, [value <= published for value in staged.values()]
