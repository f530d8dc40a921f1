"""The section on what the synthetic sets kept of the table: what was compared at
release, and an evaluation.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pdips.evaluation.document import (
    SUMMARIES,
    AnalysisComparison,
    EvaluationDocument,
    Measure,
)
from pdips.release.documents import (
    Comparison,
    Margin,
    Moments,
    PrivacyDocument,
    RunDocument,
    TwoWay,
    mean,
)
from pdips.report import figures
from pdips.report.formats import number, percent
from pdips.report.verdict import Check, Level, Verdict, graded, summed, worst, worst_of

# Times the reference
NEAR_TIMES = 2.0
FAR_TIMES = 5.0
NEAR_MARGINS = 0.01
FAR_MARGINS = 0.05
NEAR_PAIR = (3.0, 0.1)
FAR_PAIR = (FAR_TIMES, 0.3)
"""Of the furthest pair: times a resample's, and in any case; the mean over many pairs
can't show that few are lost.
"""
# Total variation distance of a column
NEAR_ONE_WAY = 0.05
FAR_ONE_WAY = 0.2
# Times a resample's mean, which is beyond it once in 700 times even with two levels
NEAR_TIMES_ONE_WAY = 4.0
# Difference of means, in standard deviations of the table
NEAR_SHIFT = 0.2
FAR_SHIFT = 0.5
# Ratio of means of a nonnegative column, if standard deviations apart too
FAR_MEANS = 2.0
LEAST_SHIFT = 0.25
# Ratio of standard deviations, either way round
NEAR_RATIO = 1.25
FAR_RATIO = 2.0
# Of the way from the table's 1st to its 99th percentile, for means and standard
# deviations
NEAR_SPAN = 0.03
# Standard errors of a resample that means and deviations may be off by in any case
NEAR_ERRORS = 3.0
FAR_ERRORS = 5.0
MARGINS = ("TVD of 2-way margins", "TVD of 1-way margins")
SPECKS = "SPECKS"
ECDF = "max-ECDF"
_, DIFFERENCE, _, COVERAGE = SUMMARIES
NEAR_SPECKS = 0.1
FAR_SPECKS = 0.3
# Standard errors of the table's estimates
NEAR_DIFFERENCE = 2.0
FAR_DIFFERENCE = 10.0
NEAR_COVERAGE = 0.8
FAR_COVERAGE = 0.5
MOST_DENSITIES = 24
SPAN = (
    f"{100 * NEAR_SPAN:g} % of the way from the 1st to the 99th percentile, "
    f"or as two samples differ"
)
RULES = {
    "single columns": f"distance at most {NEAR_TIMES_ONE_WAY:g} times a resample's "
    f"or {NEAR_ONE_WAY:g}; failed above "
    f"{FAR_TIMES:g} times and {FAR_ONE_WAY:g}",
    "pairs of columns": f"mean distance at most {NEAR_TIMES:g} times a resample's or "
    f"{NEAR_MARGINS:g}; failed above "
    f"{FAR_TIMES:g} times and {FAR_MARGINS:g}",
    "means": f"at most {NEAR_SHIFT:g} sd of the table off, and {SPAN}; failed above "
    f"{FAR_SHIFT:g}, or {FAR_MEANS:g} times too large or small",
    "standard deviations": f"at most {NEAR_RATIO:g} times too large or small, and "
    f"{SPAN}; failed above {FAR_RATIO:g}",
}
RELATIVE = "Near means near what a resample of the table scores, not fit for every use."
type Limits = tuple[float, float]
"""So many times a reference, and so much in any case."""


class BoardFinding(NamedTuple):
    """How near one column is, or all pairs of them, and what is said of it."""

    level: Level
    column: str
    shown: str


NEARNESS: dict[Level, str] = {"good": "near", "watch": "some way off", "bad": "far off"}


def section(
    confidential: Path, release: PrivacyDocument, run: RunDocument
) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it: see :func:`checks` and
    :func:`evaluation_verdict`.

    An evaluation whose release differs in mechanism, epsilon, kind or number of sets
    isn't shown: ``stale`` names what differs.
    """
    comparison = run.comparison
    margins = comparison.margins()
    pairs = comparison.two_way.pairs()
    inside = EvaluationDocument.found(confidential)
    stale = [] if inside is None else inside.release.differs(release)
    evaluation = None if stale else inside
    specific = None if evaluation is None else evaluation.specific
    found = checks(release, comparison)
    of_evaluation = evaluation_verdict(evaluation)
    if stale:
        of_evaluation = _of_another_release(stale)
    panels = []
    for i, margin in enumerate(margins):
        panels.append(figures.one_way(margin, f"margin {i}"))
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
        "panels": panels,
        "heat": figures.two_way(comparison.two_way, "pairs") if pairs else None,
        "most_rows": figures.MOST_ROWS,
        "evaluation": evaluation,
        "stale": stale,
        **({} if evaluation is None else _evaluated(evaluation)),
    }


def _of_another_release(differing: Sequence[str]) -> Verdict:
    """Return that an evaluation isn't shown, and what of its release differs."""
    verb = "differs" if len(differing) == 1 else "differ"
    line = (
        f"{EvaluationDocument.file} is of another release (its "
        f"{' and '.join(differing)} {verb}) and isn't shown: pdips evaluate TABLE DIR "
        "makes it anew."
    )
    return Verdict(level="open", line=line)


def verdict(found: Sequence[Check], evaluation: Verdict) -> Verdict:
    """Return the worse of what was found at release and by an evaluation; without one,
    the former, and why.
    """
    if not found:
        return evaluation
    at_release = summed(found)
    if evaluation.level == "open":
        return replace(
            at_release,
            line=f"{at_release.line} {evaluation.line}",
            brief=at_release.brief or at_release.line,
        )
    return worst([at_release, evaluation], at_release)


def judged(
    release: PrivacyDocument, comparison: Comparison
) -> dict[str, list[BoardFinding]]:
    """Judge what was compared at release, of columns that aren't public: by the rule, a
    level for each column.
    """
    schema = release.table_schema
    singles = []
    for margin in comparison.margins():
        if margin.column not in schema.public_columns:
            singles.append(_of_column(margin))
    means = []
    spreads = []
    for moments in comparison.numeric:
        if moments.column in schema.columns:
            lower = float(schema.columns[moments.column].lower or 0)
            means.append(_mean_of(moments, lower))
            spreads.append(_deviation_of(moments))
    return {
        "single columns": singles,
        "pairs of columns": _of_pairs(comparison.two_way),
        "means": means,
        "standard deviations": spreads,
    }


def _of_column(margin: Margin) -> BoardFinding:
    near = (NEAR_TIMES_ONE_WAY, NEAR_ONE_WAY)
    far = (FAR_TIMES, FAR_ONE_WAY)
    level = _against(margin.distance, margin.reference, near, far)
    distance = number(margin.distance)
    shown = f"{margin.column} {distance} (a resample {number(margin.reference)})"
    return BoardFinding(level, margin.column, shown)


def _of_pairs(two_way: TwoWay) -> list[BoardFinding]:
    """Judge the mean over pairs of columns, and the furthest pair."""
    distances = two_way.pairs()
    distance = mean(distance for distance, _, _ in distances)
    reference = two_way.reference_mean()
    if distance is None or reference is None:
        return []
    near = (NEAR_TIMES, NEAR_MARGINS)
    far = (FAR_TIMES, FAR_MARGINS)
    level = _against(distance, reference, near, far)
    shown = f"{number(distance)} (a resample {number(reference)})"
    furthest, first, second = distances[0]
    row = two_way.columns.index(first)
    column = two_way.columns.index(second)
    own = two_way.reference[row][column]
    both = worst_of([level, _against(furthest, own, NEAR_PAIR, FAR_PAIR)])
    if both != level:
        asked = (
            f"a resample {number(own)}; at most {NEAR_PAIR[0]:g} times that "
            f"or {NEAR_PAIR[1]:g} is near"
        )
        shown += f", furthest {first} and {second} {number(furthest)} ({asked})"
    return [BoardFinding(both, "", shown)]


def _mean_of(moments: Moments, lower: float) -> BoardFinding:
    name = moments.column
    off = f"(table {number(moments.mean)}, {number(moments.shift)} sd off)"
    shown = f"{name} {number(moments.synthetic_mean)} {off}"
    return BoardFinding(_of_means(moments, lower), name, shown)


def _deviation_of(moments: Moments) -> BoardFinding:
    name = moments.column
    shown = f"{name} {number(moments.synthetic_sd)} (table {number(moments.sd)})"
    return BoardFinding(_of_spreads(moments), name, shown)


def checks(release: PrivacyDocument, comparison: Comparison) -> list[Check]:
    """Sum up what :func:`judged` finds, by the rules of ``docs/report.md``."""
    found = []
    for name, findings in judged(release, comparison).items():
        if findings:
            off = [finding.shown for finding in findings if finding.level != "good"]
            said = "; ".join(off) or "near those of the table"
            level = worst_of(finding.level for finding in findings)
            found.append(Check(name, said, RULES[name], level))
    return found


def _against(
    value: float | None, reference: float | None, near: Limits, far: Limits
) -> Level:
    """Return how near a figure is: below so many times its reference, or below so much
    in any case.
    """
    if value is None:
        return "bad"
    near_times, near_value = near
    far_times, far_value = far
    known = reference or 0.0
    is_near = value <= max(near_times * known, near_value)
    return graded(is_near, bad=value > max(far_times * known, far_value))


def _of_means(one: Moments, lower: float) -> Level:
    if one.shift is None or one.synthetic_mean is None:
        return "bad"
    bearable = min(NEAR_SHIFT, _bearable(one, one.shift_error))
    if one.shift <= max(bearable, NEAR_ERRORS * one.shift_error):
        return "good"
    if one.shift <= FAR_ERRORS * one.shift_error:
        return "watch"
    least, most = sorted([one.mean, one.synthetic_mean])
    is_multiple = lower >= 0 and most > FAR_MEANS * least
    if one.shift > FAR_SHIFT or (is_multiple and one.shift > LEAST_SHIFT):
        return "bad"
    return "watch"


def _of_spreads(one: Moments) -> Level:
    if one.synthetic_sd is None:
        return "bad"
    # all values of the table are equal: means say how far off those of the sets are
    if one.ratio is None:
        return "good"
    times = max(one.ratio, 1 / one.ratio) if one.ratio else float("inf")
    bearable = min(NEAR_RATIO, 1 + _bearable(one, one.ratio_error))
    is_near = times <= max(bearable, 1 + NEAR_ERRORS * one.ratio_error)
    return graded(is_near, bad=times > max(FAR_RATIO, 1 + FAR_ERRORS * one.ratio_error))


def _bearable(one: Moments, error: float) -> float:
    """Return by how much a mean or a deviation may be off: by a part of the span, or as
    two samples of one law are. Where all values of the table are equal, other limits
    hold alone.
    """
    if one.span is None:
        return float("inf")
    return max(NEAR_SPAN * one.span, NEAR_ERRORS * math.sqrt(2) * error)


def evaluation_verdict(found: EvaluationDocument | None) -> Verdict:
    """Judge the utility of the sets by an evaluation, by the rules of
    ``docs/evaluate.md``.

    Absolute limits are there because the reference shrinks with the number of records:
    in a large table a difference that hardly anybody would notice is many times the
    reference.
    """
    if found is None:
        return Verdict(
            level="open",
            line="No evaluation was made: pdips evaluate TABLE DIR adds one.",
        )
    findings = [*_of_margins(found)]
    specks = found.measure(SPECKS)
    near = (NEAR_TIMES, NEAR_SPECKS)
    findings += _of_measure(specks, "SPECKS is", near, (FAR_TIMES, FAR_SPECKS))
    findings += _of_analysis(found.specific)
    if not findings:
        return Verdict(
            level="open",
            line="The evaluation could work out neither "
            "margins nor SPECKS nor an analysis.",
        )
    said = "; ".join(text for _, text in findings)
    off = [text.split(" (")[0] for level, text in findings if level != "good"]
    brief = "; ".join(off) or "evaluation: near"
    return Verdict(
        level=worst_of(level for level, _ in findings),
        line=f"{said[0].upper()}{said[1:]}. {RELATIVE}",
        brief=f"{brief[0].upper()}{brief[1:]}",
    )


def _of_margins(found: EvaluationDocument) -> Iterator[tuple[Level, str]]:
    """Yield what is said of two-way margins, or else of one-way ones; and of the
    furthest pair, if it isn't near.
    """
    near = (NEAR_TIMES, NEAR_MARGINS)
    far = (FAR_TIMES, FAR_MARGINS)
    for name, what in zip(MARGINS, ("two-way", "one-way"), strict=True):
        measure = found.measure(name)
        if measure is not None:
            yield from _of_measure(measure, f"{what} margins are", near, far)
            break
    furthest = found.measure(f"{MARGINS[0]}, largest")
    for level, text in _of_measure(
        furthest, "the furthest pair is", NEAR_PAIR, FAR_PAIR
    ):
        if level != "good":
            yield level, text


def _of_measure(
    measure: Measure | None, what: str, near: Limits, far: Limits
) -> list[tuple[Level, str]]:
    if measure is None or measure.mean is None:
        return []
    level = _against(measure.mean, measure.reference, near, far)
    shown = f"({number(measure.mean)}, a resample {number(measure.reference)})"
    return [(level, f"{what} {NEARNESS[level]} {shown}")]


def _of_analysis(found: AnalysisComparison | None) -> list[tuple[Level, str]]:
    inside = None if found is None else found.summary.get(COVERAGE)
    if found is None or inside is None:
        return []
    off = found.summary.get(DIFFERENCE)
    are_near = off is not None and off <= NEAR_DIFFERENCE
    are_far = (off or 0) > FAR_DIFFERENCE
    level = graded(
        are_near and inside >= NEAR_COVERAGE,
        bad=are_far or (not are_near and inside < FAR_COVERAGE),
    )
    shown = (
        f"(estimates {number(off)} standard errors off on average, {percent(inside)} "
        f"of the table's inside the intervals of the sets)"
    )
    return [(level, f"the analysis is {NEARNESS[level]} {shown}")]


def _evaluated(found: EvaluationDocument) -> dict[str, Any]:
    """Return what the template shows of an evaluation."""
    measure = found.measure(ECDF)
    columns = [] if measure is None else measure.detail.by_column.items()
    analysis = found.specific
    forest = None
    if analysis is not None and analysis.told:
        forest = figures.forest(analysis, "forest")
    by_distance = sorted(found.pictures.densities, key=lambda one: -(one.distance or 0))
    densities = []
    for i, one in enumerate(by_distance[:MOST_DENSITIES]):
        densities.append((one, figures.density(one, f"density {i}")))
    return {
        "by_column": sorted(columns, key=lambda item: -(item[1].largest or 0)),
        "densities": densities,
        "forest": forest,
        "readings": SUMMARIES,
        "most_coefficients": figures.MOST_COEFFICIENTS,
    }
