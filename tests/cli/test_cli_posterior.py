"""Posterior mechanisms as people run them: what is said, what goes out, what stays, and
how it ends.
"""

import json
import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from tables import cases

from pdips.posterior import inspection
from pdips.report.pages import rewrite
from pdips.report.posterior_figures import read_tree

SCHEMA = """
[columns]
x = { lower = -10, upper = 10, bins = 4, public = true }
y = { lower = -100, upper = 100, bins = 20, resolution = 0.5 }
"""
LINE = cases(__file__, "cli_posterior_line")
MEAN = cases(__file__, "cli_posterior_mean")
N = 300


@pytest.fixture
def here(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-10, 10, N)
    pd.DataFrame(
        {"x": x, "y": np.clip(20 + 3 * x + rng.normal(0, 9, N), -100, 100)}
    ).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA)
    (tmp_path / "line.py").write_text(LINE)
    (tmp_path / "mean.py").write_text(MEAN)
    return tmp_path


def words(
    here,
    *more: object,
    model="mean.py",
    epsilon: object = 4,
    mechanism="censored-posterior",
    out="out",
):
    common = [
        "synthesize",
        here / "t.parquet",
        "--schema",
        here / "s.toml",
        "--mechanism",
        mechanism,
    ]
    return [
        *common,
        "--model",
        here / model,
        "--epsilon",
        epsilon,
        "--out",
        here / out,
        "--report",
        *more,
    ]


def without_model(here) -> list[object]:
    """A release by a mechanism that takes no model, which is quicker."""
    arguments = words(here, mechanism="margins")
    del arguments[arguments.index("--model") : arguments.index("--model") + 2]
    return [*arguments, "--sets", 1]


def figures(content: object) -> set[str]:
    """Every number with many digits, as it is written."""
    return {
        word for word in re.findall(r"\d+\.\d+", json.dumps(content)) if len(word) > 12
    }


def check_inside(folder: Path) -> str:
    """Check that what the curator may see is whole and inside, and return the text of
    the report.
    """
    run = json.loads(
        (folder / "confidential" / "run.json").read_text(),
        parse_constant=lambda word: pytest.fail(word),
    )
    public = {path.name for path in (folder / "public").iterdir()}
    # an account signs what it was charged for
    assert public - {"signature.json"} == {
        "card.html",
        "datapackage.json",
        "privacy.json",
        "synthetic_1.parquet",
    }
    for name in ("card.html", "datapackage.json", "privacy.json"):
        text = (folder / "public" / name).read_text()
        assert not [figure for figure in figures(run["diagnostics"]) if figure in text]
        assert "R-hat" not in text
        assert "nats over" not in text
    assert len(figures(run["diagnostics"])) > 10  # the search has something to look for
    tree = read_tree(folder / "confidential/diagnostics")
    assert {
        "posterior",
        "prior",
        "pdips",
        "posterior_predictive",
        "observed_data",
    } <= set(tree.children)
    assert tree["pdips"].sizes["record"] == N
    assert set(tree["pdips"].data_vars) >= {"largest", "share_by_draw", "value_y"}
    return (folder / "confidential" / "report.html").read_text()


@pytest.mark.slow
def test_a_posterior_on_a_grid_from_end_to_end(pdips, here):
    assert "by censored-posterior" in pdips.ok(*words(here))
    page = check_inside(here / "out")
    for phrase in (
        "The posterior",
        "on a public grid",
        "mu",
        "sigma",
        "How far records move it",
        "bound against y",
    ):
        assert phrase in page
    card = (here / "out/public/card.html").read_text()
    assert "the model's source" in card
    assert "pm.HalfNormal(&#34;sigma&#34;, 20)" in card
    assert "exact: from the law that the proof is about" in card
    assert "by Markov chains" not in card
    for path in rewrite(here / "out"):
        assert path.stat().st_size > 1000
    (here / "out/confidential/diagnostics/posterior.nc").write_bytes(b"no netCDF")
    pdips.fails("diagnostics is damaged", "report", here / "out")


@pytest.fixture
def compiled_once(monkeypatch):
    """Compile for nutpie once: with one seed and one table all models are the same."""
    from pdips.posterior import nuts as sampling
    from pdips.posterior import private_reference as stages

    kept, compile_nutpie = [], sampling.compile_nutpie
    monkeypatch.setattr(stages, "SIMULATED", 256)

    def once(model):
        if not kept:
            kept.append(compile_nutpie(model))
        return kept[0]

    monkeypatch.setattr(sampling, "compile_nutpie", once)


@pytest.mark.slow
def test_chains_from_end_to_end_and_what_happens_if_they_disagree(
    pdips, here, compiled_once
):
    common = ["--seed", 1, "--allow", "seeded", "--ledger", here / "l.sqlite"]
    few = ["--option", "draws=20", "--option", "tune=20", "--option", "n_chains=2"]
    code, out, err = pdips(*words(here, *common, *few, model="line.py"))
    assert (code, out, err.count("\n")) == (3, "", 3)
    assert err.count("NOTE      Chains disagreed") == 2
    assert "did not converge" in err
    assert "the spend stays charged" in err
    assert not (here / "out").exists()
    assert "epsilon 4 spent" in pdips("ledger", "show", here / "l.sqlite")[1]
    code, out, err = pdips(
        *words(
            here,
            *common,
            "--option",
            "draws=600",
            "--option",
            "tune=300",
            model="line.py",
        )
    )
    assert code == 0, err
    assert "epsilon 8 spent" in out
    page = check_inside(here / "out")
    for phrase in (
        "Convergence",
        "R-hat at most",
        "b[constant]",
        "b[x &amp; x]",
        "ESS, tail",
        "records cut off, by draw",
    ):
        assert phrase in page
    card = (here / "out/public/card.html").read_text()
    assert "Rests on an assumption that nothing certifies" in card
    assert "mcmc: by Markov chains, taken to have converged" in card


@pytest.mark.slow
def test_a_useless_epsilon_is_one_line_and_a_bound_that_cannot_be_worked_out_stops_nothing(  # noqa: E501
    pdips, here, monkeypatch
):
    monkeypatch.setattr(
        inspection, "_tallied", Mock(side_effect=FloatingPointError("SECRET"))
    )
    code, out, err = pdips(*words(here, "--delta", "1/100000", epsilon="0.01"))
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("WARNING   epsilon is so small that ")  # before it is spent
    assert str(N) not in err
    assert " at delta = 0.00001 in total, " in out
    assert "neighbours, zero-concentrated\n" in out
    card, page = (
        here / "out" / name for name in ("public/card.html", "confidential/report.html")
    )
    assert "zero-concentrated" in card.read_text()
    assert "1e-05" in card.read_text() or "0.00001" in card.read_text()
    assert "could not be worked out (FloatingPointError)" in page.read_text()
    assert "SECRET" not in page.read_text()


@pytest.mark.slow
def test_asymptotic_sets_stay_inside_unless_somebody_names_it(pdips, here):
    out = pdips.ok(*words(here, mechanism="pseudo-posterior"))
    assert "NO BOUND (kind asymptotic)" in out
    assert "unless you say --allow asymptotic" in out
    assert {path.name for path in (here / "out").iterdir()} == {"confidential"}
    inside = (
        "answers.parquet datapackage.json diagnostics privacy.json report.html "
        "run.json synthetic_1.parquet"
    )
    assert (
        sorted(path.name for path in (here / "out/confidential").iterdir())
        == inside.split()
    )
    page = (here / "out/confidential/report.html").read_text()
    for phrase in ("Not published.", "weight against y", "no finite epsilon holds"):
        assert phrase in page
    assert (
        pdips(
            *words(
                here,
                "--allow",
                "asymptotic",
                "--overwrite",
                mechanism="pseudo-posterior",
            )
        )[0]
        == 0
    )
    assert ("No bound holds for these sets.") in (
        here / "out/public/card.html"
    ).read_text()
    charged = words(
        here, "--ledger", here / "l.sqlite", mechanism="pseudo-posterior", out="more"
    )
    pdips.fails("asymptotic", *charged)


@pytest.mark.parametrize(
    ("what", "error", "code", "kept"),
    [
        ("pdips.evaluation.margins.compare", RuntimeError("SECRET"), 1, []),
        ("pdips.report.pages.write_report", OSError("SECRET"), 4, ["run.json"]),
        ("pdips.report.pages.write_report", KeyboardInterrupt(), 4, ["run.json"]),
    ],
)
def test_a_paid_release_outlives_a_crash_after_it(
    pdips, here, monkeypatch, what, error, code, kept
):
    arguments = [*without_model(here), "--ledger", here / "l.sqlite"]
    assert pdips(*arguments)[0] == 0
    monkeypatch.setattr(what, Mock(side_effect=error))
    said = f"{here / 'out' / 'public'} holds the whole release; its pages"
    err = pdips.fails(said, *arguments, "--overwrite", code=code)
    assert f"`pdips report {here / 'out'}` writes the pages again" in err
    assert "SECRET" not in err
    assert [path.name for path in (here / "out").glob("confidential/*")] == kept
    outside = (
        "answers.parquet card.html datapackage.json margins.parquet privacy.json "
        "signature.json synthetic_1.parquet"
    )
    assert (
        sorted(path.name for path in (here / "out/public").iterdir()) == outside.split()
    )
    assert not [path for path in here.iterdir() if path.name.startswith(".")]


def test_a_crash_before_the_release_is_whole_keeps_the_earlier_one(
    pdips, here, monkeypatch
):
    assert pdips(*without_model(here))[0] == 0
    before = (here / "out/public/synthetic_1.parquet").read_bytes()
    monkeypatch.setattr("pdips.Release.write", lambda *_, **named: 1 / 0)
    pdips.fails("a bug: ZeroDivisionError", *without_model(here), "--overwrite", code=1)
    assert (here / "out/public/synthetic_1.parquet").read_bytes() == before
    assert (here / "out/confidential/report.html").exists()
    assert not [path for path in here.iterdir() if path.name.startswith(".")]


HEAD = cases(__file__, "cli_posterior_head")
MEANT_OTHERWISE = cases(__file__, "meant_otherwise")
"""The top of a model file, a line of its model, and what is said of it."""


@pytest.mark.parametrize("name", MEANT_OTHERWISE)
def test_what_was_meant_otherwise_is_refused_before_the_charge(pdips, here, name):
    top, body, says = MEANT_OTHERWISE[name]
    (here / "meant.py").write_text(HEAD.format(top=top, body=body))
    assert pdips("ledger", "set-total", here / "l.sqlite", "4")[0] == 0
    before = (here / "l.sqlite").read_bytes()
    pdips.fails(says, *words(here, "--ledger", here / "l.sqlite", model="meant.py"))
    assert (here / "l.sqlite").read_bytes() == before
    assert not (here / "out").exists()
