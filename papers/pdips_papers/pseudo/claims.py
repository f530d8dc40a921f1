"""The claims of Hu et al. (2022): sections 4.2 to 4.4 on simulations, section 5 on salaries; and our targets."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from pdips.report.formats import number
from pdips_papers.harness.study import FAILS, PARTLY, PROVED, Claims, Figures, Finding, Said, say, verdict
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


claims: Claims[CensoredFigures] = Claims("censored-beta")
down_scaling: Claims[CensoredFigures] = Claims("censored-beta")


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


@claims
def _weighting(seen: CensoredFigures) -> Said:
    (low, high), (least, most) = ([seen.at(row, name) for name in BOUNDS[2:4]] for row in (UNWEIGHTED, WEIGHTED))
    text = f"Least to greatest: {_series((low, high))} and {_series((least, most))}."
    return text, [5.5 < low < 9 and 10 < high < 20, 1.5 < least < 2.5 and 2.8 < most < 4.2]


@claims
def _concentration(seen: CensoredFigures) -> Said:
    spread, above, most = (seen.each(WEIGHTED_E, BOUNDS[place]) for place in (1, 4, 3))
    weighted = seen.at(WEIGHTED, BOUNDS[1])
    judged = [all(value < weighted for value in spread), max(above) > 0]
    return say(judged, spread=_series(spread), weighted=number(weighted), above=_series(above), most=_series(most))


@claims
def _strict(seen: CensoredFigures) -> Said:
    above, first = [*seen.each(CENSOR_W, BOUNDS[4]), *seen.each(CENSOR_UW, BOUNDS[4])], seen.claimed[0]
    least, mean = (seen.of(CENSOR_W, first, name) for name in (BOUNDS[2], BOUND))
    return say([max(above) == 0, least < float(first) / 2], first=first, least=number(least), mean=number(mean))


@claims
def _counts(seen: CensoredFigures) -> Said:
    dropped, weighted, plain = (seen.each(form, MEAN_COUNT) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW))
    printed = [seen.paper(row_of(CENSOR_W, epsilon), MEAN_COUNT) for epsilon in seen.claimed]
    rising = [_rising(each) for each in (dropped, weighted, plain)]
    judged = [_all_below(weighted, plain), _all_below(dropped, weighted), *rising]
    return say(
        judged, plain=_series(plain), weighted=_series(weighted), dropped=_series(dropped), printed=_series(printed)
    )


@claims
def _guarantee(seen: CensoredFigures) -> Said:
    return say(PROVED)


@claims
def _weighted_first(seen: CensoredFigures) -> Said:
    better = seen.lowest(WEIGHTED, (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH))
    ours, unweighted = (_series(seen.at(row, column) for column in UTILITY[:2]) for row in (WEIGHTED, UNWEIGHTED))
    return say(better, ours=ours, wins=sum(better), all=len(better), unweighted=unweighted)


@claims
def _censor_w(seen: CensoredFigures) -> Said:
    better = seen.lowest(CENSOR_W, (WEIGHTED_E, CENSOR_UW, PH))
    values = {form: seen.each(form, UTILITY[0]) for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)}
    return say(better, values=_by_form(values), wins=sum(better), all=len(better))


@claims
def _deteriorates(seen: CensoredFigures) -> Said:
    values = {form: seen.each(form, UTILITY[0]) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH)}
    return f"Mean max-ECDF at {seen.where}: {_by_form(values)}.", [_rising(each) for each in values.values()]


@claims
def _below_unweighted(seen: CensoredFigures) -> Said:
    plain, weighted = (seen.each(form, UTILITY[0]) for form in (CENSOR_UW, CENSOR_W))
    text = f"Mean max-ECDF at {seen.where}: {_series(plain)} and {_series(weighted)}."
    return text, [b < a for a, b in zip(plain, weighted, strict=True)]


@claims
def _histogram(seen: CensoredFigures) -> Said:
    parts, right = [], []
    for histogram in PHS:
        for column in UTILITY[:2]:
            worse = [
                seen.of(histogram, e, column) > seen.of(form, e, column) for form in CLAIMING for e in seen.claimed
            ]
            parts.append(f"{histogram}, {column} {_series(seen.each(histogram, column))}, worse in {sum(worse)}")
            right.append(sum(worse) > 0.75 * len(worse))
    return say(right, all=len(worse), parts="; ".join(parts))


@claims
def _statistics(seen: CensoredFigures) -> Said:
    off = {form: np.array([seen.off(form, column) for column in STATISTICS]) for form in CLAIMING}
    median = [seen.off(form, "median") for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)]
    best_median = [min(values) == values[0] for values in zip(*median, strict=True)]
    worse = float((off[CENSOR_UW] > off[CENSOR_W]).mean())
    best = float((off[WEIGHTED] <= np.min(list(off.values()), axis=0)).mean())
    judged = [best == 1, worse == 1, all(best_median)]
    return say(judged, best=number(100 * best), worse=number(100 * worse), wins=sum(best_median), all=len(best_median))


@down_scaling
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

application: Claims[Figures] = Claims("salary")


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{column} {number(value)}" for column, value in values.items())


@application
def _application_bounds(seen: Figures) -> Said:
    bounds, target = {column: seen.at("Lipschitz", column) for column in CLAIMING}, EPSILON / 2
    judged = PARTLY if min(bounds[WEIGHTED], bounds[WEIGHTED_E]) > target else FAILS
    return say(judged, bounds=_text(bounds), target=number(target))


@application
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


@application
def _inferior(seen: Figures) -> Said:
    values = {column: seen.at("max-ECDF", column) for column in (*CLAIMING, *PHS)}
    others = max(values[column] for column in (WEIGHTED, WEIGHTED_E, CENSOR_W))
    return say([values[column] > others for column in (CENSOR_UW, *PHS)], values=_text(values))


@application
def _ours(seen: Figures) -> Said:
    staged = {column: seen.at("max-ECDF", column) for column in STAGED}
    published = min(seen.at("max-ECDF", column) for column in CLAIMING)
    return say([value <= published for value in staged.values()], staged=_text(staged), published=number(published))
