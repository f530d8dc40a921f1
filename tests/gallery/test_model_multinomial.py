"""The saturated model for modips: posterior by hand, both likelihoods, both neighbours, all columns, refusals."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pdips import InputError
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.privacy.noise import RandomBits
from pdips.statistics.exact_counts import draw_shares
from pdips.statistics.modips import Modips
from pdips.statistics.noisy_model import Evidence

COLUMNS = {
    "a": {"levels": ["x", "y", "z"], "missing": True},
    "b": {"levels": [0, 1]},
    "c": {"lower": 0.0, "upper": 10.0, "bins": 2},
    "k": {"lower": 0, "upper": 9, "bins": 2, "integer": True},
}
SCHEMA = Schema.model_validate({"columns": COLUMNS})
COIN = Schema.model_validate({"columns": {"b": COLUMNS["b"]}})


def table(n=2_000):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.choice(["x", "y", "z"], n, p=[0.6, 0.3, 0.1]),
            "b": (rng.random(n) < 0.2).astype(int),
            "c": 5 * rng.random(n),
            "k": rng.integers(5, 10, n),
        }
    )
    frame.loc[: n // 4, "a"] = None
    return Table(frame, SCHEMA)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"likelihood": "plug-in"},
        {"kind": "zcdp"},
        {"split": "per-set"},
        {"neighbours": "add-remove", "n_records": 2_000},
        {"neighbours": "add-remove", "n_records": 2_000, "kind": "zcdp"},
    ],
)
def test_sets_are_like_the_table(settings):
    mechanism = Modips(epsilon=20, model="multinomial", n_sets=2, draws=20, **settings)
    release, record = mechanism.release(table(), rng=np.random.default_rng(1))
    assert record.diagnostics["convergence"] == "independent draws"
    assert len(release.sets) == 2
    for made in release.sets:
        assert len(made) == 2_000
        assert abs(made["a"].isna().mean() - 0.25) < 0.06  # 6 standard errors
        assert abs(made["b"].mean() - 0.2) < 0.06
        assert (made["c"] <= 5).mean() > 0.95
        assert made["k"].dtype == np.int64
        assert (made["k"] >= 4.5).mean() > 0.9
    assert not release.sets[0].equals(release.sets[1])


def given(measured_of, likelihood="noise-aware", **settings):
    mechanism = Modips(epsilon="1/2", model="multinomial", likelihood=likelihood, **settings)
    return Evidence(
        mechanism.design(measured_of.schema).sanitize(measured_of, RandomBits(np.random.default_rng(2))), likelihood
    )


def test_a_coin_against_quadrature():
    """4,000 draws and a Kolmogorov-Smirnov test: a right sampler fails with probability 1e-6."""
    coin = Table(table(40).frame[["b"]], COIN)
    known, n = given(coin), 40
    noisy = int(known.measured.values["counts"][0])
    counts = np.arange(n + 1)
    logs = stats.betabinom.logpmf(counts, n, 0.5, 0.5) - np.abs(noisy - counts) * 0.5
    weights = np.exp(logs - logs.max())
    drawn = draw_shares(known, "counts", 0.5, 4_000, np.random.default_rng(3))[:, 0]

    def law(x):
        return (stats.beta.cdf(np.asarray(x)[:, None], 0.5 + counts, 0.5 + n - counts) * weights).sum(
            axis=1
        ) / weights.sum()

    assert stats.kstest(drawn, law).pvalue > 1e-6
    assert stats.kstest(drawn, stats.beta(0.5 + noisy, 0.5 + n - noisy).cdf).pvalue < 1e-9  # as if there were no noise
    plug_in = draw_shares(given(coin, "plug-in"), "counts", 0.5, 4_000, np.random.default_rng(3))[:, 0]
    assert stats.kstest(plug_in, stats.beta(0.5 + noisy, 0.5 + n - noisy).cdf).pvalue > 1e-6


def test_what_the_model_does_not_describe():
    for columns, message in (
        ({"b": {"levels": [0, 1], "public": True}, "a": COLUMNS["a"]}, "public"),
        ({"c": COLUMNS["c"] | {"missing": True}}, "missing numbers"),
        ({"c": {"lower": 0.0, "upper": 1.0}}, "bins"),
    ):
        with pytest.raises(InputError, match=message):
            Modips(epsilon=1, model="multinomial").spends(Schema.model_validate({"columns": columns}))
