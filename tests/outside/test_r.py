"""Questions in plain R, from ``examples/ask.R``: the numbers are Python's. Skipped
where R or its packages aren't installed.
"""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import schema_in

import pdips
from pdips import Margins, Schema, Table
from pdips.inference import combine, rule_for

HOME = Path(__file__).parents[2]
SCHEMA = schema_in("outside")
QUESTIONS = {
    "share(voted == 'yes')": 'share(release, "voted", "yes")',
    "share(voted == 'yes', by=['sex'])": 'share(release, "voted", "yes", by = "sex")',
    "share(sex == 'm', by=['school'])": 'share(release, "sex", "m", by = "school")',
    "mean(age)": 'mean_of(release, "age")',
    "mean(age, by=['school'])": 'mean_of(release, "age", by = "school")',
}


@cache
def has_packages(*packages: str) -> bool:
    """Whether R is there, with some packages."""
    if shutil.which("Rscript") is None:
        return False
    code = "; ".join(f"library({name})" for name in packages)
    return subprocess.run(["Rscript", "-e", code], capture_output=True).returncode == 0


def in_r(folder: Path, *questions: str) -> list[list[list[float]]]:
    """Return the estimate and the ends of the interval of each row, by question."""
    listed = ", ".join(
        f"as.matrix({question}[c('estimate', 'lower', 'upper')])"
        for question in questions
    )
    code = (
        f"source('{HOME}/examples/ask.R'); release <- read_release('{folder}'); "
        f"cat(jsonlite::toJSON(list({listed}), digits = 17))"
    )
    done = subprocess.run(
        ["Rscript", "-e", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[list[list[float]]] = json.loads(done.stdout)
    return found


def people(n: int = 1_200) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    return pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], n),
            "school": rng.choice(["low", "middle", "high"], n),
            "age": rng.uniform(20, 80, n),
            "voted": rng.choice(["no", "yes"], n, p=[0.7, 0.3]),
        }
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "mechanism",
    [
        of_pairs(epsilon=2, n_sets=4),
        Margins(epsilon=2, delta="1e-6", n_sets=4, neighbours="add-remove"),
    ],
    ids=["pairs", "views"],
)
def test_answers_in_r_are_those_of_python(mechanism, suffix, tmp_path):
    packages = ("jsonlite", "arrow") if suffix == "parquet" else ("jsonlite",)
    if not has_packages(*packages):
        pytest.skip(f"R with {' and '.join(packages)} isn't installed")
    rng = np.random.default_rng(3)
    release, _ = mechanism.release(Table(people(), SCHEMA), rng=rng)
    release.publish(tmp_path / "public", file_format=suffix, allow=["seeded"])
    public = pdips.open(tmp_path)
    formula = "regression(release, I((voted == 'yes') * 1) ~ sex)"
    *answers, fitted = in_r(tmp_path / "public", *QUESTIONS.values(), formula)
    for question, rows in zip(QUESTIONS, answers, strict=True):
        answer = public.ask(question)
        assert answer.source == "noisy margins"
        expected = answer.summary()[["estimate", "lower", "upper"]].to_numpy()
        np.testing.assert_allclose(rows, expected, rtol=1e-9)
    # the broken twin: another question has another answer
    assert not np.allclose(answers[3], answers[4][0], rtol=1e-9)
    combined = combine(one_fit, public.sets, rule=rule_for(public.home))
    expected = combined.summary()[["estimate", "lower", "upper"]].to_numpy()
    np.testing.assert_allclose(fitted, expected, rtol=1e-7)


def one_fit(one: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the least squares of voting on sex, in one set."""
    men = (one["sex"] == "m").to_numpy()
    yes = (one["voted"] == "yes").to_numpy()
    estimate = np.array([yes[~men].mean(), yes[men].mean() - yes[~men].mean()])
    return estimate, np.ones(2)  # the rule doesn't take these


def test_what_r_leaves_to_python_is_refused(tmp_path):
    if not has_packages("jsonlite"):
        pytest.skip("R with jsonlite isn't installed")
    columns = {"a": {"levels": ["x", "y"]}, "b": {"levels": ["u", "v"]}}
    schema = Schema(columns=columns, impossible=({"a": "x", "b": "v"},))
    frame = pd.DataFrame({"a": ["x", "y"] * 100, "b": ["u", "u", "u", "v"] * 50})
    release, _ = of_pairs(epsilon=2).release(Table(frame, schema))
    release.publish(tmp_path / "public", file_format="csv")
    with pytest.raises(AssertionError, match="no margin holds"):
        in_r(tmp_path / "public", 'share(release, "a", "x")')
    with pytest.raises(AssertionError, match="is no column"):
        in_r(tmp_path / "public", 'share(release, "c", "x")')
