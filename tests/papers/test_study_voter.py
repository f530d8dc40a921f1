"""The voter study: reading the table, the paper's table 3, ranks, the regression as R
fits it, a tiny run.
"""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from tables import cases, refuses

from pdips import Table, registry
from pdips_papers import find
from pdips_papers.harness.study import Options
from pdips_papers.steps import voter_2018 as earlier
from pdips_papers.steps import voter_table as voters
from pdips_papers.steps.as_printed import AsRunSteps
from pdips_papers.steps.voter import (
    COEFFICIENTS,
    EPSILONS,
    Voter,
    firth_fit,
    glm_fit,
    irls,
    load,
    mechanism,
    overlaps,
    paper_figures,
    ranks,
)


def simulated(n: int, seed: int) -> pd.DataFrame:
    """Draw codes in the voter schema: nobody votes without being registered."""
    rng = np.random.default_rng(seed)
    codes = {
        name: rng.integers(column.n_levels, size=n)
        for name, column in voters.voter_schema().columns.items()
    }
    codes["registered"] = rng.integers(2, size=n)
    codes["voted"] = codes["registered"] * (
        rng.random(n) < 0.3 + 0.4 * codes["college"]
    )
    return pd.DataFrame(codes)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("voter") / "voter.parquet"
    simulated(1500, 1).to_parquet(file)
    return file


def test_codes_and_levels_and_names_of_the_paper_read_alike(path, tmp_path):
    by_code = voters.read_voter(path)
    schema = voters.voter_schema()
    spelt = pd.DataFrame(
        {column.label: by_code.frame[name] for name, column in schema.columns.items()}
    )
    spelt.assign(weight=1).to_csv(tmp_path / "spelt.csv", index=False)
    simulated(1500, 1).to_csv(tmp_path / "codes.csv", index=False)
    for file in ("spelt.csv", "codes.csv"):
        again = voters.read_voter(tmp_path / file)
        assert list(again.codes) == list(schema.columns)
        assert all(
            (again.codes[name] == by_code.codes[name]).all() for name in schema.columns
        )


def test_a_wrong_table_is_refused_without_showing_a_value(tmp_path):
    study, path, frame = find("voter"), tmp_path / "t.csv", simulated(50, 2)
    for wrong, message in (
        (
            frame.assign(voted=1, registered=0),
            "impossible: voted = yes, registered = no",
        ),
        (
            frame.drop(columns="income"),
            r"lacks a column 'income' \(or 'Family "
            r"Income'\).*these 15: voted, prereg_st",
        ),
        (
            frame.assign(age=[77, *frame["age"][1:]]),
            "column 'age' .* must hold 18, 19, 20, 21, 22; or 0 to 4",
        ),
    ):
        wrong.to_csv(path, index=False)
        assert "77" not in refuses(
            message, study.tasks, Options(replicates=1, data=path)
        )


def test_printed_ranks_and_scores_are_those_of_the_figures_but_for_misprints():
    found, wrong_scores = [], set()
    for power, group in voters.paper_table().groupby("log_epsilon"):
        mine = group.set_index("method")
        ours = ranks(mine[list(voters.MEASURES)].rename(columns=voters.MEASURES))
        for key, label in voters.MEASURES.items():
            for method in voters.PAPER_METHODS:
                printed, computed = (
                    int(mine.loc[method, f"{key}_rank"]),
                    int(ours.loc[method, label]),
                )
                if printed != computed:
                    found.append((power, method, key, printed, computed))
        # The printed scores are the sums of the printed ranks, misprints included.
        printed_sum = mine[[f"{key}_rank" for key in voters.MEASURES]].sum(axis=1)
        assert (printed_sum == mine["score"]).all()
        wrong_scores |= {
            (power, method)
            for method in voters.PAPER_METHODS
            if ours.loc[method, voters.SCORE] != mine["score"][method]
        }
    assert sorted(found) == sorted(cases(__file__, "misprinted_ranks"))
    assert wrong_scores == {(power, method) for power, method, *_ in found}


def test_printed_categories_of_p_values_say_the_same_as_the_printed_rates():
    counts = voters.paper_table()[list(voters.P_VALUES)].to_numpy().reshape(-1, 4, 4)
    # the same 105 pairs on the table itself
    assert (counts.sum(axis=2) == [89, 1, 4, 11]).all()
    off = {}
    for size, level in ((1, 1), (2, 5), (3, 10)):
        alike = counts[:, :size, :size].sum(axis=(1, 2)) + counts[:, size:, size:].sum(
            axis=(1, 2)
        )
        wrong = (
            np.abs(alike / 105 - voters.paper_table()[f"consistency_{level}"]) > 0.0006
        )
        off[level] = int(wrong.sum())
    # STEPS-3 at e^2: 43 of 105 in table 9, 0.400 in table 3
    assert off == {1: 1, 5: 0, 10: 0}


def test_ranks_by_hand():
    ks, rate = voters.MEASURES["ks_distance"], voters.MEASURES["consistency_1"]
    assert set(voters.SMALLER_IS_BETTER) == {"ks_distance"}
    found = ranks(
        pd.DataFrame(
            {ks: [0.9, 0.50004, 0.5], rate: [0.2, 0.2, 0.7]}, index=["a", "b", "c"]
        )
    )
    assert found[ks].tolist() == [3, 1, 1]  # equal to three decimals: both are first
    assert found[rate].tolist() == [2, 2, 1]
    assert found[voters.SCORE].tolist() == [5, 3, 2]


def test_glm_stops_where_r_does_and_is_maximum_likelihood_where_that_exists():
    # glm(y ~ x, binomial) in R for x = y = 0, 1, three times each: -24.57 (75639.11),
    # 49.13 (106969.85)
    x, y = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([0.0, 1.0])
    estimate, error, converged = irls(x, y, np.array([3.0, 3.0]))
    assert converged
    np.testing.assert_allclose(estimate, [-24.57, 49.13], atol=0.01)
    np.testing.assert_allclose(error, [75639.11, 106969.85], rtol=1e-3)
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    y = (rng.random(300) < 1 / (1 + np.exp(-x @ [0.2, 1.0, -0.5]))).astype(float)
    estimate, error, converged = irls(x, y, np.ones(300))
    reference = sm.GLM(y, x, family=sm.families.Binomial()).fit(tol=1e-10)
    assert converged
    np.testing.assert_allclose(estimate, reference.params, rtol=1e-5)
    np.testing.assert_allclose(error, reference.bse, rtol=1e-3)


def test_regression_has_the_papers_coefficients(path):
    table = voters.read_voter(path)
    glm, firth = (
        glm_fit(table.frame, table.schema),
        firth_fit(table.frame, table.schema),
    )
    assert len(glm.names) == len(firth.names) == 32
    assert set(COEFFICIENTS.values()) <= set(glm.names) & set(firth.names)
    place = glm.names.index("registered[yes]")
    # separated: glm's error means nothing
    assert glm.standard_errors[place] > 20 > 5 > firth.standard_errors[place]
    unaffected = [glm.names.index("college[yes]"), glm.names.index("age")]
    np.testing.assert_allclose(
        glm.estimates[unaffected], firth.estimates[unaffected], atol=0.15
    )
    assert overlaps(glm, [glm, glm]) == pytest.approx(
        {"all": 1, "prereg": 1, "registered": 1, "interaction": 1}, abs=0.01
    )


@pytest.mark.parametrize(
    ("method", "loss"),
    [("flat Laplace", 2), ("STEPS-2", 3), ("STEPS-3", Fraction(8, 3))],
)
def test_text_says_what_published_rows_really_spend(method, loss):
    scales = [
        step.scale
        for step in mechanism(method, "published", "1")
        .plan(voters.voter_schema())
        .steps
    ]
    # Replacing a record changes two counts of each noised layer by 1; five sets of
    # their own.
    assert 5 * sum(2 / scale for scale in scales) == loss
    assert (f"{float(loss):.3g} epsilon" if loss != 2 else "2 epsilon") in find(
        "voter"
    ).text()


def test_sound_rows_spend_what_they_say():
    for method in voters.PAPER_METHODS:
        built = mechanism(method, "sound", "1")
        assert built.privacy_loss(voters.voter_schema()).kind == "pure"
        assert sum(spend.epsilon for spend in built.spends(voters.voter_schema())) == 1


@pytest.mark.slow
def test_tiny_run(path, studied):
    study = Voter(cases=(("flat Laplace", "published"), ("STEPS-2", "sound")))
    _, table, page = studied(study, Options(replicates=1, data=path, epsilons=("1",)))
    rows = {
        "log epsilon = 0: flat Laplace (published)",
        "log epsilon = 0: STEPS-2 (sound)",
        voters.RESAMPLE,
    }
    assert rows <= set(table["row"])
    values = table.set_index(["row", "column"])
    for row in rows:
        for label in voters.MEASURES.values():
            assert 0 <= values.loc[(row, label), "ours"] <= 1
    laplace = values.loc["log epsilon = 0: flat Laplace (published)"]
    assert laplace.loc[voters.MEASURES["ks_distance"], "paper"] == 0.968
    assert laplace.loc[voters.SCORE, "paper"] == 21
    # the only published row is first in all
    assert laplace.loc[voters.SCORE, "ours"] == 8
    assert 8 <= laplace.loc[voters.SCORE + voters.AMONG_ALL, "ours"] <= 16
    assert (
        values.loc[(voters.RESAMPLE, voters.MEASURES["ks_distance"]), "ours"]
        < laplace.loc[voters.MEASURES["ks_distance"], "ours"]
    )
    rate = voters.MEASURES["consistency_5"]
    assert values.loc[(voters.NEVER, rate), "ours"] + values.loc[
        (voters.ALWAYS, rate), "ours"
    ] == pytest.approx(1)
    assert "Inside only" in page
    assert page.count('<svg class="picture"') == 16  # 8 measures, published and sound
    assert Voter().findings(table) == []  # claims are about all six methods


def test_findings_read_the_papers_own_table_as_the_paper_does():
    rows = [
        {
            "row": row,
            "column": column,
            "ours": value,
            "standard_error": math.nan,
            "paper": value,
        }
        for (row, column), value in paper_figures().items()
    ]
    assert [finding.verdict for finding in Voter().findings(pd.DataFrame(rows))] == [
        "holds"
    ] * 5


# The simulated table: shares that the paper prints, the structural zero, sparseness


def test_shares_and_sparseness_are_the_papers_and_nobody_votes_unregistered():
    frame = voters.simulated_voters(rng=np.random.default_rng(0))
    table = Table(frame, voters.voter_schema())  # refuses the impossible combination
    assert list(frame) == list(voters.voter_schema().columns)
    assert len(frame) == voters.N_RECORDS
    for name, percentages in voters.PERCENTAGES.items():
        shares = (
            np.bincount(table.codes[name], minlength=len(percentages))
            / voters.N_RECORDS
        )
        assert shares == pytest.approx(
            np.array(percentages) / sum(percentages), abs=1.5 / voters.N_RECORDS
        )
    assert set(frame.loc[frame["voted"] == "yes", "registered"]) == {"yes"}
    # Bowen et al. (2021), table 2: 21,329 of 1,290,240 cells hold somebody, 14,061 of
    # them one
    sizes = frame.groupby(list(frame), observed=True).size()
    assert 17_000 < len(sizes) < 26_000
    assert 11_000 < (sizes == 1).sum() < 18_000


@pytest.mark.slow
def test_without_a_table_tasks_run_on_the_simulated_one():
    tasks = Voter(cases=(("flat Laplace", "published"),)).tasks(
        Options(replicates=1, epsilons=("1",))
    )
    assert all("data" not in task.arguments for task in tasks)
    assert load(None).table.n_records == voters.N_RECORDS


# The earlier paper


def test_trees_of_the_earlier_study_are_read_off_a_release():
    table = load(None).table
    root = earlier.first_column(table, {})
    mechanism = registry.find("steps")(
        epsilon=1_000_000, n_sets=1, layers=2, elect="node"
    )
    made = mechanism.release(table, rng=np.random.default_rng(0))[0]
    found = earlier.agreement(table, made.statistics)
    # next to no noise
    assert found == {
        f"{earlier.TREE}first layer": 1.0,
        f"{earlier.TREE}second layer": 1.0,
    }
    # AIC doesn't put income on top, whatever the paper's table 3 has there
    assert root != earlier.ROOT
    other = {
        key: frame.rename(columns={root: "x", "age": root}).rename(columns={"x": "age"})
        for key, frame in made.statistics.items()
    }
    assert earlier.agreement(table, other)[f"{earlier.TREE}first layer"] == 0.0


def noise_scales(row: str) -> list[float]:
    """Return the scales of a row's noise, from the top, at a total of 2."""
    plan = earlier.mechanism_of(row, Fraction(2)).plan(voters.voter_schema())
    return [float(step.scale) for step in plan.steps if step.counts]


@pytest.mark.parametrize(
    ("row", "upper", "cells", "sound"),
    [
        (earlier.STEPS, 10, 10, "STEPS-2 (sound, half-to-leaves)"),
        (earlier.EQUAL, 7.5, 15, "STEPS-2 (sound, equal)"),
        (earlier.PARTITION, 10, 10, "Random Partition-2 (sound)"),
        ("STEPS-2 (as run, income on top)", 10, 10, "STEPS-2 (sound, equal)"),
        ("STEPS-3 (as run, half-to-leaves)", 15, 10, "STEPS-3 (sound, equal)"),
        (earlier.FLAT, 5, 5, "flat Laplace (sound)"),
    ],
)
def test_rows_as_run_have_the_noise_of_the_paper(row, upper, cells, sound):
    scales = noise_scales(row)
    assert scales == [upper / 2] * (len(scales) - 1) + [cells / 2]
    plan = earlier.mechanism_of(row, Fraction(2)).plan(voters.voter_schema())
    assert plan.kind == "none"
    assert "NO GUARANTEE" in plan.law
    # the broken twin: what sensitivities of 2 need
    assert all(
        right >= 2 * printed
        for right, printed in zip(noise_scales(sound), scales, strict=True)
    )


def test_rows_as_run_take_the_smallest_aic_without_noise(path):
    table = load(str(path)).table
    made = AsRunSteps(epsilon=1, n_sets=1, layers=2, elect="node")
    found = [
        earlier.agreement(
            table, made.release(table, rng=np.random.default_rng(seed))[0].statistics
        )
        for seed in range(3)
    ]
    assert (
        found
        == [{f"{earlier.TREE}first layer": 1.0, f"{earlier.TREE}second layer": 1.0}] * 3
    )
    # the broken twin: elections at a price of a tenth
    noisy = registry.find("steps")(
        epsilon=Fraction(1, 100), n_sets=1, layers=2, elect="node"
    )
    others = [
        earlier.agreement(
            table, noisy.release(table, rng=np.random.default_rng(seed))[0].statistics
        )
        for seed in range(3)
    ]
    assert others != found


def test_printed_signs_of_the_earlier_paper_add_up_to_its_counts():
    printed = earlier.printed()
    for row in earlier.PRINTED_ROWS:
        for power in earlier.ANALYSED:
            place = earlier.row_of(power, row)
            signs = [
                value
                for (at, column), value in printed.items()
                if at == place and column.startswith(earlier.SIGN)
            ]
            assert len(signs) == 16
            assert sum(signs) == printed[place, earlier.SIGNS]


@pytest.mark.slow
def test_a_task_of_the_earlier_study_measures_what_its_tables_have(path):
    arguments = {"data": str(path), "case": earlier.FLAT, "epsilon": EPSILONS[3]}
    found = {
        each["column"]: each["value"] for each in earlier.Voter2018().run(arguments, 1)
    }
    assert 0 <= found[earlier.KS] <= 1
    assert 0 < found[earlier.L1] <= 3000
    assert (
        sum(value for column, value in found.items() if column.startswith(earlier.SIGN))
        == found[earlier.SIGNS]
    )
    assert len([column for column in found if column.startswith(earlier.WIDTH)]) == 32
    assert 0 <= found[earlier.COVERED] <= 32
