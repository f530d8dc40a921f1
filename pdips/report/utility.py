"""The section on what the synthetic sets kept of the table: margins as the run found them, and an evaluation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pdips.release.documents import Comparison, Margin, Moments, PaidDocument, PrivacyDocument, RunDocument, mean
from pdips.report import evaluated, pictures
from pdips.report.evaluated import FAR_MARGINS, FAR_TIMES, NEAR_MARGINS, NEAR_TIMES
from pdips.report.formats import number
from pdips.report.verdicts import Check, Level, Verdict, summed, worst

NEAR_ONE_WAY, FAR_ONE_WAY = 0.05, 0.2
"""Total variation distance of a column."""
NEAR_TIMES_ONE_WAY = 4.0
"""Times the mean of a resample, which itself goes beyond it once in 700 times even where a column has two levels."""
NEAR_SHIFT, FAR_SHIFT = 0.2, 0.5
"""Difference of means, in standard deviations of the table."""
FAR_MEANS, LEAST_SHIFT = 2.0, 0.25
"""Ratio of means of a column that can't be negative, where they also differ by so many standard deviations."""
NEAR_RATIO, FAR_RATIO = 1.25, 2.0
"""Ratio of standard deviations, either way round."""
NEAR_ERRORS, FAR_ERRORS = 3.0, 5.0
"""Standard errors of a resample by which means and standard deviations may be off in any case."""


def section(
    confidential: Path, facts: PrivacyDocument, run: RunDocument, paid: PaidDocument | None = None
) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it: see :func:`checks` and :func:`evaluated.verdict`.

    Raises
    ------
    InputError
        If the inside ``evaluation.json`` is damaged.
    """
    comparison = run.comparison
    margins, pairs = comparison.margins(), comparison.two_way.pairs()
    shown, found = evaluated.section(confidential, facts, paid), checks(facts, comparison)
    return {
        **shown,
        "verdict": verdict(found, shown["verdict"]),
        "checks": found,
        "l1": comparison.l1,
        "two_way": comparison.two_way,
        "margins": margins,
        "pairs": pairs,
        "numeric": comparison.numeric,
        "one_way_mean": mean(margin.distance for margin in margins),
        "two_way_mean": mean(distance for distance, _, _ in pairs),
        "two_way_reference": comparison.two_way.reference_mean(),
        "panels": [Markup(pictures.one_way(margin, f"margin {i}")) for i, margin in enumerate(margins)],
        "heat": Markup(pictures.two_way(comparison.two_way, "pairs")) if pairs else None,
        "most_rows": pictures.MOST_ROWS,
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


def checks(facts: PrivacyDocument, comparison: Comparison) -> list[Check]:
    """Judge what was compared at release, of columns that aren't public.

    - *Single columns*, by the total variation distance of each from the table: **good** at up to
      ``NEAR_TIMES_ONE_WAY`` times what a resample of the table has, or up to ``NEAR_ONE_WAY``; **bad** above both
      ``FAR_TIMES`` times that and ``FAR_ONE_WAY``.
    - *Pairs of columns*, by the mean distance: **good** at up to ``NEAR_TIMES`` times that of a resample, or up to
      ``NEAR_MARGINS``; **bad** above both ``FAR_TIMES`` times that and ``FAR_MARGINS``, as in an evaluation.
    - *Means*: **good** at up to ``NEAR_SHIFT`` standard deviations of the table; **bad** above ``FAR_SHIFT``, or above
      ``LEAST_SHIFT`` where the column can't be negative and one mean is more than ``FAR_MEANS`` times the other.
    - *Standard deviations*: **good** at up to ``NEAR_RATIO`` times that of the table, or its inverse; **bad** beyond
      ``FAR_RATIO``.

    What is off by no more than ``NEAR_ERRORS`` standard errors of a resample is good, by no more than ``FAR_ERRORS``
    not bad. What isn't bad or good is **watch**. Sets without records, or without any known value of a column that the
    table has values of, are bad. A run of an earlier version, which compared less, is judged by what it compared.
    """
    return [*_one_way(facts, comparison), *_pairs(comparison), *_numeric(facts, comparison)]


def _one_way(facts: PrivacyDocument, comparison: Comparison) -> list[Check]:
    public = facts.table_schema.public_columns
    known = [one for one in comparison.margins() if one.reference is not None and one.column not in public]
    levels = {one.column: _of_distance(one) for one in known}
    off = [
        f"{one.column} {number(one.distance)} (a resample {number(one.reference)})"
        for one in known
        if levels[one.column] != "good"
    ]
    rule = (
        f"distance at most {NEAR_TIMES_ONE_WAY:g} times a resample's or {NEAR_ONE_WAY:g}; failed above {FAR_TIMES:g} "
        f"times and {FAR_ONE_WAY:g}"
    )
    return _check("single columns", off, rule, list(levels.values()))


def _of_distance(one: Margin) -> Level:
    reference = one.reference or 0.0
    if one.distance is None:
        return "bad"
    if one.distance <= max(NEAR_TIMES_ONE_WAY * reference, NEAR_ONE_WAY):
        return "good"
    return "bad" if one.distance > max(FAR_TIMES * reference, FAR_ONE_WAY) else "watch"


def _pairs(comparison: Comparison) -> list[Check]:
    two_way = comparison.two_way
    reference, value = two_way.reference_mean(), mean(distance for distance, _, _ in two_way.pairs())
    if reference is None or value is None:
        return []
    far = value > max(FAR_TIMES * reference, FAR_MARGINS)
    level: Level = "good" if value <= max(NEAR_TIMES * reference, NEAR_MARGINS) else "bad" if far else "watch"
    rule = f"mean distance at most {NEAR_TIMES:g} times a resample's or {NEAR_MARGINS:g}; failed above {FAR_TIMES:g}"
    off = [] if level == "good" else [f"{number(value)} (a resample {number(reference)})"]
    return _check("pairs of columns", off, f"{rule} times and {FAR_MARGINS:g}", [level])


def _numeric(facts: PrivacyDocument, comparison: Comparison) -> list[Check]:
    columns = facts.table_schema.columns
    found = [one for one in comparison.numeric if one.column in columns]
    means = {one.column: _of_means(one, lower=float(columns[one.column].lower or 0)) for one in found}
    spreads = {one.column: _of_spreads(one) for one in found}
    shifted = [
        f"{one.column} {number(one.synthetic_mean)} (table {number(one.mean)}, {number(one.shift)} sd off)"
        for one in found
        if means[one.column] != "good"
    ]
    spread = [
        f"{one.column} {number(one.synthetic_sd)} (table {number(one.sd)})"
        for one in found
        if spreads[one.column] != "good"
    ]
    of_means = (
        f"at most {NEAR_SHIFT:g} sd of the table off; failed above {FAR_SHIFT:g}, or {FAR_MEANS:g} times too large or "
        "small"
    )
    of_spreads = f"at most {NEAR_RATIO:g} times too large or small; failed above {FAR_RATIO:g}"
    return [
        *_check("means", shifted, of_means, list(means.values())),
        *_check("standard deviations", spread, of_spreads, list(spreads.values())),
    ]


def _of_means(one: Moments, lower: float) -> Level:
    if one.shift is None or one.synthetic_mean is None:
        return "bad"
    if one.shift <= max(NEAR_SHIFT, NEAR_ERRORS * one.shift_error):
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
    if times <= max(NEAR_RATIO, 1 + NEAR_ERRORS * one.ratio_error):
        return "good"
    return "bad" if times > max(FAR_RATIO, 1 + FAR_ERRORS * one.ratio_error) else "watch"


def _check(name: str, off: Sequence[str], rule: str, levels: Sequence[Level]) -> list[Check]:
    if not levels:
        return []
    level: Level = "bad" if "bad" in levels else "watch" if "watch" in levels else "good"
    return [Check(name=name, found="; ".join(off) or "near those of the table", rule=rule, level=level)]
