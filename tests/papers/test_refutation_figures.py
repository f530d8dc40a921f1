"""The pictures of the page on refutations: drawn by the script, and what they show."""

import re
from pathlib import Path

import numpy as np
import pytest

from pdips_papers import refutation_figures as pictures

FOLDER = Path(__file__).parents[2] / "docs" / "proofs"


def test_the_page_shows_what_the_script_draws(tmp_path):
    page = (FOLDER / "refutations.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\.svg\)", page)
    assert shown == list(pictures.FIGURES)
    assert all((FOLDER / f"{name}.svg").is_file() for name in shown)
    name = "refutations-trees"
    first = pictures.draw(name, tmp_path).read_bytes()
    assert pictures.draw(name, tmp_path).read_bytes() == first


@pytest.mark.parametrize(
    ("curves", "largest"),
    [
        (pictures.of_censoring, 2.0),
        (pictures.of_quantiles, 50.0),
        (pictures.of_trees, 4.0),
        (pictures.of_elections, 4.0),
        (pictures.of_redrawing, 2.0),
    ],
)
def test_more_is_spent_than_is_claimed_and_no_more_than_is_proved(curves, largest):
    shown = curves()
    _, claimed = shown.pop("claimed")
    for _, spent in shown.values():
        assert claimed.max() < spent.max() <= largest + 1e-9
        assert spent.max() > 0.95 * largest or len(shown) > 1


def test_printed_distances_fall_though_they_cannot():
    for columns, distances in pictures.of_margins().values():
        assert columns.tolist() == [2, 3]
        assert distances[1] < distances[0]


def test_the_histogram_s_error_follows_its_bins():
    [(bins, errors)] = pictures.of_bins().values()
    by_bins = dict(zip(bins.tolist(), errors, strict=True))
    # said on the page, of a fixed seed
    assert [round(by_bins[n], 2) for n in (4, 8, 45, 128)] == [0.26, 0.18, 0.07, 0.05]
    assert np.diff(errors)[:-1].max() < 0
