"""How the claims of paper 004, sections 4.2 to 4.4, fare; judged from the study's table."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from pdips.report.formats import number
from pdips_papers.harness.framework import Finding
from pdips_papers.modips.words import FAILS, HOLDS, PARTLY
from pdips_papers.pseudo.censored_forms import (
    CENSOR_UW,
    CENSOR_W,
    DOWNSCALED_AT,
    FRESH,
    PH,
    SCALE,
    UNWEIGHTED,
    WEIGHTED,
    WEIGHTED_E,
    row_of,
    sound_row,
)
from pdips_papers.pseudo.censored_layout import BOUND, BOUNDS, COUNT, UTILITY, epsilons_of
from pdips_papers.pseudo.censored_paper import COUNTS

TARGETS = {"5": 0.060, "4": 0.065, "3": 0.070, "1": 0.09}
"""Mean max-ECDF that the default is to stay below, by true epsilon."""

MEAN_COUNT = f"{COUNT}: Mean"
STATISTICS = UTILITY[2:]


class Seen:
    """The table by row and column.

    Parameters
    ----------
    table : DataFrame
        The study's.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self._ours = table.set_index(["row", "column"])["ours"]
        rows = {str(row) for row in table["row"]}
        self.epsilons = epsilons_of(rows)
        self.claimed = [epsilon for epsilon in self.epsilons if row_of(CENSOR_UW, epsilon) in rows]

    def at(self, row: str, column: str) -> float:
        """Return our figure, NaN if there is none."""
        return float(self._ours.get((row, column), np.nan))

    def each(self, form: str, column: str, scale: float = 1.0) -> list[float]:
        """Return the figures of a form at each claimed epsilon; Weighted's is the same at all."""
        return [self.at(row_of(form, "" if form == WEIGHTED else epsilon, scale), column) for epsilon in self.claimed]

    def off(self, form: str, column: str) -> list[float]:
        """Return how far a statistic's mean lies from that of fresh samples, at each claimed epsilon."""
        truth = self.at(FRESH, column)
        return [abs(value - truth) for value in self.each(form, column)]


def findings(table: pd.DataFrame) -> list[Finding]:
    """Hold the claims of sections 4.2, 4.3 and 4.4 against the table, then our own targets."""
    seen = Seen(table)
    judged: list[Callable[[Seen], Finding]] = []
    if seen.claimed:
        judged = [_weighting, _concentration, _strict, _counts, _guarantee, _weighted_first, _censor_w, _deteriorates]
        judged += [_below_unweighted, _histogram, _statistics]
    if not np.isnan(seen.at(row_of(WEIGHTED, "", SCALE), BOUND)):
        judged.append(_downscaling)
    return [judge(seen) for judge in judged] + _targets(seen)


def _series(values: Iterable[float]) -> str:
    return ", ".join(number(value) for value in values)


def _all_below(low: Sequence[float], high: Sequence[float]) -> bool:
    return all(a < b for a, b in zip(low, high, strict=True))


def _judged(parts: Sequence[bool]) -> str:
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def _weighting(seen: Seen) -> Finding:
    low, high = (seen.at(UNWEIGHTED, name) for name in BOUNDS[2:4])
    least, most = (seen.at(WEIGHTED, name) for name in BOUNDS[2:4])
    return Finding(
        claim="(4.2) Lipschitz bounds range from around 7.5 to 15 for Unweighted, from around 2 to 3.5 for Weighted.",
        found=f"Least to greatest: {_series((low, high))} and {_series((least, most))}.",
        verdict=_judged([5.5 < low < 9 and 10 < high < 20, 1.5 < least < 2.5 and 2.8 < most < 4.2]),
    )


def _concentration(seen: Seen) -> Finding:
    spread, above, most = (seen.each(WEIGHTED_E, BOUNDS[place]) for place in (1, 4, 3))
    weighted = seen.at(WEIGHTED, BOUNDS[1])
    return Finding(
        claim="(4.2) Weighted-e has more concentrated bounds than Weighted at every ϵ, and cannot keep them below "
        "ϵ / 2.",
        found=f"Standard deviation at ϵ = {', '.join(seen.claimed)}: {_series(spread)}; Weighted "
        f"{number(weighted)}. Share of replicates above ϵ / 2: {_series(above)}; greatest bound {_series(most)}.",
        verdict=_judged([all(value < weighted for value in spread), max(above) > 0]),
    )


def _strict(seen: Seen) -> Finding:
    above = [*seen.each(CENSOR_W, BOUNDS[4]), *seen.each(CENSOR_UW, BOUNDS[4])]
    least, target = seen.at(row_of(CENSOR_W, seen.claimed[0]), BOUNDS[2]), float(seen.claimed[0]) / 2
    return Finding(
        claim="(4.2) Censor_w and Censor_uw keep the bounds at or below ϵ / 2; at ϵ = 5 many of Censor_w's are below.",
        found=f"None is above, by construction. Least bound of Censor_w at ϵ = {seen.claimed[0]}: {number(least)}, "
        f"mean {number(seen.at(row_of(CENSOR_W, seen.claimed[0]), BOUND))}.",
        verdict=_judged([max(above) == 0, least < target]),
    )


def _counts(seen: Seen) -> Finding:
    dropped, weighted, plain = (seen.each(form, MEAN_COUNT) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW))
    printed = [COUNTS.get(row_of(CENSOR_W, epsilon), (np.nan,) * 4)[3] for epsilon in seen.claimed]
    return Finding(
        claim="(4.2) Censor_uw censors more records than Censor_w, Weighted-e truncates fewer than Censor_w "
        "censors; all more as ϵ falls.",
        found=f"Means at ϵ = {', '.join(seen.claimed)}: Censor_uw {_series(plain)}; Censor_w {_series(weighted)}; "
        f"Weighted-e {_series(dropped)}. Censor_w's own counts ({_series(printed)} in the paper) could not be "
        "matched: its weights must carry a scale and shift that the paper doesn't name. With weights as it defines "
        "them fewer are.",
        verdict=_judged(
            [
                _all_below(weighted, plain),
                _all_below(dropped, weighted),
                *(_rising(each) for each in (dropped, weighted, plain)),
            ]
        ),
    )


def _rising(values: Sequence[float]) -> bool:
    return _all_below(values[:-1], values[1:])


def _guarantee(seen: Seen) -> Finding:
    return Finding(
        claim="(3, 4.2) Censor_uw and Censor_w are ϵ-differentially private, with one record replaced.",
        found="They aren't. Terms censored at ±ϵ / 2 bound the posterior's ratio by 2 ϵ, and a table exists that "
        "attains it: Censor_uw spends 2 ϵ. Censor_w's weights come from a fit to all records, so that one record "
        "moves the weights of all others: no finite ϵ is shown. Bounds of one table at 1,000 draws say nothing of "
        "either.",
        verdict=FAILS,
    )


def _weighted_first(seen: Seen) -> Finding:
    others = (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH)
    better = [
        low < min(seen.at(row_of(form, epsilon), column) for form in others)
        for column in UTILITY[:2]
        for epsilon, low in zip(seen.claimed, seen.each(WEIGHTED, column), strict=True)
    ]
    figures = [seen.at(WEIGHTED, column) for column in UTILITY[:2]]
    return Finding(
        claim="(4.3) Weighted has the lowest max-ECDF and avg-ECDF of all synthesizers.",
        found=f"Means {_series(figures)}, the lowest in {sum(better)} of {len(better)} comparisons over ϵ and both "
        "measures. The unweighted posterior, which the paper leaves out: "
        f"{_series(seen.at(UNWEIGHTED, c) for c in UTILITY[:2])}.",
        verdict=_judged(better),
    )


def _censor_w(seen: Seen) -> Finding:
    others = (WEIGHTED_E, CENSOR_UW, PH)
    better = [
        low < min(seen.at(row_of(form, epsilon), column) for form in others)
        for column in UTILITY[:2]
        for epsilon, low in zip(seen.claimed, seen.each(CENSOR_W, column), strict=True)
    ]
    values = {form: seen.each(form, UTILITY[0]) for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)}
    text = "; ".join(f"{form} {_series(each)}" for form, each in values.items())
    return Finding(
        claim="(4.3) Of the others Censor_w has the lowest max-ECDF at every ϵ, and the lowest avg-ECDF at 4 and 3.",
        found=f"Mean max-ECDF at ϵ = {', '.join(seen.claimed)}: {text}. Lowest in {sum(better)} of {len(better)} "
        "comparisons over ϵ and both measures.",
        verdict=_judged(better),
    )


def _deteriorates(seen: Seen) -> Finding:
    values = {form: seen.each(form, UTILITY[0]) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH)}
    text = "; ".join(f"{form} {_series(each)}" for form, each in values.items())
    return Finding(
        claim="(4.3) All but Weighted lose utility as ϵ decreases, Weighted-e rapidly.",
        found=f"Mean max-ECDF at ϵ = {', '.join(seen.claimed)}: {text}.",
        verdict=_judged([_rising(each) for each in values.values()]),
    )


def _below_unweighted(seen: Seen) -> Finding:
    plain, weighted = (seen.each(form, UTILITY[0]) for form in (CENSOR_UW, CENSOR_W))
    return Finding(
        claim="(4.3) Censor_uw is consistently worse than Censor_w.",
        found=f"Mean max-ECDF at ϵ = {', '.join(seen.claimed)}: {_series(plain)} and {_series(weighted)}.",
        verdict=_judged([b < a for a, b in zip(plain, weighted, strict=True)]),
    )


def _histogram(seen: Seen) -> Finding:
    others = (WEIGHTED, WEIGHTED_E, CENSOR_W, CENSOR_UW)
    values = {column: seen.each(PH, column) for column in UTILITY[:2]}
    worst = {
        column: [seen.at(row_of(PH, e), column) > _at(seen, form, e, column) for form in others for e in seen.claimed]
        for column in UTILITY[:2]
    }
    return Finding(
        claim="(4.3) PH clearly performs worse than almost all proposed Bayesian synthesizers.",
        found=f"PH with 45 bins at ϵ = {', '.join(seen.claimed)}: mean max-ECDF {_series(values['max-ECDF'])}, "
        f"avg-ECDF {_series(values['avg-ECDF'])}. Worse than the four others in {sum(worst['max-ECDF'])} and "
        f"{sum(worst['avg-ECDF'])} of {len(worst['max-ECDF'])} comparisons. Its max-ECDF comes from the first bin, "
        "inside which records lie evenly. Its ϵ is true, theirs isn't.",
        verdict=_judged([sum(each) > 0.75 * len(each) for each in worst.values()]),
    )


def _at(seen: Seen, form: str, epsilon: str, column: str) -> float:
    return seen.at(row_of(form, "" if form == WEIGHTED else epsilon), column)


def _statistics(seen: Seen) -> Finding:
    forms = (WEIGHTED, CENSOR_W, CENSOR_UW, WEIGHTED_E)
    off = {form: np.array([seen.off(form, column) for column in STATISTICS]) for form in forms}
    median = {form: seen.off(form, "median") for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)}
    best_median = [min(values) == values[0] for values in zip(*median.values(), strict=True)]
    worse = float((off[CENSOR_UW] > off[CENSOR_W]).mean())
    best = float((off[WEIGHTED] <= np.min([off[form] for form in forms], axis=0)).mean())
    return Finding(
        claim="(4.3) Weighted is best for mean, median and quantiles, Censor_w next for the median; Censor_uw is "
        "worse than Censor_w in all.",
        found=f"Distance of the mean statistic from fresh samples': Weighted is nearest in {number(100 * best)} % "
        f"of the cases (four statistics, ϵ = {', '.join(seen.claimed)}); Censor_uw is farther off than Censor_w in "
        f"{number(100 * worse)} %; Censor_w has the nearest median of the rest at {sum(best_median)} of "
        f"{len(best_median)} ϵ.",
        verdict=_judged([best == 1, worse == 1, all(best_median)]),
    )


def _downscaling(seen: Seen) -> Finding:
    def pair(form: str, column: str) -> tuple[float, float]:
        epsilon = "" if form == WEIGHTED else DOWNSCALED_AT
        return seen.at(row_of(form, epsilon), column), seen.at(row_of(form, epsilon, SCALE), column)

    forms = (WEIGHTED, WEIGHTED_E, CENSOR_W)
    bounds, spreads, average = ([pair(form, name) for form in forms] for name in (BOUND, BOUNDS[1], "avg-ECDF"))
    counts = [pair(form, MEAN_COUNT) for form in (WEIGHTED_E, CENSOR_W)]
    text = "; ".join(
        f"{form} {number(b[0])} to {number(b[1])}, {number(a[0])} to {number(a[1])}"
        for form, b, a in zip(forms, bounds, average, strict=True)
    )
    fewer = "; ".join(f"{form} {number(a)} to {number(b)}" for form, (a, b) in zip(forms[1:], counts, strict=True))
    return Finding(
        claim="(4.4) Down-scaling (c1 = 0.8, ϵ = 4) gives lower, more concentrated bounds, fewer censored records "
        "and better utility.",
        found=f"Mean bound and mean avg-ECDF: {text}. Counts: {fewer}.",
        verdict=_judged([b < a for pairs in (bounds, spreads, average, counts) for a, b in pairs]),
    )


def _targets(seen: Seen) -> list[Finding]:
    """Return how the default fares against our own targets, at each epsilon that has one."""
    staged = {epsilon: seen.at(sound_row("staged", epsilon), UTILITY[0]) for epsilon in TARGETS}
    wanted = [epsilon for epsilon, value in staged.items() if not np.isnan(value)]
    if not wanted:
        return []
    found = {
        centre: [seen.at(sound_row(centre, e), UTILITY[0]) for e in wanted]
        for centre in ("staged", "zero", "Beta(0.6, 2)")
    }
    limits = [TARGETS[epsilon] for epsilon in wanted]
    text = "; ".join(f"centre {centre} {_series(values)}" for centre, values in found.items())
    references = _series(seen.at(row, UTILITY[0]) for row in (FRESH, UNWEIGHTED))
    return [
        Finding(
            claim="(Ours) The default, centred on a private reference, has a mean max-ECDF of at most "
            f"{_series(limits)} at true ϵ = {', '.join(wanted)}.",
            found=f"{text[0].upper()}{text[1:]}; PH {_series(seen.at(row_of(PH, e), UTILITY[0]) for e in wanted)}. "
            f"A fresh sample and the posterior without privacy have {references}.",
            verdict=_judged([a <= b for a, b in zip(found["staged"], limits, strict=True)]),
        )
    ]
