"""The answer to an analysis in a table: a row for each coefficient."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

from pdips.arrays import FloatArray
from pdips.release.public_draws import PublicDraws, contradiction
from pdips.release.release import Release, question_of
from pdips.report.coefficients import entries

TABLE_GROUP = "this_table"
ESTIMATES_TABLE = "answer"  # table of a release
CONTRADICTED_MODEL = (
    "the noisy answers contradict it: {0.reason}. If it were right, they would be so "
    "far off in {0.share:.2g} of releases. So the intervals are not 95 %"
)
LARGEST = 1e100  # of a draw
ENDS_OF_95 = (0.025, 0.975)  # of the two ends of an interval


def summaries(numbers: Mapping[str, FloatArray]) -> pd.DataFrame:
    """Return the mean and the 95 % interval of each number's draws.

    Draws by much noise may have no end, or none that means anything: then an end of the
    interval that lies there is open, and the estimate is the median, NaN if it has no
    end either.
    """
    rows = {name: _summary(draws) for name, draws in numbers.items()}
    columns = ["estimate", "lower", "upper"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def _summary(draws: FloatArray) -> dict[str, float]:
    finite = np.clip(draws, -LARGEST, LARGEST)
    lower, upper = np.quantile(finite, ENDS_OF_95).tolist()
    has_mean = np.abs(finite).max() < LARGEST
    estimate = float(finite.mean() if has_mean else np.median(finite))
    return {
        "estimate": np.nan if abs(estimate) >= LARGEST else estimate,
        "lower": -np.inf if abs(lower) >= LARGEST else lower,
        "upper": np.inf if abs(upper) >= LARGEST else upper,
    }


def estimates_of(posterior: xr.Dataset, of_table: xr.Dataset | None) -> pd.DataFrame:
    """Return a row for each coefficient: ``estimate`` with ``lower`` and ``upper``, of
    the population, and ``table_estimate`` with its ends, of the table itself by the
    noise alone; ``of_table`` has draws of that, where they could be made.
    """
    estimates = summaries(dict(entries(posterior)))
    within = {} if of_table is None else dict(entries(of_table))
    table = summaries(within).add_prefix("table_").reindex(estimates.index)
    return estimates.join(table)


def as_rows(estimates: pd.DataFrame) -> pd.DataFrame:
    """Return estimates as the table that a release publishes."""
    return estimates.rename_axis("coefficient").reset_index()


def beside_table(
    draws: PublicDraws, of_table: xr.Dataset | None, said: Mapping[str, str]
) -> PublicDraws:
    """Return what is published of a posterior with draws of the table's own estimate,
    and what is said of the question.
    """
    others = draws.others

    def groups() -> Mapping[str, xr.Dataset]:
        more = {} if of_table is None else {TABLE_GROUP: of_table}
        return {**others(), **more}

    posterior = draws.posterior.assign_attrs(said)
    return replace(draws, posterior=posterior, others=groups)


def told_of(number: int, part: Release) -> Iterator[str]:
    """Yield lines for the curator's screen: the answer to an analysis that is a part of
    a release, coefficient by coefficient.
    """
    yield f"analysis  {number}: {question_of(part.settings)}"
    for row in part.tables[ESTIMATES_TABLE].to_dict("records"):
        yield (
            f"estimate  {row['coefficient']}: {row['estimate']:.4g}, 95 % interval "
            f"{row['lower']:.4g} to {row['upper']:.4g}"
        )
    draws = part.posterior_draws
    against = None if draws is None else contradiction(draws.posterior.attrs)
    if against is not None:
        yield f"model     {CONTRADICTED_MODEL.format(against)}"
