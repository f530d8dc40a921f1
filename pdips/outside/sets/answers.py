"""Questions asked of each synthetic set as if it were the table, and combined by the
rule that fits the release.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from pdips.errors import InputError
from pdips.inference.combine import combine
from pdips.inference.rules import Rule, nearest_rule
from pdips.outside.answer import (
    FISHER,
    LOGIT,
    SETS,
    Answer,
    CombinedAnswer,
    OpenScale,
)
from pdips.outside.cells import COUNTS, SHARES, Missing
from pdips.outside.questions import Formula, Question, Summary
from pdips.outside.sets.analyses import Analysis, Family
from pdips.outside.sets.beyond_pairs import beyond_pairs, pairs_alone
from pdips.outside.sets.calibration import calibrated, pair_intervals
from pdips.outside.sets.interval_ends import left_open
from pdips.outside.sets.quantiles import quantiles_of_sets
from pdips.outside.sets.records import SetRecords, basis_of
from pdips.release.opening import PublishedRelease

BY_MODEL = (
    "no noisy count holds these columns together: sets have them go together as their "
    "pairs do, and intervals allow for as much beyond that as other tables had, which "
    "this one may exceed; `pdips answer` would measure it"
)
UNCOUNTED = (
    "two of these columns were not counted together: sets draw how they go together "
    "from what is usual in tables and what the choice of pairs leaves open, and "
    "intervals hold on average over such pairs"
)
BY_INTERVALS = (
    "a number without bins goes with other columns by a few intervals in the sets"
)
DRAWN_TO_0 = (
    "what noise hides of an association is drawn towards none in the sets: where "
    "numbers nearly determine each other, intervals of regressions held in .9 of trials"
)
MOST_MOVED = 2  # sets whose numbers are moved within their intervals


def of_sets(
    public: PublishedRelease,
    asked: Question,
    family: Family,
    missing: Missing,
    weight: str | None = None,
) -> Answer:
    """Return the answer of the synthetic sets, by the rule that fits them.

    Raises
    ------
    InputError
        If there is one set only, or the release's certificate shows that no rule
        holds.
    """
    rule, warning = nearest_rule(public.home)
    schema = public.privacy.table_schema
    columns = [*asked.columns]
    if not columns:
        raise InputError("the number of records isn't asked of sets")
    remarks = [warning] if warning else []
    of_pairs = pairs_alone(public, asked, weight)
    if of_pairs is not None:
        remarks.append(BY_MODEL)
    remarks += _remarks(public, asked, weight)
    sets = [
        SetRecords.of(frame, schema, columns, missing, weight) for frame in public.sets
    ]
    if isinstance(asked, Summary) and asked.kind == "quantile":
        quantiles = quantiles_of_sets(public, sets, asked, rule, of_pairs is None)
        return replace(quantiles, remarks=tuple(remarks))
    intervals = pair_intervals(public)
    analyses = [calibrated(records, asked, family, intervals) for records in sets]
    answer = _combined(analyses, rule, _scale_of(asked), len(sets[0].complete))
    few = sets[:MOST_MOVED]
    untold = left_open(public, few, asked, family)
    if of_pairs is not None:
        beyond = beyond_pairs(few, asked, of_pairs, family)
        untold = np.hypot(untold[0], beyond), np.hypot(untold[1], beyond)
    return replace(
        answer,
        basis=basis_of(sets, rule),
        remarks=tuple(remarks),
        limits=_limits(asked),
        untold=untold,
    )


def _combined(
    analyses: Sequence[Analysis], rule: Rule, scale: OpenScale | None, n_records: int
) -> CombinedAnswer:
    """Return what the analyses of the sets, of so many records each, say together."""
    estimates = np.stack([estimate for _, estimate, _ in analyses])
    variances = np.stack([variance for _, _, variance in analyses])
    combined = combine(estimates, variances, rule=rule)
    within = np.asarray(combined.within)
    total = np.asarray(combined.variance)
    on_scale = None
    if scale is not None:
        on_scale = combine(*scale.taken(estimates, variances, n_records), rule=rule)
    return CombinedAnswer(
        tuple(analyses[0][0]),
        np.asarray(combined.estimate),
        np.diag(total),
        rule,
        noise=np.diag(np.maximum(total - within, 0)),
        source=SETS,
        combined=combined,
        scale=scale,
        on_scale=on_scale,
    )


def _scale_of(asked: Question) -> OpenScale | None:
    """Return the scale on which the sets' numbers are combined, of shares and
    correlations: near an end draws are skewed, and reach far to the other side.
    """
    kind = asked.kind if isinstance(asked, Summary) else ""
    return {"share": LOGIT, "correlation": FISHER}.get(kind)


def _remarks(
    public: PublishedRelease, asked: Question, weight: str | None
) -> list[str]:
    """Return what intervals from the sets hold only under conditions, or refuse what
    they don't hold.
    """
    remarks = []
    cut = set[str]()
    for law in public.privacy.margins:
        cut |= {axis.columns[0] for axis in law.axes if axis.lower}
    if weight in cut or (isinstance(asked, Formula) and cut & {*asked.columns}):
        remarks.append(BY_INTERVALS)
    if isinstance(asked, Formula):
        if any(not column.is_categorical for column in asked.columns.values()):
            remarks.append(DRAWN_TO_0)
        _refuse_curves(asked, cut)
    if not _are_counted(public, asked):
        remarks.append(UNCOUNTED)
    return remarks


def _are_counted(public: PublishedRelease, asked: Question) -> bool:
    """Return whether noisy margins hold each two columns that are asked for together,
    but for public ones; also where there are no margins.
    """
    margins = public.privacy.margins
    counted = [{name for axis in law.axes for name in axis.columns} for law in margins]
    for pair in combinations(asked.columns.items(), 2):
        names = {name for name, _ in pair}
        are_public = all(column.public for _, column in pair)
        if not are_public and not any(held >= names for held in counted):
            return not margins
    return True


def _refuse_curves(asked: Formula, cut: Collection[str]) -> None:
    """Refuse curves and steps of a predictor that the sets know by a few intervals:
    they held in 10 and 71 % of trials (``docs/results/outside.md``).
    """
    for name in cut:
        factors = [factor for factor in asked.factors if name in factor.columns]
        if len(factors) > 1 or any(factor.is_condition for factor in factors):
            raise InputError(
                f"sets know {name!r}, which has no bins, by a few intervals: of curves "
                f"and conditions of it their intervals don't hold"
            )


def _limits(asked: Question) -> tuple[float, float]:
    kind = asked.kind if isinstance(asked, Summary) else ""
    limits = {
        "share": SHARES,
        "count": COUNTS,
        "sd": COUNTS,
        "correlation": (-1.0, 1.0),
    }
    return limits.get(kind, (-np.inf, np.inf))
