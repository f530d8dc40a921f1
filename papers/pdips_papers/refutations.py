"""What claims of the papers come to where they can be worked out: the table of
``docs/proofs/refutations.md``.

Run ``python -m pdips_papers.refutations`` to print it. Nothing is drawn, so there is no
seed.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import click
import numpy as np

from pdips.margins.elections import one_way_aic
from pdips_papers.harness.printed import figures
from pdips_papers.kng.heavy_rows import FORMS
from pdips_papers.modips.as_printed import redraw_loss

N_SETS = 5
MOST_RECORDS = 1_000


def censored_loss(prior: float, epsilon: float = 1.0) -> float:
    """Return the loss of one draw from two parameter values, one of which has the prior
    probability ``prior``, if a record that speaks for it with epsilon / 2 is exchanged
    for one that speaks against it.
    """
    odds = prior / (1 - prior)
    with_record = odds * math.exp(epsilon)
    without = odds * math.exp(-epsilon)
    return math.log(with_record / (1 + with_record) / (without / (1 + without)))


def quantile_loss(tau: float = 0.99, claimed: float = 0.1) -> float:
    """Return the loss of the printed density of KNG for a quantile of 100 records, 98
    at 10, one at 500 and one that goes from 900 to 10.
    """
    theta = np.arange(0.5, 1_000)
    laws = []
    for last in (900, 10):
        records = np.array([10] * 98 + [500, last])
        below = (records[:, None] <= theta).sum(axis=0)
        off = np.abs(below - tau * len(records))
        # equation 5, with the printed sensitivity 2 (1 - tau)
        weight = np.exp(-claimed / (4 * (1 - tau)) * off - 1e-5 * theta**2)
        laws.append(weight / weight.sum())
    return float(np.abs(np.log(laws[0] / laws[1])).max())


def tree_prices(n_layers: int) -> tuple[Fraction, Fraction]:
    """Return what STEPS-L spends for each unit that it claims, under replace-one and
    add-remove: L + 1 layers of noise, the budget divided by L, sensitivity 1.
    """
    added = Fraction(n_layers + 1, n_layers)
    return 2 * added, added


def election_width(n_records: int = MOST_RECORDS) -> float:
    """Return by how much AIC moves, with as many parameters as levels occur, if the
    first of some records that are equal gets a level of its own.
    """
    counts = np.array([[n_records, 0], [n_records - 1, 1]])
    before, after = one_way_aic(counts, observed_levels=True)
    return float(abs(after - before))


def balanced(row: str) -> float:
    """Return the balanced rate of a printed classifier: of 3 altered and 17 normal
    records.
    """
    altered, _, _, normal, _ = figures("fertility", "table-4")[row]
    return (altered / 3 + normal / 17) / 2


def two_point(row: str) -> tuple[float, float]:
    """Return the chance of 0, and the count otherwise, of the law on two points with
    the printed mean and standard deviation of censored records.
    """
    _, _, _, mean, _, _, deviation = figures("censored-beta", "counts")[row]
    second = (mean**2 + deviation**2) / mean
    return 1 - mean / second, second


def _losses(row: str) -> str:
    loss = FORMS[f"{row} (published)"].true_epsilon("1")
    return f"{loss:.2f}"


def _prices(n_layers: int) -> str:
    replaced, added = tree_prices(n_layers)
    return f"{float(replaced):.2f} replaced, {float(added):.2f} added or removed"


def _coins() -> str:
    rows = ("PrivateSVM", "Laplace sanitizer", "MODIPS")
    return ", ".join(f"{100 * balanced(row):.1f}" for row in rows) + " %"


def _distances() -> str:
    parts = []
    for row in ("Laplace sanitizer", "MODIPS"):
        pairs, triples = figures("fertility", "table-5")[row][5:7]
        parts.append(f"{row} {pairs:.3f}, then {triples:.3f}")
    return "; ".join(parts)


TABLE: dict[str, tuple[str, Callable[[], str]]] = {
    "Censor_uw, prior probability .001 of one value": (
        "1",
        lambda: f"{censored_loss(0.001):.3f}",
    ),
    "KNG at the 99th percentile, 100 records": (
        "0.1",
        lambda: f"{quantile_loss():.3f}",
    ),
    "KNG, 49 quantiles of three columns": ("1", lambda: _losses("KNG")),
    "Stepwise": ("1", lambda: _losses("Stepwise - Fixed")),
    "Sandwich": ("1", lambda: _losses("Sandwich - Fixed")),
    "STEPS-2": ("1", lambda: _prices(2)),
    "STEPS-3": ("1", lambda: _prices(3)),
    "change of AIC, levels that occur, 1,000 records": (
        "2",
        lambda: f"{election_width():.3f}",
    ),
    "redrawing a count into [0, n], five sets": (
        "1",
        lambda: f"{N_SETS * redraw_loss(1 / N_SETS):.3f}",
    ),
    "private classifiers of table 4, balanced": ("64.9, 64.7, 50.0 % right", _coins),
    "mean distance of 2-way, then of 3-way margins (table 5)": (
        "cannot fall",
        _distances,
    ),
}
"""By what it is about: what the paper claims, or must hold, and what it comes to."""


def table() -> str:
    """Return the table of the page."""
    rows = ["| | claimed | worked out |", "| --- | --- | --- |"]
    for about, (claimed, found) in TABLE.items():
        rows.append(f"| {about} | {claimed} | {found()} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    click.echo(table())


if __name__ == "__main__":
    main()
