"""Five questions to noisy counts, answered and timed: ``python -m
benchmarks.outside_peers``.

``--noisyvalue PYTHON,CHECKOUT`` and ``--pgm PYTHON,CHECKOUT`` ask the same counts with
noisyvalue (revision 7341039) and Private-PGM (revision 4d2b3c5, jax 0.7.0), each in an
environment with its needs. Private-PGM passes messages by its stable oracle: with the
fast one, its default, these counts take minutes.

Tables are drawn from the youth survey with replacement and released by ``steps`` with
Gaussian noise. The truth is that of the survey, which is the population here.
"""

import argparse
import json
import logging
import os
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import statsmodels.api as sm

from pdips import Margins, Release, Schema, Table
from pdips.inference import combine
from pdips.outside import NoisyMargins

COLUMNS = [
    "sex",
    "race",
    "education",
    "enrolled",
    "marital_status",
    "class_of_worker",
    "household_role",
    "foreign_born",
]
FORMULA = "enrolled ~ sex + education + foreign_born"
CELL = {"education": "some college or associate degree", "enrolled": "yes"}
QUESTIONS = (
    "share of a two-way cell",
    "linear coefficient",
    "logit coefficient",
    "rate in a group",
    "three-way cell",
)

type Found = tuple[float, float, float]


def interval(summary: pd.DataFrame, row: int = 0) -> Found:
    """Return estimate, lower and upper bound of a row."""
    return tuple(summary[name].iloc[row] for name in ("estimate", "lower", "upper"))


def three_way(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the share of men of one level who are enrolled, and its variance in a
    sample.
    """
    share = float(
        ((frame[list(CELL)] == CELL).all(axis=1) & (frame["sex"] == "male")).mean()
    )
    return share, share * (1 - share) / len(frame)


def rate(margins: NoisyMargins, n: int) -> Found:
    """Return the posterior of the share enrolled of those born abroad."""
    with pm.Model():
        shares = pm.Dirichlet("shares", np.ones(4))
        margins.factor(["enrolled", "foreign_born"], n * shares)
        draws = pm.sample(
            500,
            tune=500,
            chains=1,
            cores=1,
            random_seed=1,
            progressbar=False,
            nuts_sampler="pymc",
        )
    found = draws.posterior["shares"].to_numpy()[0]
    rates = found[:, 3] / (found[:, 1] + found[:, 3])
    return float(rates.mean()), *np.quantile(rates, [0.025, 0.975]).tolist()


def ours(release: Release) -> list[Callable[[], Found]]:
    """Return the five questions to a release."""
    margins = NoisyMargins.of(release)
    at = margins.share(list(CELL)).names.index(", ".join(CELL.values()))
    return [
        lambda: interval(margins.share(list(CELL)).summary(), at),
        lambda: interval(margins.ols(FORMULA).summary(), -1),
        lambda: interval(margins.glm(FORMULA, family="binomial").summary(), -1),
        lambda: rate(margins, len(release.sets[0])),
        lambda: interval(combine(three_way, release).summary()),
    ]


NOISYVALUE = """
import sys, json, time
import array, numpy, scipy.stats, sympy
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/src"]
from src.analysis import NoisyContingencyTable
from src.core import NoisyFloat
def table(margin):  # a table of one row, so that sampling is multinomial
    cells = [NoisyFloat.normal(loc=y, scale=margin["sigma"], obs=y) for y in margin["noisy"]]
    return NoisyContingencyTable.stratified([cells]).tbl[0]
VIEW = "education,enrolled,foreign_born"  # 4 x 2 x 2 counts
def share(release):
    cells = table(release[VIEW])
    return (cells[10] + cells[11]) / sum(cells)
def rate(release):
    cells = table(release[VIEW])
    return sum(cells[3::4]) / sum(cells[1::2])
answers = []
for release in json.load(open(sys.argv[2])):
    found = {}
    for place, ask in ((0, share), (3, rate)):
        start = time.process_time()
        value = ask(release)
        found[place] = [float(value), *value.credible_interval(0.95, rng=0).tolist(), time.process_time() - start]
    answers.append(found)
json.dump(answers, open(sys.argv[3], "w"))
"""  # noqa: E501

PGM = """
import sys, json, time
import numpy as np
sys.path.insert(0, sys.argv[1] + "/src")
from mbi import Domain, LinearMeasurement, estimation, marginal_oracles
names = "sex race education enrolled marital_status class_of_worker household_role foreign_born".split()
asked = ["sex", "education", "enrolled", "foreign_born"]
cells = np.indices([2, 4, 2, 2]).reshape(4, -1)
design = np.column_stack([np.ones(32), cells[0], *(cells[1] == k for k in (1, 2, 3)), cells[3]])
answers = []
for release in json.load(open(sys.argv[2])):
    start = time.process_time()
    counts = [LinearMeasurement(np.array(m["noisy"]), key.split(","), m["sigma"]) for key, m in release.items()]
    domain, stable = Domain(names, [2, 3, 4, 2, 3, 4, 3, 2]), marginal_oracles.message_passing_stable
    model = estimation.mirror_descent(domain, counts, known_total=int(sys.argv[4]), marginal_oracle=stable)
    joint = np.maximum(np.asarray(model.project(asked).datavector(), dtype=float), 1e-9)
    fitted = time.process_time() - start
    table = joint.reshape(2, 4, 2, 2) / joint.sum()
    outcome, slopes = cells[2], np.zeros(6)
    linear = np.linalg.solve((design.T * joint) @ design, design.T @ (joint * outcome))
    for _ in range(30):
        mean = 1 / (1 + np.exp(-design @ slopes))
        hessian = (design.T * (joint * mean * (1 - mean))) @ design
        slopes += np.linalg.solve(hessian, design.T @ (joint * (outcome - mean)))
    by_birth = table.sum(axis=(0, 1))
    found = [table.sum(axis=(0, 3))[2, 1], linear[-1], slopes[-1], by_birth[1, 1] / by_birth[:, 1].sum()]
    found.append(table.sum(axis=3)[1, 2, 1])
    answers.append({k: [one, None, None, fitted] for k, one in enumerate(found)})
json.dump(answers, open(sys.argv[3], "w"))
"""  # noqa: E501


def ask_peer(
    command: str, script: str, releases: list[dict[str, Any]], n: int
) -> list[dict[str, list[float]]]:
    """Return a peer's answers to all releases, by place of the question: estimate,
    bounds and CPU seconds.
    """
    python, checkout = command.split(",")
    with TemporaryDirectory() as folder:
        given, out = Path(folder) / "given.json", Path(folder) / "out.json"
        given.write_text(json.dumps(releases))
        subprocess.run([python, "-c", script, checkout, given, out, str(n)], check=True)
        return list(json.loads(out.read_text()))


def truths(frame: pd.DataFrame, schema: Schema) -> list[float]:
    """Return the answers of a table that is known."""
    codes = pd.DataFrame(dict(Table(frame, schema).codes))
    model = {
        "formula": "enrolled ~ C(sex) + C(education) + C(foreign_born)",
        "data": codes,
    }
    abroad = frame["foreign_born"] == "yes"
    return [
        float((frame[list(CELL)] == CELL).all(axis=1).mean()),
        sm.OLS.from_formula(**model).fit().params.iloc[-1],
        sm.Logit.from_formula(**model).fit(disp=False).params.iloc[-1],
        float((frame["enrolled"][abroad] == "yes").mean()),
        three_way(frame)[0],
    ]


def main() -> None:
    """Print a row for each question and tool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--seed", type=int, default=5_000)
    parser.add_argument(
        "--questions",
        type=int,
        nargs="+",
        default=list(range(len(QUESTIONS))),
        help="places of ours",
    )
    parser.add_argument("--noisyvalue", metavar="PYTHON,CHECKOUT")
    parser.add_argument("--pgm", metavar="PYTHON,CHECKOUT")
    asked = parser.parse_args()
    logging.getLogger("pymc").setLevel("ERROR")
    population = pd.read_parquet("examples/youth.parquet")[COLUMNS]
    schema = Schema.load("examples/youth.toml").only(COLUMNS).without_person()
    mechanism = Margins(epsilon=asked.epsilon, delta="1e-6", n_sets=5, sets="posterior")
    answers: dict[str, list[dict[int, list[Any]]]] = {"pdips": []}
    given = list[dict[str, Any]]()
    for number in range(asked.tables):
        rng = np.random.default_rng([asked.seed, number])
        sample = population.sample(
            asked.records, replace=True, random_state=rng, ignore_index=True
        )
        release, _ = mechanism.release(Table(sample, schema), rng=rng)
        found = dict[int, list[Any]]()
        asks = ours(release)
        for place in asked.questions:
            start = sum(os.times()[:4])
            found[place] = [*asks[place](), sum(os.times()[:4]) - start]
        answers["pdips"].append(found)
        given.append(
            {
                ",".join(axis.columns[0] for axis in each.law.axes): {
                    "noisy": each.noisy.tolist(),
                    "sigma": each.law.scale,
                }
                for each in NoisyMargins.of(release).margins
            }
        )
    for name, command, script in (
        ("noisyvalue", asked.noisyvalue, NOISYVALUE),
        ("Private-PGM", asked.pgm, PGM),
    ):
        if command:
            seen = ask_peer(command, script, given, asked.records)
            answers[name] = [
                {int(place): found for place, found in each.items()} for each in seen
            ]
    true = truths(population, schema)
    print(
        "question, tool: root mean square error, intervals that hold, their mean "
        "width, median CPU seconds"
    )
    for (place, question), name in product(enumerate(QUESTIONS), answers):
        if place not in answers[name][0]:
            print(f"{question}, {name}: no")
            continue
        rows = np.array([each[place] for each in answers[name]], dtype=float)
        off, wide = rows[:, 0] - true[place], rows[:, 2] - rows[:, 1]
        held = (
            np.mean((rows[:, 1] <= true[place]) & (true[place] <= rows[:, 2]))
            if np.isfinite(wide).all()
            else np.nan
        )
        error = np.sqrt(np.mean(off**2))
        print(
            f"{question}, {name}: {error:.4f}  {held:.2f}  {wide.mean():.4f}  "
            f"{np.median(rows[:, 3]):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
