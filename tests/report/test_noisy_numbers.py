"""What card and report say where noisy numbers contradict the model."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pdips import Column, Schema, Scores, Table
from pdips.report.noisy_numbers import figures_of_furthest, furthest
from pdips.report.pages import write_card

CONTRADICTION = "The noisy answers contradict the model."
NOT_CALLED = "These intervals are not 95 %."
pytestmark = pytest.mark.usefixtures("quiet")


def tree_of(noisy, deviation=1.0) -> xr.DataTree:
    """Noisy counts of cells, each predicted as normal about 0."""
    cells = [f"pay[{place}, {place + 1})" for place in range(len(noisy))]
    rng = np.random.default_rng(4)
    drawn = deviation * rng.standard_normal((4, 100, len(noisy)))
    dims = ("chain", "draw", "cell")
    coordinates = {"cell": cells}
    predicted = xr.Dataset({"counts": (dims, drawn)}, coordinates)
    published = xr.Dataset({"counts": ("cell", np.asarray(noisy))}, coordinates)
    groups = {"noisy_statistics": predicted, "observed_data": published}
    return xr.DataTree.from_dict(groups)


def test_noisy_numbers_are_named_the_furthest_first():
    tree = tree_of([0.1, 4.0, -5.0, 0.3])
    numbers = furthest(tree)
    assert [number.name for number in numbers] == ["pay[2, 3)", "pay[1, 2)"]
    [(title, figure)] = figures_of_furthest(tree)
    assert title == "furthest off"
    assert "pay[2, 3)" in figure


def test_nothing_is_drawn_where_all_is_as_predicted():
    assert figures_of_furthest(tree_of([0.1, -0.4, 0.9])) == []
    assert figures_of_furthest(tree_of([0.0, 5.0], deviation=0.0)) == []
    assert figures_of_furthest(None) == []


@pytest.mark.parametrize("is_told", [True, False])
def test_the_card_says_at_its_top_that_the_model_is_contradicted(is_told, tmp_path):
    """Of two points under a normal law; of numbers of a normal law it says nothing, at
    this seed as at 19 of 20.
    """
    values = np.tile([1.0, 9.0], 500)
    if not is_told:
        values = np.random.default_rng(2).normal(5, 0.8, 1_000).clip(0, 10)
    schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    table = Table(pd.DataFrame({"pay": values}), schema)
    mechanism = Scores(epsilon=5, model="normal")
    release, _ = mechanism.release(table, rng=np.random.default_rng(3))
    release.publish(tmp_path, allow=["seeded"])
    card = write_card(tmp_path).read_text("utf-8")
    top, _, rest = card.partition("At a glance")
    assert (CONTRADICTION in top) == is_told
    assert (NOT_CALLED in rest) == is_told
