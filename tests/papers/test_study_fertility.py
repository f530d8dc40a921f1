"""The fertility study: a made-up table of the same schema, PrivateSVM's sensitivity, a
tiny run, bad input.
"""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips.data.table import Table
from pdips.privacy.noise import RandomBits
from pdips_papers import find
from pdips_papers.harness.study import Options
from pdips_papers.modips import fertility as forms
from pdips_papers.modips.fertility import PAPER_4, PAPER_5, PAPERS, row_name
from pdips_papers.modips.private_svm import (
    GAP,
    GRID,
    PAPER_SENSITIVITY,
    minimiser,
    sound,
    steps_sensitivity,
    theorem_sensitivity,
)


def made_up(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {
        name: rng.choice(np.array(forms.LEVELS[name]), size=n)
        if name in forms.LEVELS
        else rng.integers(101, size=n) / 100
        for name in forms.ORDER
    }
    return pd.DataFrame(
        columns | {forms.TARGET: np.where(np.arange(n) % 6 == 0, "O", "N")}
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("fertility") / "made_up.csv"
    made_up(60, 1).assign(more=1).to_csv(file, index=False)
    return file


def test_the_table_and_its_split(path):
    table = forms.read_fertility(str(path))
    assert table.n_records == 60
    assert math.prod(len(levels) for levels in forms.LEVELS.values()) == 2_880
    train, test = forms.split(table, np.random.default_rng(0))
    assert (train.n_records, test.n_records) == (48, 12)
    assert (test.frame[forms.TARGET] == "O").sum() == 2  # 15 % of 12
    both = (
        pd.concat([train.frame, test.frame])
        .sort_values(list(forms.ORDER))
        .reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(
        both, table.frame.sort_values(list(forms.ORDER)).reset_index(drop=True)
    )
    x, y = forms.features(table)
    assert x.shape == (60, 9)
    assert np.abs(x).max() <= 1
    assert set(y) == {-1.0, 1.0}
    again, _ = forms.split(table, np.random.default_rng(1))
    assert not again.frame.equals(train.frame)


def test_the_table_of_the_paper_comes_along():
    table = forms.read_fertility(forms.UCI)
    printed = dict(
        zip(
            ("age mean", "age SD", "hours mean", "hours SD"),
            PAPER_5["original"],
            strict=True,
        )
    )
    assert (table.n_records, (table.frame[forms.TARGET] == "O").sum()) == (100, 12)
    assert {
        name: round(value, 2) for name, value in forms.moments(table).items()
    } == printed
    task = find("fertility").tasks(Options(replicates=1))[0]
    # nothing confidential: the folder isn't marked as inside
    assert "data" not in task.arguments


def test_bad_tables_are_refused(tmp_path):
    frame = made_up(60, 1)
    for name, bad, message in (
        ("lacks", frame.drop(columns="smoking"), "lacks a column 'smoking'"),
        ("level", frame.assign(alcohol=0.3), "alcohol"),
        ("bounds", frame.assign(age=1.5), "age"),
        ("gap", frame.assign(hours_sitting=np.nan), "hours_sitting"),
        ("single", frame.assign(diagnosis="N"), "both"),
        ("few", frame.head(12), "at least 20 records"),
    ):
        bad.to_csv(tmp_path / f"{name}.csv", index=False)
        said = refuses(
            message,
            find("fertility").tasks,
            Options(replicates=1, data=tmp_path / f"{name}.csv"),
        )
        assert "1.5" not in said


def test_distances_by_hand_and_bounds(path):
    table = forms.read_fertility(str(path))
    assert forms.distances(table, table) == dict.fromkeys(forms.TVD.values(), 0.0)
    apart = forms.distances(
        table,
        Table(table.frame.assign(smoking=table.frame["smoking"].iloc[0]), table.schema),
    )
    shares = table.frame["smoking"].value_counts(normalize=True)
    assert apart[forms.TVD[1]] == pytest.approx(
        2 * (1 - shares[table.frame["smoking"].iloc[0]]) / 8
    )
    made = forms.distances(
        table, Table(forms.even(table, np.random.default_rng(0)), table.schema)
    )
    values = list(made.values())
    assert values == sorted(values)  # a margin is never further apart than its table
    for printed_values in (PAPER_5["MODIPS"][4:], PAPER_5["Laplace sanitizer"][4:]):
        assert list(printed_values) != sorted(printed_values)


def test_confusion_by_hand(path):
    _, test = forms.split(forms.read_fertility(str(path)), np.random.default_rng(0))
    y = forms.features(test)[1]
    normal = forms.confusion(np.full(12, -1.0), test)
    assert normal[forms.RATE] == pytest.approx(100 * 10 / 12)
    assert (normal[forms.BALANCED], normal[forms.AMONG_ALTERED]) == (50, 0)
    assert forms.confusion(y, test)[forms.BALANCED] == 100
    assert sum(
        forms.confusion(y, test)[name] for name in forms.CONFUSION
    ) == pytest.approx(20)


@pytest.mark.parametrize("cost", [0.01, 0.3, 1.0])
def test_the_minimiser_is_one(cost):
    rng = np.random.default_rng(2)
    x, y = rng.uniform(-1, 1, size=(40, 4)), rng.choice([-1.0, 1.0], size=40)
    found = minimiser(x, y, cost)

    def objective(w):
        return 0.5 * w @ w + cost * np.maximum(0, 1 - y * (x @ w)).sum()

    for step in (1e-4, 1e-2, 1):
        for direction in rng.normal(size=(200, 4)):
            assert (
                objective(found)
                <= objective(found + step * direction / np.linalg.norm(direction)) + GAP
            )


def moved_alone(n, p, cost):
    """How far the label of a record moves the weights where all others say nothing."""
    alone = np.vstack([np.zeros((n - 1, p)), np.ones((1, p))])
    first, second = (
        minimiser(alone, np.append(np.ones(n - 1), label), cost)
        for label in (1.0, -1.0)
    )
    return np.abs(first - second).sum()


def test_sensitivity_holds_and_is_attained_and_the_printed_one_is_too_small():
    rng = np.random.default_rng(3)
    n, p = 12, 4
    for cost in (Fraction(1, 12), Fraction(1, 2)):
        bound = steps_sensitivity(cost, p) * float(GRID)
        assert bound == pytest.approx(2 * float(cost) * p, rel=0.02)
        worst = 0.0
        for _ in range(300):
            x, y = np.sign(rng.normal(size=(n, p))), rng.choice([-1.0, 1.0], size=n)
            x[: rng.integers(n)] = 0  # records that say nothing leave the others alone
            other = x.copy()
            other[-1] = np.sign(rng.normal(size=p))
            labels = y.copy()
            labels[-1] *= rng.choice([-1, 1])
            worst = max(
                worst,
                np.abs(
                    minimiser(x, y, float(cost)) - minimiser(other, labels, float(cost))
                ).sum(),
            )
        assert worst <= bound
    moved = moved_alone(n, p, 1 / 12)
    # attained; the theorem's formula is twice that
    assert moved == pytest.approx(2 * p / 12)
    assert theorem_sensitivity(1, n, math.sqrt(p), p) == pytest.approx(2 * moved)
    assert pytest.approx(1.35) == PAPER_SENSITIVITY
    # the printed one is too small
    assert moved_alone(80, 9, 1.0) > 1.4 * PAPER_SENSITIVITY


def test_noise_of_the_sound_form():
    """Laplace of scale s has mean |.| = s; 4,000 draws: relative error 1.6 %, so 10 %
    is six of them.
    """
    x, y = np.zeros((10, 3)), np.ones(10)
    bits = RandomBits(np.random.default_rng(4))
    drawn = np.array([sound(x, y, "1/10", 2, bits) for _ in range(1_000)])
    spread = np.abs(drawn - minimiser(np.column_stack([x, np.ones(10)]), y, 0.1)).mean()
    scale = steps_sensitivity(Fraction(1, 10), 4) * float(GRID) / 2
    assert spread == pytest.approx(scale, rel=0.1)
    assert abs(spread / (2 * scale) - 1) > 0.3  # the theorem's noise would be seen
    assert np.all(drawn / float(GRID) == np.round(drawn / float(GRID)))
    for arguments, message in (((x + 2, y), "features"), ((x, y + 1), "labels")):
        refuses(message, sound, *arguments, 1, 1, bits)


@pytest.mark.slow
def test_a_tiny_run(path, studied):
    study = find("fertility")
    measurements, table, page = studied(study, Options(replicates=2, data=path))
    ours, paper = (
        table.set_index(["row", "column"])[side] for side in ("ours", "paper")
    )
    for form in (*forms.FORMS, *forms.SVMS):
        row = row_name(forms.EPSILONS[0], form)
        assert sum(ours[row, name] for name in forms.CONFUSION) == pytest.approx(20)
        assert 0 <= ours[row, forms.BALANCED] <= 100
    for form in (*forms.FORMS, forms.RESAMPLE, forms.EVEN):
        values = [
            ours[
                form
                if form in (forms.RESAMPLE, forms.EVEN)
                else row_name(forms.EPSILONS[0], form),
                name,
            ]
            for name in forms.TVD.values()
        ]
        assert values == sorted(values)
        assert values[-1] <= 2
    assert ours[forms.MAJORITY, forms.RATE] == pytest.approx(100 * 10 / 12)
    assert paper[forms.ORIGINAL, forms.RATE] == 85
    for method, form in PAPERS.items():
        assert (
            paper[row_name(forms.EPSILONS[0], form), forms.RATE] == PAPER_4[method][4]
        )
    assert "Rubinstein" in page
    found = study.findings(table)
    assert len(found) == 8
    assert "Impossible" in found[5].found
    pictures = study.pictures(measurements, table)
    assert [len(picture.panels) for picture in pictures] == [2, 1]
