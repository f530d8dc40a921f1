"""What the curator's report says of an evaluation: the verdict on utility, tables and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from pdips.release.documents import PaidDocument, PrivacyDocument, mean
from pdips.report import evaluation_pictures as drawing
from pdips.report.evaluation_facts import (
    FILE,
    Analysed,
    Evaluation,
    MeasureFacts,
    Pictures,
    read_evaluation,
)
from pdips.report.formats import number, percent
from pdips.report.verdicts import Verdict

Nearness = Literal["near", "between", "far"]

MARGINS = ("TVD of 2-way margins", "TVD of 1-way margins")
SPECKS = "SPECKS"
ECDF = "max-ECDF"
DIFFERENCE, COVERAGE = "standardised difference", "coverage"
NEAR_TIMES, FAR_TIMES = 2.0, 5.0
"""Times the reference."""
NEAR_MARGINS, FAR_MARGINS = 0.01, 0.05
NEAR_SPECKS, FAR_SPECKS = 0.1, 0.3
NEAR_DIFFERENCE = 2.0
"""Standard errors of the table's estimates."""
NEAR_COVERAGE, FAR_COVERAGE = 0.8, 0.5
MOST_DENSITIES = 24
READINGS = {
    "overlap of intervals": "1 equal, 0 disjoint",
    DIFFERENCE: "0 equal; in standard errors of the table's",
    "same sign": "share of coefficients",
    COVERAGE: "share of the table's estimates inside the sets' intervals",
}
RELATIVE = "Near means near what a resample of the table scores, not fit for every use."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the verdict goes by."""

    nearness: Nearness
    words: str


def section(confidential: Path, facts: PrivacyDocument, paid: PaidDocument | None) -> dict[str, Any]:
    """Return what the report shows of an evaluation, inside and paid, and the verdict on utility.

    An evaluation whose release differs in mechanism, epsilon, kind or number of sets isn't shown: ``stale`` names what
    differs.

    Raises
    ------
    InputError
        If a file is damaged.
    """
    inside = read_evaluation(confidential)
    stale = [] if inside is None else inside.release.differs(facts)
    shown = None if stale else inside
    return {
        "verdict": _stale_verdict(stale) if stale else verdict(shown),
        "evaluation": shown,
        "stale": stale,
        "paid": paid,
        "rows": [] if shown is None else [_row(measure) for measure in shown.general],
        "by_column": [] if shown is None else _by_column(shown),
        "pictures": None if shown is None or shown.pictures is None else _pictures(shown.pictures),
        "forest": _forest(None if shown is None else shown.specific),
        "readings": READINGS,
        "most_marks": drawing.MOST_MARKS,
        "most_coefficients": drawing.MOST_COEFFICIENTS,
    }


def verdict(found: Evaluation | None) -> Verdict:
    """Judge the utility of the sets by an evaluation.

    Each of three things is near, far or in between; what wasn't worked out doesn't count.

    - *Margins* (two-way; one-way if there are no pairs), by the mean total variation distance: near at up to 2 times
      the reference or up to 0.01; far above 5 times the reference and above 0.05.
    - *SPECKS*: near at up to 2 times the reference or up to 0.1; far above 5 times the reference and above 0.3.
    - *The analysis*, if there is one: near if the combined estimates are up to 2 standard errors of the table's off on
      average and at least 80 % of the table's estimates lie inside the intervals of the sets; far if they are more off
      and fewer than half lie inside.

    The absolute limits are there because the reference shrinks with the number of records: in a large table a
    difference that hardly anybody would notice is many times the reference. All near: good; one far: bad; else watch.
    Without an evaluation, or with nothing worked out: open. The limits are conventions of this project, not of a paper.
    """
    if found is None:
        return Verdict(level="open", line="No evaluation was made: pdips evaluate TABLE DIR adds one.")
    findings = [one for one in (_margins(found), _specks(found), _analysis(found.specific)) if one is not None]
    if not findings:
        return Verdict(level="open", line="The evaluation could work out neither margins nor SPECKS nor an analysis.")
    reached = {one.nearness for one in findings}
    words = "; ".join(one.words for one in findings)
    line = f"{words[0].upper()}{words[1:]}. {RELATIVE}"
    if "far" in reached:
        return Verdict(level="bad", line=line)
    return Verdict(level="good" if reached == {"near"} else "watch", line=line)


def _stale_verdict(stale: Sequence[str]) -> Verdict:
    what = " and ".join(stale)
    return Verdict(
        level="open",
        line=f"{FILE} is of another release (its {what} differ{'s' if len(stale) == 1 else ''}) and isn't shown: "
        "pdips evaluate TABLE DIR makes it anew.",
    )


def _margins(found: Evaluation) -> Finding | None:
    measure = next((one for name in MARGINS if (one := found.measure(name)) is not None), None)
    what = "two-way margins are" if measure is not None and measure.name == MARGINS[0] else "one-way margins are"
    return _against(measure, what, NEAR_MARGINS, FAR_MARGINS)


def _specks(found: Evaluation) -> Finding | None:
    return _against(found.measure(SPECKS), "SPECKS is", NEAR_SPECKS, FAR_SPECKS)


def _against(measure: MeasureFacts | None, what: str, near: float, far: float) -> Finding | None:
    if measure is None or measure.mean is None:
        return None
    reference, value = measure.reference or 0.0, measure.mean
    nearness: Nearness = "between"
    if value <= NEAR_TIMES * reference or value <= near:
        nearness = "near"
    elif value > FAR_TIMES * reference and value > far:
        nearness = "far"
    figures = f"{number(value)}, a resample {number(measure.reference)}"
    return Finding(nearness=nearness, words=f"{what} {_place(nearness)} ({figures})")


def _analysis(found: Analysed | None) -> Finding | None:
    if found is None:
        return None
    off, inside = found.summary.get(DIFFERENCE), found.summary.get(COVERAGE)
    if inside is None:
        return None
    nearness: Nearness = "between"
    if off is not None and off <= NEAR_DIFFERENCE and inside >= NEAR_COVERAGE:
        nearness = "near"
    elif (off is None or off > NEAR_DIFFERENCE) and inside < FAR_COVERAGE:
        nearness = "far"
    words = f"the analysis is {_place(nearness)} (estimates {number(off)} standard errors off on average, "
    return Finding(
        nearness=nearness, words=f"{words}{percent(inside)} of the table's inside the intervals of the sets)"
    )


def _place(nearness: Nearness) -> str:
    return {"near": "near", "between": "some way off", "far": "far off"}[nearness]


def _row(measure: MeasureFacts) -> dict[str, Any]:
    """Return a line of the table of measures."""
    known = measure.known
    return {
        "name": measure.name,
        "weighted": measure.weighted,
        "reason": measure.reason,
        "mean": measure.mean,
        "reference": measure.reference,
        "low": known[0] if known else None,
        "high": known[-1] if known else None,
        "reading": measure.reading,
        "times": measure.times,
        "equal": measure.mean == measure.best,
    }


def _by_column(found: Evaluation) -> list[tuple[str, float | None, float | None]]:
    measure = found.measure(ECDF)
    columns = [] if measure is None else measure.detail.by_column.items()
    rows = [(name, one.largest, one.average) for name, one in columns]
    return sorted(rows, key=lambda row: -(row[1] or 0))


def _pictures(found: Pictures) -> dict[str, Any]:
    densities = sorted(found.densities, key=lambda one: -(one.distance or 0))[:MOST_DENSITIES]
    return {
        "propensity": found.propensity,
        "scores": _drawn(drawing.propensity, found.propensity, "propensity") if found.propensity else None,
        "densities": [(one, _drawn(drawing.density, one, f"density {i}")) for i, one in enumerate(densities)],
        "distance": mean(found.propensity.distance) if found.propensity else None,
        "n_densities": len(found.densities),
        "pairs": [(one, _drawn(drawing.difference, one, f"difference {i}")) for i, one in enumerate(found.pairs)],
    }


def _forest(found: Analysed | None) -> Markup | None:
    return _drawn(drawing.forest, found, "forest") if found is not None and found.told else None


def _drawn[T](draw: Callable[[T, str], str], found: T, key: str) -> Markup:
    return Markup(draw(found, key))
