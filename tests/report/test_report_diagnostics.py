"""The diagnostics of the curator's report: each rule with a twin that breaks it, and
the page of a small release.
"""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from small_models import WIDE, normal
from tables import refuses
from test_report import facts_of, pages, run_of, write_folder

from pdips.convergence import BFMI, ESS, RHAT, Convergence
from pdips.data.schema import Column, Schema
from pdips.posterior import inspection as predicted_records
from pdips.posterior.columns import Columns
from pdips.posterior.inspection import (
    InspectedRecords,
    Posterior,
    bin_edges,
    check_records,
    compare,
    inspect,
)
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source
from pdips.posterior.record_likelihood import RecordLikelihood
from pdips.release.documents import PrivacyDocument, RunDocument
from pdips.release.tree import stored_name
from pdips.report import diagnostics as noise
from pdips.report import posterior_figures as chains
from pdips.report.diagnostics import (
    CHANCE,
    EDGE,
    MOST_CENSORED,
    NOISE_FACTOR,
    OFF,
    agreement,
    judge,
)
from pdips.report.posterior_figures import read_tree, write_tree

CHAINS, DRAWS = 4, 200
SENTINEL = 7.654321987654
BOUNDS = {"draws": 800, "bound": 2.5, "rhat": 1.001, "certifies": "Something."}
WINDOW = {
    "limit": 0.5,
    "any": 9,
    "any_share": 0.15,
    "released": [6],
    "released_share": [0.1],
}
COLUMN = {"name": "age", "distance": 0.04, "typical": 0.03, "p": 0.3}


def chains_of(
    rhat: float = 1.001, ess: float = 900, divergences: int = 0
) -> dict[str, Any]:
    return asdict(Convergence({"a": rhat}, {"a": ess}, {"a": ess + 50}, divergences))


def posterior_of(**changes: Any) -> dict[str, Any]:
    rows = [
        {
            "name": f"b[{i}]",
            "mean": 0.0,
            "sd": 1.0,
            "rhat": 1.0,
            "ess_bulk": 400.0,
            "released": [0.5],
        }
        for i in (0, 1)
    ]
    known = {
        "sampler": "nuts",
        "draws": DRAWS,
        "chains": CHAINS,
        "convergence": chains_of(),
        "parameters": rows,
    }
    return (
        known
        | {
            "bounds": BOUNDS | {"window": WINDOW},
            "records": {"draws": 20, "columns": [COLUMN]},
        }
        | changes
    )


def exact_of(edge: float) -> dict[str, Any]:
    return posterior_of(sampler="grid", chains=1, convergence=None, edge=edge)


def judged(
    diagnostics: Any,
    bfmi: tuple[float, ...] = (),
    sampling: str = "mcmc",
    compared: Any = None,
) -> Any:
    """Return the level of the verdict, and the names of the rules that were broken."""
    facts = PrivacyDocument.model_validate(facts_of(sampling=sampling))
    run = RunDocument.model_validate(run_of(facts_of()) | {"diagnostics": diagnostics})
    verdict, found = judge(facts, run, bfmi, compared)
    broken = {check.name for check in found if check.level != "good"}
    for name in broken:
        assert (
            name in f"{verdict.line[:1].lower()}{verdict.line[1:]}"
            or name in verdict.line
        )
    return verdict.level, broken


def test_draws_without_chains_or_variables_are_in_order():
    # trees, histograms, urns, networks
    assert judged({}, sampling="exact") == ("good", set())
    assert judged({"convergence": "independent draws"}, sampling="exact") == (
        "good",
        set(),
    )
    assert judged({"sampler": "rejection"}, sampling="exact") == ("good", set())
    found = Convergence({}, {}, {}, 0)
    assert judged({"convergence": found}) == ("good", set())
    assert "effective draws at least unbounded" in agreement(found)


PREDICTED = "posterior predictive check of records"
FARTHEST = "levels in the chains, of the column farthest from its noisy counts"
MOSTLY_CUT = BOUNDS | {
    "window": WINDOW | {"released_share": [0.1, MOST_CENSORED + 0.01]}
}
RULES = [
    ({"posterior": posterior_of()}, (1.0, 0.9), "good", None),
    (
        {"posterior": posterior_of(convergence=chains_of(RHAT - 1e-4, ESS + 1))},
        (BFMI,),
        "good",
        None,
    ),
    # shown as 1.0100
    ({"posterior": posterior_of(convergence=chains_of(RHAT - 1e-6))}, (), "good", None),
    ({"posterior": exact_of(EDGE)}, (), "good", None),
    (
        {"posterior": posterior_of(sampler="moves", bounds=None, records=None)},
        (),
        "good",
        None,
    ),
    # a line for each fit
    ({"convergence": [chains_of(), chains_of(1.009)]}, (), "good", None),
    # as pseudo-posterior says it
    ({"convergence": {"chains": chains_of()}}, (), "good", None),
    (
        {"convergence": [chains_of()], "levels_off": 0.05, "telling_pairs": 0.6},
        (),
        "good",
        None,
    ),
    ({"convergence": [chains_of()], "solver_arrived": True}, (), "good", None),
    (
        {"posterior": posterior_of(convergence=chains_of(RHAT))},
        (1.0,),
        "bad",
        "R-hat, largest",
    ),
    (
        {"posterior": posterior_of(convergence=chains_of(RHAT + 1e-4))},
        (1.0,),
        "bad",
        "R-hat, largest",
    ),
    (
        {"posterior": posterior_of(convergence=chains_of(np.inf))},
        (1.0,),
        "bad",
        "R-hat, largest",
    ),
    (
        {"posterior": posterior_of(convergence=chains_of(ess=ESS))},
        (1.0,),
        "bad",
        "effective draws, fewest",
    ),
    (
        {"posterior": posterior_of(convergence=chains_of(divergences=1))},
        (1.0,),
        "bad",
        "divergences",
    ),
    (
        {"convergence": [chains_of(), chains_of(RHAT + 1e-4)]},
        (),
        "bad",
        "R-hat, largest",
    ),
    ({"posterior": posterior_of()}, (1.0, BFMI - 0.001), "watch", "BFMI, smallest"),
    ({}, (), "open", "the draw"),
    ({"convergence": "something else"}, (), "open", "the draw"),
    ({"posterior": posterior_of(convergence=None)}, (), "open", "the draw"),
    (
        {"posterior": exact_of(EDGE + 0.001)},
        (),
        "watch",
        "posterior on the outermost cells of the grid",
    ),
    (
        {
            "posterior": posterior_of(
                records={"columns": [COLUMN | {"distance": 0.031 + OFF}]}
            )
        },
        (),
        "watch",
        PREDICTED,
    ),
    (
        {"posterior": posterior_of(records={"failed": "ValueError"})},
        (),
        "open",
        PREDICTED,
    ),
    (
        {"posterior": posterior_of(bounds=MOSTLY_CUT)},
        (),
        "watch",
        "records cut off at a released draw",
    ),
    (
        {"posterior": posterior_of(bounds=BOUNDS | {"rhat": RHAT})},
        (),
        "watch",
        "R-hat of the bound of records' terms",
    ),
    ({"convergence": [chains_of()], "levels_off": 0.051}, (), "watch", FARTHEST),
    ({"convergence": [chains_of()], "levels_off": 0.151}, (), "bad", FARTHEST),
    (
        {"convergence": [chains_of()], "telling_pairs": 0.59},
        (),
        "watch",
        "pairs of columns above the noise",
    ),
    (
        {"convergence": [chains_of()], "solver_arrived": False},
        (),
        "watch",
        "table of maximum entropy",
    ),
]


@pytest.mark.parametrize(("diagnostics", "bfmi", "level", "broken"), RULES)
def test_a_rule_that_is_broken_is_named_and_no_other(diagnostics, bfmi, level, broken):
    assert judged(diagnostics, bfmi) == (level, {broken} - {None})


@pytest.mark.parametrize("entries", [1, 9, 40, 500, 5_000])
def test_noisy_statistics_outside_are_counted_against_chance(entries):
    # more than so many have a probability of at most CHANCE
    allowed = int(stats.binom.isf(CHANCE, entries, 0.05))
    for outside, level in ((allowed, "good"), (allowed + 1, "watch")):
        known = {
            "counts": {
                "entries": entries,
                "outside": min(outside, entries) / entries,
                "smallest_p": 0.01,
                "furthest": 0.0,
            }
        }
        if outside <= entries:
            assert (
                judged({"posterior": posterior_of(predictive=known, records=None)})[0]
                == level
            )
    # one that is far off is enough
    for furthest, level in ((3.0, "good"), (9.0, "watch")):
        known = {
            "counts": {
                "entries": 9,
                "outside": 1 / 9,
                "smallest_p": 0.02,
                "furthest": furthest,
            }
        }
        assert (
            judged({"posterior": posterior_of(predictive=known, records=None)})[0]
            == level
        )


def compared_of(error: float) -> Any:
    content = facts_of(impossible=())
    content["margin_errors"] = [
        {"columns": ["voted"], "standard_error": error},
        {"columns": ["voted", "age"], "standard_error": 2 * error},
        {"columns": ["region"], "standard_error": 0.0},
    ]
    facts = PrivacyDocument.model_validate(content)
    run = RunDocument.model_validate(run_of(content) | {"n_records": 1000})
    return noise.margin_errors(facts, run), run


def test_expected_distances_are_those_by_simulation():
    """Monte Carlo error of the mean of 20,000 draws is below 1 %."""
    found, run = compared_of(30.0)
    assert found.n_records == 1000
    row = {row.column: row for row in found.one_way}["voted"]
    shares = np.array(
        next(
            margin.table
            for margin in run.comparison.one_way
            if margin.column == "voted"
        )
    )
    rng = np.random.default_rng(2)
    spread = np.sqrt(0.03**2 + shares * (1 - shares) / 1000)
    simulated = np.abs(rng.normal(0, spread, (20_000, 2))).sum(axis=1).mean() / 2
    assert row.expected == pytest.approx(simulated, rel=0.03)
    # what a forgotten cell would give
    assert row.expected != pytest.approx(simulated / 2, rel=0.03)
    assert row.share == 0.03
    assert found.two_way.largest == "voted and age"
    assert found.two_way.largest_error == 60
    assert found.two_way.expected > row.expected


def test_margins_far_beyond_their_noise_are_watched():
    for times, level in ((0.99, "good"), (1.01, "watch")):
        found = 0.01 * NOISE_FACTOR * times
        row = noise.ColumnError(
            column="x", standard_error=1.0, share=0.1, expected=0.01, found=found
        )
        made = noise.MarginErrors(n_records=9, one_way=[row], two_way=None)
        assert judged({}, sampling="exact", compared=made)[0] == level


def test_releases_without_stated_errors_have_no_comparison():
    facts = facts_of()
    run = RunDocument.model_validate(run_of(facts))
    assert noise.margin_errors(PrivacyDocument.model_validate(facts), run) is None


# Records drawn from the model


def check_of(theta: float, y: np.ndarray, draws: int = 40) -> tuple[Any, Any]:
    blueprint = Blueprint(Source(normal, "normal"), WIDE)
    posterior = xr.Dataset({"theta": (("chain", "draw"), np.full((1, draws), theta))})
    return check_records(
        blueprint, posterior, {"y": y}, np.ones(len(y), dtype=np.int64)
    )


def test_records_like_the_models_are_near_and_others_are_not():
    """Seeded. p of a right model is uniform on 1/21 ... 1, so a right one is called far
    with probability 5 %.
    """
    y = np.random.default_rng(8).normal(0, 1, 600)
    near, groups = check_of(0.0, y)
    column = near["columns"][0]
    assert (near["draws"], near["records"]) == (20, 600)
    assert column["p"] > 1 / 21
    assert column["distance"] - column["typical"] < OFF
    assert groups["posterior_predictive"]["column_0"].shape == (1, 20, 30)
    assert float(groups["observed_data"]["column_0"].sum()) == pytest.approx(1)
    far, _ = check_of(1.0, y)
    assert far["columns"][0]["p"] == 1 / 21
    assert far["columns"][0]["distance"] - far["columns"][0]["typical"] > OFF


def test_distances_are_those_by_hand():
    found = compare(np.array([1.0, 0.0]), np.array([[0.5, 0.5], [0.7, 0.3]]))
    assert found == {
        "distance": pytest.approx(0.4),
        "typical": pytest.approx(0.1),
        "p": 1 / 3,
    }


@pytest.mark.parametrize(
    ("column", "edges"),
    [
        ({"levels": ["a", "b"]}, [-0.5, 0.5, 1.5]),
        ({"lower": 3, "upper": 5, "integer": True}, [2.5, 3.5, 4.5, 5.5]),
        ({"lower": 1, "upper": 100, "scale": "log"}, np.geomspace(1, 100, 31)),
        ({"lower": 0, "upper": 90, "integer": True}, np.linspace(0, 90, 31)),
    ],
)
def test_bins_are_public(column, edges):
    np.testing.assert_allclose(bin_edges(Column.model_validate(column)), edges)


@pytest.mark.parametrize(
    ("lower", "upper"), [(1, 1000), (1, 50), (100, 300_000), (3, 300)]
)
def test_what_lies_at_a_bound_is_in_a_bin(lower, upper):
    # through the logarithm and back these bounds come out too small, or too large
    column = Column(lower=lower, upper=upper, scale="log")
    edges = bin_edges(column)
    assert (edges[0], edges[-1]) == (lower, upper)
    assert (
        predicted_records._shares(
            np.array([lower, upper], dtype=float), column, edges
        ).sum()
        == 1
    )


def test_a_check_that_fails_stops_nothing_and_tells_no_value():
    def fragile(data: Columns, schema: Schema) -> Any:
        if data.n_records == 7:  # as many as the table has
            raise ValueError(f"value {SENTINEL}")
        return normal(data, schema)

    blueprint = Blueprint(Source(fragile, "fragile"), WIDE)
    likelihood, counts = RecordLikelihood(blueprint.model), np.ones(7, dtype=np.int64)
    records = InspectedRecords(
        likelihood=likelihood,
        values={"y": np.zeros(7)},
        counts=counts,
        blueprint=blueprint,
    )
    tree = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"theta": (("chain", "draw"), np.zeros((1, 30)))})}
    )
    posterior = Posterior(
        tree=tree,
        released=[{"theta": np.zeros(())}],
        facts={"sampler": "grid"},
        independent=True,
    )
    facts, _ = inspect(records, posterior)
    assert facts["posterior"]["records"] == {"failed": "InputError"}
    assert str(SENTINEL) not in json.dumps(facts)


# Pages


def tree_of(slow: float = 0.0) -> xr.DataTree:
    """Return a tree as a release by NUTS stores it; ``slow``: how much an energy
    depends on the one before.
    """
    rng = np.random.default_rng(4)
    energy = rng.normal(0, 1, (CHAINS, DRAWS))
    for draw in range(1, DRAWS):
        energy[:, draw] = (
            slow * energy[:, draw - 1] + np.sqrt(1 - slow**2) * energy[:, draw]
        )
    edges = np.linspace(17.5, 97.5, 11)
    shares = rng.dirichlet(np.ones(10), 20)
    stored = {
        "posterior": xr.Dataset(
            {
                "b": (
                    ("chain", "draw", "k"),
                    rng.normal(0, 1, (CHAINS, DRAWS, 2)) + SENTINEL,
                )
            }
        ),
        "sample_stats": xr.Dataset(
            {
                "energy": (("chain", "draw"), energy),
                "diverging": (("chain", "draw"), energy > 9),
            }
        ),
        "posterior_predictive": xr.Dataset(
            {"column_0": (("chain", "draw", "bin_0"), shares[None])}
        ),
        "observed_data": xr.Dataset(
            {"column_0": (("bin_0",), shares[0]), "edges_0": (("edge_0",), edges)}
        ),
    }
    return xr.DataTree.from_dict(stored)


def folder_of(tmp_path: Path, tree: xr.DataTree | None = None, **changes: Any) -> Path:
    facts = facts_of(sampling="mcmc")
    run = run_of(facts) | {"diagnostics": {"posterior": posterior_of(**changes)}}
    folder = write_folder(tmp_path / "release", facts, run)
    write_tree(
        tree_of() if tree is None else tree, folder / "confidential" / "diagnostics"
    )
    return folder


def section_of(report: str) -> str:
    return report[
        report.index('<section id="diagnostics"') : report.index(
            '<section id="utility"'
        )
    ]


def test_the_page_shows_energy_ranks_and_prediction_and_keeps_them_inside(tmp_path):
    folder = folder_of(tmp_path)
    card, report = pages(folder)
    section = section_of(report)
    drawn = (
        "Ranks of b[0]",
        "Ranks of b[1]",
        "How energies and their",
        "Draws of b[0] and b[1]",
    )
    for phrase in ("BFMI, smallest", "Do the chains agree?", *drawn):
        assert phrase in section
        assert phrase not in card
    for phrase in (
        "All 10 checks passed.",
        "Could the model have given these records?",
        "Shares of age in the table",
    ):
        assert phrase in section
    assert {path.name for path in (folder / "public").iterdir()} == {
        "privacy.json",
        "card.html",
    }
    assert "7.65" not in card
    pictures = section.split("<svg ")[1:]
    # draws of two parameters and their pair, ranks, energies, one column
    assert len(pictures) == 2 + 1 + 2 + 1 + 1
    assert "prior" not in section
    assert max(len(picture.partition("</svg>")[0]) for picture in pictures) < 60_000
    # no stand-in colour is left, so that dark pages have their own
    assert "#0201" not in section


def test_priors_and_the_pairs_with_the_largest_correlations_are_drawn(tmp_path):
    rng, tree = np.random.default_rng(8), tree_of()
    b = rng.normal(0, 1, (CHAINS, DRAWS, 4))
    b[..., 2] = 0.1 * b[..., 2] - b[..., 1]
    b[..., 3] = 5.0  # never moves
    tree["posterior"] = xr.DataTree(xr.Dataset({"b": (("chain", "draw", "k"), b)}))
    tree["prior"] = xr.DataTree(
        xr.Dataset({"b": (("chain", "draw", "k"), rng.normal(0, 4, (1, 5_000, 4)))})
    )
    diverging = np.zeros((CHAINS, DRAWS), bool)
    diverging[0, :3] = True
    tree["sample_stats"] = xr.DataTree(
        xr.Dataset({"diverging": (("chain", "draw"), diverging)})
    )
    row = posterior_of()["parameters"][0]
    folder = folder_of(
        tmp_path, tree, parameters=[row | {"name": f"b[{k}]"} for k in range(4)]
    )
    section = section_of(pages(folder)[1])
    assert re.findall(
        r"Draws of b\[(\d)\] and b\[(\d)\]; diamonds: 3 "
        r"div",
        section,
    )[0] == ("1", "2")
    assert section.count("diamonds: 3 divergent draws") == 3
    assert "<span>r = \N{MINUS SIGN}0.99" in section
    found = [
        float(each)
        for each in re.findall(
            r"sd ([\d.]+)\N{NARROW NO-BREAK SPACE}% of prior", section
        )
    ]
    assert found == pytest.approx([25, 25, 25, 0], abs=2)
    assert section.count("filled: the prior") == 4


def test_energies_are_weighed_as_by_hand():
    kept = chains.energies(tree_of()["sample_stats"].to_dataset())
    energy = kept["energy"].to_numpy()
    by_hand = (np.diff(energy, axis=1) ** 2).mean(axis=1) / energy.var(axis=1)
    # ArviZ divides by other numbers of draws
    assert chains.bfmi(kept) == pytest.approx(by_hand, rel=0.02)
    assert chains.energies(kept.assign(energy=kept["energy"] * 0)) is None
    assert chains.energies(None) is None


def test_chains_that_agree_stay_in_the_band_and_one_elsewhere_leaves_it():
    """The band holds all chains with probability 0.99; seeded. The twin's fourth chain
    is half a deviation away.
    """
    lower, upper = chains._band(200, CHAINS)
    x = np.linspace(0, 1, len(lower))
    draws = np.random.default_rng(6).normal(0, 1, (CHAINS, 200))
    for shift, stays in ((0.0, True), (0.5, False)):
        lines = chains._differences(draws + shift * np.array([0, 0, 0, 1])[:, None], x)
        assert bool(((lines >= lower - 1e-9) & (lines <= upper + 1e-9)).all()) is stays


@pytest.mark.parametrize(
    ("shape", "effective", "stride"),
    [
        ((4, 500), 2000, 2),
        ((4, 200), 800, 1),
        ((4, 500), 400, 5),
        ((4, 500), None, 250),
        ((4, 500), 1e9, 2),
    ],
)
def test_chains_are_thinned_to_their_effective_draws(shape, effective, stride):
    assert chains.stride(shape, effective) == stride


def test_a_folder_with_draws_alone_has_its_report(tmp_path):
    alone = xr.DataTree.from_dict({"posterior": tree_of()["posterior"].to_dataset()})
    section = section_of(pages(folder_of(tmp_path, alone))[1])
    assert "have no energies" in section
    assert "Ranks of b[0]" in section
    assert "BFMI, smallest" not in section


@pytest.mark.parametrize(
    "name",
    ["posterior", "prior", "sample_stats", "posterior_predictive", "observed_data", ""],
)
def test_a_damaged_file_is_one_line(tmp_path, name):
    tree = tree_of()
    if not name:  # a tree of other columns
        tree["observed_data"] = xr.DataTree(
            xr.Dataset({"column_9": (("x",), np.zeros(3))})
        )
    folder = folder_of(tmp_path, tree)
    if name:
        (folder / "confidential" / "diagnostics" / f"{name}.nc").write_bytes(
            b"no netCDF"
        )
    refuses(r"diagnostics is damaged$", pages, folder)


def test_noisy_statistics_are_drawn_and_stay_inside(tmp_path):
    simulated = np.random.default_rng(1).normal(0, 1, (1, 100, 3))
    groups = {"posterior": tree_of()["posterior"].to_dataset()}
    groups["posterior_predictive"] = xr.Dataset(
        {"counts": (("chain", "draw", "e"), simulated)}
    )
    groups["observed_data"] = xr.Dataset(
        {"counts": (("e",), np.array([0.0, 1.0, 9.0]))}
    )
    tree = xr.DataTree.from_dict(groups)
    known = {
        "counts": {"entries": 3, "outside": 1 / 3, "smallest_p": 0.02, "furthest": 9.0}
    }
    changes = {"bounds": None, "records": None, "predictive": known, "sampler": "moves"}
    card, report = pages(folder_of(tmp_path, tree, **changes))
    assert (
        "The 1 noisy numbers furthest from what the posterior predicts; the furthest "
        "is counts, 2"
    ) in section_of(report)
    assert "have no energies" in section_of(report)
    assert "middle 95" not in card


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "\N{GREEK SMALL LETTER ALPHA}",
        "\N{CJK UNIFIED IDEOGRAPH-5E74}",
        "50%25",
        " x",
        "x y",
    ],
)
def test_columns_of_any_name_can_be_stored(tmp_path, name):
    stored = stored_name(f"value_{name}")
    tree = xr.DataTree.from_dict(
        {"pdips": xr.Dataset({stored: (f"{stored} entry", np.arange(3.0))})}
    )
    write_tree(tree, tmp_path / "d")
    found = read_tree(tmp_path / "d")["pdips"].to_dataset()
    assert list(found.data_vars) == [stored]
    assert found[stored].dims == (f"{stored} entry",)


@pytest.mark.slow
def test_an_exact_release_loads_no_library_of_chains(tmp_path):
    facts = facts_of()
    folder = write_folder(tmp_path / "release", facts, run_of(facts))
    code = (
        "import sys; from pathlib import Path; from pdips.report.pages import rewrite;"
        "early = 'matplotlib' in sys.modules; rewrite(Path(sys.argv[1]));"
        "print(early, [name for name in ('arviz_stats', 'arviz_plots', 'pymc', "
        "'numba') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False []"
