"""How the claims of paper 004, section 5, fare on the table that was given."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pdips.report.formats import number
from pdips_papers.harness.framework import Finding
from pdips_papers.modips.words import FAILS, HOLDS, PARTLY
from pdips_papers.pseudo.censored_forms import CENSOR_UW, CENSOR_W, CONFIDENTIAL, PH, WEIGHTED, WEIGHTED_E
from pdips_papers.pseudo.salary_forms import EPSILON, STAGED

PUBLISHED = (WEIGHTED, WEIGHTED_E, CENSOR_W, CENSOR_UW)
RANKED = ("max-ECDF", "avg-ECDF", "Mean", "Median", "15th Q", "90th Q")


def findings(table: pd.DataFrame) -> list[Finding]:
    """Hold the claims of section 5 against the table, then say how our default does."""
    ours = table.set_index(["row", "column"])["ours"]

    def at(row: str, column: str) -> float:
        return float(ours.get((row, column), np.nan))

    def off(row: str, column: str) -> float:
        return at(row, column) if "ECDF" in row else abs(at(row, column) - at(row, CONFIDENTIAL))

    columns = (*PUBLISHED, PH)
    ranks = {
        column: [sum(off(row, other) <= off(row, column) for other in columns) for row in RANKED] for column in columns
    }
    return [
        _bounds({column: at("Lipschitz", column) for column in PUBLISHED}),
        _order(ranks),
        _inferior({column: at("max-ECDF", column) for column in columns}),
        _ours({column: at("max-ECDF", column) for column in (*columns, *STAGED)}),
    ]


def _text(values: dict[str, float]) -> str:
    return ", ".join(f"{column} {number(value)}" for column, value in values.items())


def _judged(parts: Sequence[bool]) -> str:
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def _bounds(bounds: dict[str, float]) -> Finding:
    target = EPSILON / 2
    return Finding(
        claim="Censor_w and Censor_uw achieve the target ϵ = 5; Weighted and Weighted-e exceed it somewhat (5.24, "
        "5.22).",
        found=f"Mean Lipschitz bounds: {_text(bounds)}; ϵ / 2 is {number(target)}. A bound of one table is no "
        "guarantee: true ϵ is 10 for Censor_uw, and none is shown for the others.",
        verdict=PARTLY if min(bounds[WEIGHTED], bounds[WEIGHTED_E]) > target else FAILS,
    )


def _order(ranks: dict[str, list[int]]) -> Finding:
    totals = {column: float(sum(values)) for column, values in ranks.items()}
    best = sorted(totals, key=lambda column: totals[column])
    return Finding(
        claim="Weighted has the highest utility, Weighted-e comes second, Censor_w third.",
        found=f"Sum of ranks over the six utility rows: {_text(totals)}.",
        verdict=_judged([best[place] == wanted for place, wanted in enumerate((WEIGHTED, WEIGHTED_E, CENSOR_W))]),
    )


def _inferior(values: dict[str, float]) -> Finding:
    others = max(values[column] for column in (WEIGHTED, WEIGHTED_E, CENSOR_W))
    return Finding(
        claim="Censor_uw and PH are inferior: more records are censored, and PH uses neither model nor covariates.",
        found=f"Mean max-ECDF: {_text(values)}. Both measures look at the number alone, not at how it goes with the "
        "covariates, which PH destroys.",
        verdict=_judged([values[column] > others for column in (CENSOR_UW, PH)]),
    )


def _ours(values: dict[str, float]) -> Finding:
    staged = [values[column] for column in STAGED]
    published = min(values[column] for column in PUBLISHED)
    return Finding(
        claim="(Ours) The default form of censored-posterior is at true ϵ = 5 and 1 no worse than any published form.",
        found=f"Mean max-ECDF: {_text({column: values[column] for column in STAGED})}; the best published "
        f"{number(published)}. A dash: the chains did not agree, so nothing was released.",
        verdict=_judged([value <= published for value in staged]),
    )
