"""What section 5 of paper 002 says of its panel, held against other panels."""

import pandas as pd

from pdips_papers.harness.framework import Finding
from pdips_papers.kng.firm_panel import ERRORS, KM, PMSE, RAW, panels_of, row_name
from pdips_papers.kng.firm_panel_forms import NON_PRIVATE, RESIDUAL, VARYING

FIXED = "stepwise, fixed slopes"
HOLDS, PARTLY, FAILS = "holds", "holds in part", "doesn't hold"


def findings(table: pd.DataFrame) -> list[Finding]:
    """Return the claims that figures are there for, at epsilon = 1."""
    return [found for found in (_varying(table), _without(table), _trend(table)) if found is not None]


def _figures(table: pd.DataFrame, form: str, column: str, epsilon: str | None = "1") -> dict[str, float]:
    known = table[table["column"] == column].set_index("row")["ours"]
    rows = {panel: row_name(panel, form, epsilon) for panel in panels_of(table)}
    return {panel: float(known[row]) for panel, row in rows.items() if row in known.index}


def _verdict(right: list[bool]) -> str:
    return HOLDS if all(right) else PARTLY if any(right) else FAILS


def _list(values: dict[str, tuple[float, float]], digits: int) -> str:
    return "; ".join(f"{panel}: {a:.{digits}f} and {b:.{digits}f}" for panel, (a, b) in values.items())


def _both(a: dict[str, float], b: dict[str, float]) -> dict[str, tuple[float, float]]:
    return {panel: (a[panel], b[panel]) for panel in a if panel in b}


def _varying(table: pd.DataFrame) -> Finding | None:
    pairs = _both(_figures(table, VARYING, KM), _figures(table, FIXED, KM))
    if not pairs:
        return None
    return Finding(
        claim="Varying slopes are better than fixed ones (5.2; 3-marginal scores of stepwise in table 5: 831 to 902 "
        "and 697 to 808).",
        found=f"3-marginal scores of stepwise, varying and fixed, at epsilon = 1. {_list(pairs, 0)}.",
        verdict=_verdict([a > b for a, b in pairs.values()]),
    )


def _without(table: pd.DataFrame) -> Finding | None:
    pairs = _both(_figures(table, VARYING, PMSE), _figures(table, NON_PRIVATE, PMSE, None))
    if not pairs:
        return None
    return Finding(
        claim="The best private panel has about ten times the pMSE of the one without privacy (5.2).",
        found=f"pMSE of stepwise with varying slopes at epsilon = 1, and without privacy. {_list(pairs, 4)}.",
        verdict=_verdict([a < 20 * b for a, b in pairs.values()]),
    )


def _trend(table: pd.DataFrame) -> Finding | None:
    measured = ERRORS["creation"]
    pairs = _both(_figures(table, VARYING, measured), _figures(table, RESIDUAL, measured))
    if not pairs:
        return None
    raw = table[table["column"].str.startswith("creation ")].groupby("row")["ours"].mean()
    true = {panel: 100 * float(raw[row_name(panel, RAW, None)]) for panel in pairs}
    rates = "; ".join(f"{panel}: {rate:.1f} %" for panel, rate in true.items())
    return Finding(
        claim="Stepwise with varying slopes retains the trend of job creation, some 10 % below the raw rates (5.3).",
        found=f"Mean error of job creation in % points at epsilon = 1, stepwise and kng-residual. {_list(pairs, 1)}. "
        f"Raw rates, mean over years: {rates}.",
        verdict=_verdict([error <= 0.2 * true[panel] for panel, (error, _) in pairs.items()]),
    )
