"""The section on what the synthetic sets kept of the table: what was compared at release, and an evaluation."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pdips.evaluation.document import SUMMARIES, AnalysisComparison, EvaluationDocument, Measure, Pictures
from pdips.release.documents import Comparison, Moments, PrivacyDocument, RunDocument, mean
from pdips.report import figures
from pdips.report.formats import number, percent
from pdips.report.verdict import Check, Level, Verdict, graded, summed, worst, worst_of

NEAR_TIMES, FAR_TIMES = 2.0, 5.0  # Times the reference
NEAR_MARGINS, FAR_MARGINS = 0.01, 0.05
NEAR_PAIR, FAR_PAIR = (3.0, 0.1), (FAR_TIMES, 0.3)
"""Of the furthest pair: times a resample's, and in any case; the mean over many pairs can't show that few are lost."""
NEAR_ONE_WAY, FAR_ONE_WAY = 0.05, 0.2  # Total variation distance of a column
NEAR_TIMES_ONE_WAY = 4.0  # Times a resample's mean, which is beyond it once in 700 times even with two levels
NEAR_SHIFT, FAR_SHIFT = 0.2, 0.5  # Difference of means, in standard deviations of the table
FAR_MEANS, LEAST_SHIFT = 2.0, 0.25  # Ratio of means of a nonnegative column, if standard deviations apart too
NEAR_RATIO, FAR_RATIO = 1.25, 2.0  # Ratio of standard deviations, either way round
NEAR_SPAN = 0.03  # Of the way from the table's 1st to its 99th percentile, for means and standard deviations
NEAR_ERRORS, FAR_ERRORS = 3.0, 5.0  # Standard errors of a resample that means and deviations may be off by in any case
MARGINS = ("TVD of 2-way margins", "TVD of 1-way margins")
SPECKS = "SPECKS"
ECDF = "max-ECDF"
_, DIFFERENCE, _, COVERAGE = SUMMARIES
NEAR_SPECKS, FAR_SPECKS = 0.1, 0.3
NEAR_DIFFERENCE, FAR_DIFFERENCE = 2.0, 10.0  # Standard errors of the table's estimates
NEAR_COVERAGE, FAR_COVERAGE = 0.8, 0.5
MOST_DENSITIES = 24
RULES = {
    "single columns": f"distance at most {NEAR_TIMES_ONE_WAY:g} times a resample's or {NEAR_ONE_WAY:g}; failed above "
    f"{FAR_TIMES:g} times and {FAR_ONE_WAY:g}",
    "pairs of columns": f"mean distance at most {NEAR_TIMES:g} times a resample's or {NEAR_MARGINS:g}; failed above "
    f"{FAR_TIMES:g} times and {FAR_MARGINS:g}",
    "means": f"at most {NEAR_SHIFT:g} sd of the table off; failed above {FAR_SHIFT:g}, or {FAR_MEANS:g} times too "
    "large or small",
    "standard deviations": f"at most {NEAR_RATIO:g} times too large or small; failed above {FAR_RATIO:g}",
}
SPAN = f", and {100 * NEAR_SPAN:g} % of the way from the 1st to the 99th percentile, or as two samples differ;"
RELATIVE = "Near means near what a resample of the table scores, not fit for every use."
type Limits = tuple[float, float]
"""So many times a reference, and so much in any case."""


class BoardFinding(NamedTuple):
    """How near one column is, or all pairs of them, and what is said of it."""

    level: Level
    column: str
    shown: str


NEARNESS: dict[Level, str] = {"good": "near", "watch": "some way off", "bad": "far off"}


def section(confidential: Path, release: PrivacyDocument, run: RunDocument) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it: see :func:`checks` and :func:`evaluation_verdict`.

    An evaluation whose release differs in mechanism, epsilon, kind or number of sets isn't shown: ``stale`` names what
    differs.
    """
    comparison = run.comparison
    margins, pairs = comparison.margins(), comparison.two_way.pairs()
    inside = EvaluationDocument.found(confidential)
    stale = [] if inside is None else inside.release.differs(release)
    evaluation = None if stale else inside
    specific = None if evaluation is None else evaluation.specific
    found = checks(release, comparison)
    of_evaluation = evaluation_verdict(evaluation)
    if stale:
        differs = f"its {' and '.join(stale)} differ{'s' if len(stale) == 1 else ''}"
        line = f"{EvaluationDocument.file} is of another release ({differs}) and isn't shown: "
        of_evaluation = Verdict(level="open", line=f"{line}pdips evaluate TABLE DIR makes it anew.")
    return {
        "verdict": verdict(found, of_evaluation),
        "said": of_evaluation.line,
        "checks": found,
        "judged": judged(release, comparison),
        "analysis_level": next((level for level, _ in _of_analysis(specific)), "open"),
        "margins": margins,
        "pairs": pairs,
        "one_way_mean": mean(margin.distance for margin in margins),
        "two_way_mean": mean(distance for distance, _, _ in pairs),
        "panels": [figures.one_way(margin, f"margin {i}") for i, margin in enumerate(margins)],
        "heat": figures.two_way(comparison.two_way, "pairs") if pairs else None,
        "most_rows": figures.MOST_ROWS,
        "evaluation": evaluation,
        "stale": stale,
        **({} if evaluation is None else _evaluated(evaluation)),
    }


def verdict(found: Sequence[Check], evaluation: Verdict) -> Verdict:
    """Return the worse of what was found at release and by an evaluation; without one, the former, and why."""
    if not found:
        return evaluation
    at_release = summed(found)
    if evaluation.level == "open":
        return replace(
            at_release, line=f"{at_release.line} {evaluation.line}", brief=at_release.brief or at_release.line
        )
    return worst([at_release, evaluation], at_release)


def judged(release: PrivacyDocument, comparison: Comparison) -> dict[str, list[BoardFinding]]:
    """Judge what was compared at release, of columns that aren't public: by the rule, a level for each column."""
    schema, two_way = release.table_schema, comparison.two_way
    singles = [
        BoardFinding(
            _against(one.distance, one.reference, (NEAR_TIMES_ONE_WAY, NEAR_ONE_WAY), (FAR_TIMES, FAR_ONE_WAY)),
            one.column,
            f"{one.column} {number(one.distance)} (a resample {number(one.reference)})",
        )
        for one in comparison.margins()
        if one.reference is not None and one.column not in schema.public_columns
    ]
    pairs, means, spreads = [], [], []
    value, reference = mean(distance for distance, _, _ in two_way.pairs()), two_way.reference_mean()
    if value is not None and reference is not None:
        level = _against(value, reference, (NEAR_TIMES, NEAR_MARGINS), (FAR_TIMES, FAR_MARGINS))
        shown, (most, a, b) = f"{number(value)} (a resample {number(reference)})", two_way.pairs()[0]
        own = two_way.reference[two_way.columns.index(a)][two_way.columns.index(b)]
        both = worst_of([level, _against(most, own, NEAR_PAIR, FAR_PAIR)])
        if both != level:
            asked = f"a resample {number(own)}; at most {NEAR_PAIR[0]:g} times that or {NEAR_PAIR[1]:g} is near"
            shown = f"{shown}, furthest {a} and {b} {number(most)} ({asked})"
        pairs.append(BoardFinding(both, "", shown))
    for one in comparison.numeric:
        if one.column in schema.columns:
            shown = f"(table {number(one.mean)}, {number(one.shift)} sd off)"
            level = _of_means(one, lower=float(schema.columns[one.column].lower or 0))
            means.append(BoardFinding(level, one.column, f"{one.column} {number(one.synthetic_mean)} {shown}"))
            shown = f"{one.column} {number(one.synthetic_sd)} (table {number(one.sd)})"
            spreads.append(BoardFinding(_of_spreads(one), one.column, shown))
    return {"single columns": singles, "pairs of columns": pairs, "means": means, "standard deviations": spreads}


def checks(release: PrivacyDocument, comparison: Comparison) -> list[Check]:
    """Sum up what :func:`judged` finds, by the rules of ``docs/report.md``.

    A run of an earlier version, which compared less, is judged by what it compared.
    """
    spanned = ("means", "standard deviations") if any(one.span is not None for one in comparison.numeric) else ()
    return [
        Check(
            name,
            "; ".join(one.shown for one in each if one.level != "good") or "near those of the table",
            RULES[name].replace(";", SPAN, int(name in spanned)),
            worst_of(one.level for one in each),
        )
        for name, each in judged(release, comparison).items()
        if each
    ]


def _against(value: float | None, reference: float | None, near: Limits, far: Limits) -> Level:
    """Return how near a figure is: below so many times its reference, or below so much in any case."""
    if value is None:
        return "bad"
    (near_times, near_value), (far_times, far_value), known = near, far, reference or 0.0
    return graded(value <= max(near_times * known, near_value), bad=value > max(far_times * known, far_value))


def _of_means(one: Moments, lower: float) -> Level:
    if one.shift is None or one.synthetic_mean is None:
        return "bad"
    if one.shift <= max(min(NEAR_SHIFT, _bearable(one, one.shift_error)), NEAR_ERRORS * one.shift_error):
        return "good"
    if one.shift <= FAR_ERRORS * one.shift_error:
        return "watch"
    least, most = sorted([one.mean, one.synthetic_mean])
    times = lower >= 0 and one.shift > LEAST_SHIFT and most > FAR_MEANS * least
    return "bad" if one.shift > FAR_SHIFT or times else "watch"


def _of_spreads(one: Moments) -> Level:
    if one.synthetic_sd is None:
        return "bad"
    if one.ratio is None:  # all values of the table are equal: means say how far off those of the sets are
        return "good"
    times = max(one.ratio, 1 / one.ratio) if one.ratio else float("inf")
    near = times <= max(min(NEAR_RATIO, 1 + _bearable(one, one.ratio_error)), 1 + NEAR_ERRORS * one.ratio_error)
    return graded(near, bad=times > max(FAR_RATIO, 1 + FAR_ERRORS * one.ratio_error))


def _bearable(one: Moments, error: float) -> float:
    """Return by how much a mean or a deviation may be off: by a part of the span, or as two samples of one law are."""
    return float("inf") if one.span is None else max(NEAR_SPAN * one.span, NEAR_ERRORS * math.sqrt(2) * error)


def evaluation_verdict(found: EvaluationDocument | None) -> Verdict:
    """Judge the utility of the sets by an evaluation, by the rules of ``docs/evaluate.md``.

    Absolute limits are there because the reference shrinks with the number of records: in a large table a difference
    that hardly anybody would notice is many times the reference.
    """
    if found is None:
        return Verdict(level="open", line="No evaluation was made: pdips evaluate TABLE DIR adds one.")
    measure = next((one for name in MARGINS if (one := found.measure(name)) is not None), None)
    furthest = found.measure(f"{MARGINS[0]}, largest")
    what = "two-way margins are" if measure is not None and measure.name == MARGINS[0] else "one-way margins are"
    findings = [
        *_of_measure(measure, what, (NEAR_TIMES, NEAR_MARGINS), (FAR_TIMES, FAR_MARGINS)),
        *(one for one in _of_measure(furthest, "the furthest pair is", NEAR_PAIR, FAR_PAIR) if one[0] != "good"),
        *_of_measure(found.measure(SPECKS), "SPECKS is", (NEAR_TIMES, NEAR_SPECKS), (FAR_TIMES, FAR_SPECKS)),
        *_of_analysis(found.specific),
    ]
    if not findings:
        return Verdict(level="open", line="The evaluation could work out neither margins nor SPECKS nor an analysis.")
    said = "; ".join(text for _, text in findings)
    brief = "; ".join(text.split(" (")[0] for level, text in findings if level != "good") or "evaluation: near"
    level = worst_of(level for level, _ in findings)
    return Verdict(level=level, line=f"{said[0].upper()}{said[1:]}. {RELATIVE}", brief=f"{brief[0].upper()}{brief[1:]}")


def _of_measure(measure: Measure | None, what: str, near: Limits, far: Limits) -> list[tuple[Level, str]]:
    if measure is None or measure.mean is None:
        return []
    level = _against(measure.mean, measure.reference, near, far)
    return [(level, f"{what} {NEARNESS[level]} ({number(measure.mean)}, a resample {number(measure.reference)})")]


def _of_analysis(found: AnalysisComparison | None) -> list[tuple[Level, str]]:
    off, inside = (None, None) if found is None else (found.summary.get(DIFFERENCE), found.summary.get(COVERAGE))
    if inside is None:
        return []
    level = graded(
        off is not None and off <= NEAR_DIFFERENCE and inside >= NEAR_COVERAGE,
        bad=((off is None or off > NEAR_DIFFERENCE) and inside < FAR_COVERAGE) or (off or 0) > FAR_DIFFERENCE,
    )
    shown = (
        f"(estimates {number(off)} standard errors off on average, {percent(inside)} of the table's inside the "
        "intervals of the sets)"
    )
    return [(level, f"the analysis is {NEARNESS[level]} {shown}")]


def _evaluated(found: EvaluationDocument) -> dict[str, Any]:
    """Return what the template shows of an evaluation."""
    measure = found.measure(ECDF)
    columns = [] if measure is None else measure.detail.by_column.items()
    analysis = found.specific
    return {
        "by_column": sorted(columns, key=lambda item: -(item[1].largest or 0)),
        "pictures": None if found.pictures is None else _pictures(found.pictures),
        "forest": None if analysis is None or not analysis.told else figures.forest(analysis, "forest"),
        "readings": SUMMARIES,
        "most_marks": figures.MOST_MARKS,
        "most_coefficients": figures.MOST_COEFFICIENTS,
    }


def _pictures(found: Pictures) -> dict[str, Any]:
    densities = sorted(found.densities, key=lambda one: -(one.distance or 0))[:MOST_DENSITIES]
    scores = found.propensity
    return {
        "propensity": scores,
        "scores": None if scores is None else figures.propensity(scores, "propensity"),
        "distance": None if scores is None else mean(scores.distance),
        "densities": [(one, figures.density(one, f"density {i}")) for i, one in enumerate(densities)],
        "n_densities": len(found.densities),
        "pairs": [(one, figures.difference(one, f"difference {i}")) for i, one in enumerate(found.pairs)],
    }
