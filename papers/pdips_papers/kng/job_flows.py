"""Job flows of a panel of firms: gross employment, jobs created and jobs destroyed,
year by year.
"""

from collections.abc import Mapping

import pandas as pd

from pdips.errors import InputError

RATES = ("creation", "destruction", "net")


def job_flows(frame: pd.DataFrame, years: Mapping[int, str]) -> pd.DataFrame:
    """Return gross employment and the rates of job creation and destruction by year.

    Parameters
    ----------
    frame : DataFrame
        One row a firm; employment of a year in one column, missing where the firm
        doesn't exist.
    years : mapping of int to str
        The column of each year.

    Returns
    -------
    DataFrame
        One row a year, increasing: ``employment``, the sum over firms; ``creation``,
        ``destruction`` and ``net``, as shares of the mean employment of the year and
        the one before, NaN in the first year and where nobody is employed in either.

    Raises
    ------
    InputError
        If a column isn't there or is no number, or there are fewer than two years.

    Notes
    -----
    Davis, Haltiwanger and Schuh (1998), as in Tran et al. (2023), section 5.3: with E_t
    the employment of a firm, 0 where it doesn't exist, and Z_t the sum over firms of
    (E_t + E_{t-1}) / 2, creation is the sum of max(E_t - E_{t-1}, 0) / Z_t, destruction
    that of max(E_{t-1} - E_t, 0) / Z_t, net their difference. So births are created and
    exits destroyed jobs. The paper prints destruction with a negative sign; here it is
    positive, and net = creation - destruction.

    Examples
    --------
    >>> firms = pd.DataFrame({"2001": [10.0, 20.0], "2002": [15.0, 15.0]})
    >>> job_flows(firms, {2001: "2001", 2002: "2002"}).loc[2002, "net"]
    np.float64(0.0)
    """
    if len(years) < 2:
        raise InputError("job flows need the columns of at least two years")
    for name in years.values():
        if name not in frame.columns or not pd.api.types.is_numeric_dtype(frame[name]):
            raise InputError(
                f"job flows: {name!r} must be a numeric column of the table"
            )
    ordered = sorted(years)
    levels = (
        frame[[years[year] for year in ordered]]
        .astype("float64")
        .fillna(0.0)
        .set_axis(ordered, axis=1)
    )
    change = levels.diff(axis=1)
    before = levels.shift(axis=1)
    size = ((levels + before) / 2).sum(skipna=False)
    size = size.where(size > 0)
    creation = change.clip(lower=0).sum() / size
    destruction = (-change).clip(lower=0).sum() / size
    found = {
        "employment": levels.sum(),
        "creation": creation,
        "destruction": destruction,
        "net": creation - destruction,
    }
    return pd.DataFrame(found).rename_axis("year")
