"""Eight models of Bambi's example gallery."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from scipy.special import expit

from benchmarks.gallery.entries import (
    Entry,
    Truth,
    Written,
    count,
    levels,
    number,
    public,
)

Drawn = tuple[pd.DataFrame, Truth]
TRAITS = ("o", "c", "e", "a", "n")
COUNTIES = tuple(f"county {number:02d}" for number in range(1, 31))


def personality(rng: np.random.Generator, n: int) -> Drawn:
    """Use of drugs, by five traits."""
    traits = rng.normal(120, 20, (n, 5)).round().clip(40, 200)
    slopes = np.array([0.006, -0.004, 0.003, -0.012, -0.002])
    mean = 2.2 + (traits - 120) @ slopes
    frame = pd.DataFrame(traits, columns=[*TRAITS])
    frame["drugs"] = rng.normal(mean, 0.6).clip(0, 6)
    truth = dict(zip(TRAITS, slopes, strict=True))
    return frame, truth | {"sigma": 0.6, "Intercept": 2.2 - 120 * slopes.sum()}


def radon(rng: np.random.Generator, n: int) -> Drawn:
    """Radon in houses of 30 counties."""
    uranium = rng.normal(0, 0.4, len(COUNTIES)).clip(-1, 1)
    effects = rng.normal(0, 0.3, len(COUNTIES))
    county = rng.integers(len(COUNTIES), size=n)
    is_above = rng.random(n) < 0.2
    mean = 1.5 - 0.6 * is_above + 0.7 * uranium[county] + effects[county]
    frame = pd.DataFrame(
        {
            "log_radon": rng.normal(mean, 0.7).clip(-4, 6),
            "floor": np.where(is_above, "Floor", "Basement"),
            "log_u": uranium[county],
            "county": np.array(COUNTIES)[county],
        }
    )
    truth = {"floor": [-0.6], "log_u": 0.7, "sigma": 0.7, "1|county_sigma": 0.3}
    return frame, truth


def heavy_tails(rng: np.random.Generator, n: int) -> Drawn:
    """A line with errors of Student's t."""
    x = rng.uniform(0, 1, n)
    y = (1 + 2 * x + 0.5 * rng.standard_t(4, n)).clip(-12, 15)
    truth = {"Intercept": 1.0, "x": 2.0, "sigma": 0.5, "nu": 4.0}
    return pd.DataFrame({"x": x, "y": y}), truth


def incomes(rng: np.random.Generator, n: int) -> Drawn:
    """Whether an income is high, by polynomials of age and hours."""
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["Female", "Male"], n),
            "race": rng.choice(["Black", "White"], n, p=[0.2, 0.8]),
            "age": rng.integers(18, 81, n).astype(float),
            "hs_week": rng.integers(5, 81, n).astype(float),
        }
    )
    age = (frame.age - frame.age.mean()) / frame.age.std(ddof=0)
    hours = (frame.hs_week - frame.hs_week.mean()) / frame.hs_week.std(ddof=0)
    eta = -1 + 1 * (frame.sex == "Male") + 0.5 * (frame.race == "White")
    eta += 0.9 * age - 0.6 * age**2 + 0.1 * age**3
    eta += 0.7 * hours - 0.2 * hours**2 - 0.05 * hours**3
    is_high = rng.random(n) < expit(eta)
    frame["income"] = np.where(is_high, ">50K", "<=50K")
    truth = {
        "sex": [1.0],
        "race": [0.5],
        "scale(age)": 0.9,
        "I(scale(age) ** 2)": -0.6,
        "I(scale(age) ** 3)": 0.1,
        "scale(hs_week)": 0.7,
        "I(scale(hs_week) ** 2)": -0.2,
        "I(scale(hs_week) ** 3)": -0.05,
    }
    return frame, truth


def absences(rng: np.random.Generator, n: int) -> Drawn:
    """Days absent from school, by programme and grade."""
    programmes = ["Academic", "General", "Vocational"]
    programme = rng.integers(3, size=n)
    math = rng.integers(1, 100, n).astype(float)
    scaled = (math - math.mean()) / math.std()
    base = np.array([1.9, 2.3, 1.0])
    slope = np.array([-0.2, -0.1, -0.4])
    mean = np.exp(base[programme] + slope[programme] * scaled)
    frame = pd.DataFrame(
        {
            "daysabs": rng.negative_binomial(1.5, 1.5 / (1.5 + mean)).clip(0, 200),
            "prog": np.array(programmes)[programme],
            "math": math,
        }
    )
    return frame, {"prog": base, "alpha": 1.5, "scale(math)": -0.2}


def directions(rng: np.random.Generator, n: int) -> Drawn:
    """Directions of snails, by how far they went."""
    distance = rng.uniform(1, 120, n)
    middle = 1.5 - 0.02 * distance
    turned = rng.vonmises(middle, 2.5)
    frame = pd.DataFrame({"distance": distance, "direction": turned})
    return frame, {"Intercept": 1.5, "distance": -0.02, "kappa": 2.5}


def careers(rng: np.random.Generator, n: int) -> Drawn:
    """Years at a company: each year somebody may leave."""
    working = rng.integers(0, 31, n)
    years = np.arange(11)
    thresholds = np.linspace(-2.5, -0.5, 10)
    leaves = rng.random((n, 10)) < expit(thresholds - 0.06 * working[:, None])
    leaves = np.column_stack([leaves, np.ones(n, dtype=bool)])
    stayed = years[leaves.argmax(axis=1)]
    frame = pd.DataFrame({"YearsAtCompany": stayed, "TotalWorkingYears": working})
    return frame, {"threshold": thresholds, "TotalWorkingYears": 0.06}


def cats(rng: np.random.Generator, n: int) -> Drawn:
    """Days until a cat is adopted, or is lost sight of."""
    color = rng.choice(["black", "other"], n, p=[0.3, 0.7])
    mean = np.where(color == "black", 1.7, 1.4)
    adoption = rng.exponential(mean) * 31
    window = rng.uniform(30, 180, n)
    frame = pd.DataFrame(
        {
            "days": np.minimum(adoption, window).clip(0.5, 180),
            "adopt": np.where(adoption < window, "none", "right"),
            "color": color,
            "window": window,
        }
    )
    return frame, {"log_mean": np.log([1.7, 1.4])}


def cats_in_window(df: Any) -> pm.Model:
    """The same, with the days that a cat was in the shelter, in public."""
    codes, colors = df.color.factorize(sort=True)
    with pm.Model(coords={"color": colors}) as model:
        log_mean = pm.Normal("log_mean", 0, 2.5, dims="color")
        pm.Censored(
            "months",
            pm.Exponential.dist(scale=pm.math.exp(log_mean[codes])),
            lower=None,
            upper=df["window"].to_numpy() / 31,
            observed=df["days"].to_numpy() / 31,
        )
    return model


ENTRIES = [
    Entry(
        name="ESCS_multiple_regression",
        family="linear regression",
        columns={"drugs": number(0, 6)}
        | {name: public(**count(40, 200)) for name in TRAITS},
        simulate=personality,
        written=Written(model="drugs ~ o + c + e + a + n"),
    ),
    Entry(
        name="radon_example",
        family="varying intercepts, a predictor of groups",
        columns={
            "log_radon": number(-4, 6),
            "floor": levels("Basement", "Floor", public=True),
            "log_u": public(**number(-1, 1)),
            "county": levels(*COUNTIES, public=True),
        },
        simulate=radon,
        written=Written(model="log_radon ~ floor + log_u + (1|county)"),
    ),
    Entry(
        name="t_regression",
        family="robust regression",
        columns={"x": public(**number(0, 1)), "y": number(-12, 15)},
        simulate=heavy_tails,
        written=Written(model="y ~ x", settings={"family": "t"}),
    ),
    Entry(
        name="model_comparison",
        family="logistic regression, polynomials",
        columns={
            "income": levels("<=50K", ">50K"),
            "sex": levels("Female", "Male", public=True),
            "race": levels("Black", "White", public=True),
            "age": public(**count(18, 80)),
            "hs_week": public(**count(5, 80)),
        },
        simulate=incomes,
        written=Written(
            model="income['>50K'] ~ sex + race + scale(age) + I(scale(age) ** 2) + "
            "I(scale(age) ** 3) + scale(hs_week) + I(scale(hs_week) ** 2) + "
            "I(scale(hs_week) ** 3)",
            settings={"family": "bernoulli"},
        ),
        n_records=10_000,
    ),
    Entry(
        name="negative_binomial",
        family="negative binomial regression",
        columns={
            "daysabs": count(0, 200),
            "prog": levels("Academic", "General", "Vocational", public=True),
            "math": public(**count(1, 99)),
        },
        simulate=absences,
        written=Written(
            model="daysabs ~ 0 + prog + scale(math) + prog:scale(math)",
            settings={"family": "negativebinomial"},
        ),
    ),
    Entry(
        name="circular_regression",
        family="circular regression",
        columns={
            "direction": number(-np.pi, np.pi),
            "distance": public(**number(1, 120)),
        },
        simulate=directions,
        written=Written(model="direction ~ distance", settings={"family": "vonmises"}),
    ),
    Entry(
        name="ordinal_regression",
        family="ordinal, sequential",
        columns={
            "YearsAtCompany": count(0, 10),
            "TotalWorkingYears": public(**count(0, 30)),
        },
        simulate=careers,
        written=Written(
            model="YearsAtCompany ~ 0 + TotalWorkingYears",
            settings={"family": "sratio"},
        ),
    ),
    Entry(
        name="survival_model",
        family="exponential times, censored",
        columns={
            "days": number(0, 180),
            "adopt": levels("none", "right"),
            "color": levels("black", "other", public=True),
            "window": public(**number(30, 180)),
        },
        simulate=cats,
        written=Written(
            model="censored(days / 31, adopt) ~ 0 + color",
            settings={"family": "exponential", "link": "log"},
        ),
        amended=Written(
            model=cats_in_window,
            said="`make(df)` with `pm.Censored` at the end of a public window",
        ),
    ),
]
