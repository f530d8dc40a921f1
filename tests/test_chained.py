"""kng's lines by Markov chains: what is said, what is refused; and coarse rounds that leave records out."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from pdips import KNG, KNGResidual, Schema, Table
from pdips.convergence import Convergence
from pdips.errors import InputError, RefusedError
from pdips.mechanisms import chained
from pdips.mechanisms.choosing import Exact
from pdips.mechanisms.gradients import UNITS, Entry, Gradient
from pdips.mechanisms.lines import Fitter, Records
from pdips.noise import RandomBits

SCHEMA = Schema.model_validate({"columns": {"x": {"lower": 0, "upper": 10}, "y": {"lower": 0, "upper": 100}}})
FEW = {"quantiles": ("1/4", "1/2"), "slopes": "varying", "scheme": "stepwise", "sampler": "hit-and-run"}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 10, 200)
    return Table(pd.DataFrame({"x": x, "y": 20 + 5 * x + rng.exponential(3, 200)}), SCHEMA)


@pytest.mark.slow
def test_a_release_by_chains_says_so(table):
    mechanism = KNG(epsilon=40, **FEW)
    loss = mechanism.privacy_loss(SCHEMA)
    assert loss.sampling == "mcmc"
    assert "NOTHING CERTIFIES" in loss.statement
    assert KNG(epsilon=40).privacy_loss(SCHEMA).sampling == "exact"
    release, record = mechanism.release(table, rng=np.random.default_rng(2))
    assert [text.split(":")[0] for text in record.diagnostics["convergence"]] == ["passed", "passed"]
    slope = np.polyfit(release.sets[0]["x"], release.sets[0]["y"], 1)[0]
    assert slope == pytest.approx(5, abs=1.5)  # at a budget that leaves hardly any noise


def test_chains_that_disagree_in_every_round_withhold_a_release(table, monkeypatch):
    asked = []
    stuck = Convergence(rhat={"line": 1.3}, ess_bulk={"line": 900.0}, ess_tail={"line": 900.0}, divergences=0)
    monkeypatch.setattr(chained, "converged", lambda _: stuck)
    monkeypatch.setattr(
        chained.ChainFitter, "chains", lambda self, *rest: asked.append(rest[-1]) or np.zeros((4, 9, 2))
    )
    with pytest.raises(RefusedError, match="did not converge"):
        KNG(epsilon=40, **FEW).release(table)
    assert asked == [1, 2, 4]


def test_a_stratum_without_records_has_lines_all_over_the_box():
    nobody = Records(
        outcome=np.zeros(0), predictors=np.zeros((0, 1)), instruments=np.zeros((0, 1), np.int64), lower=0.0, upper=1.0
    )
    fitter = chained.ChainFitter(rng=np.random.default_rng(3))
    lines = fitter.chains(nobody, Fraction(1, 2), Fraction(1), None, None, 1)
    assert lines.shape == (4, 500, 2)
    # lines within [0, 1] at both ends of the box: b_0 is triangular about 1/2
    assert lines[..., 0].std() == pytest.approx(np.sqrt(1 / 24), rel=0.1)  # 2,000 nearly independent draws


def test_what_chains_cannot_do():
    with pytest.raises(InputError, match="exact"):
        KNG(epsilon=1, variant="published", sampler="hit-and-run")
    public = {"columns": {"x": {"lower": 0, "upper": 10, "public": True}, "y": {"lower": 0, "upper": 100}}}
    given = Table(pd.DataFrame({"x": [1.0, 2, 3], "y": [1.0, 2, 3]}), Schema.model_validate(public))
    with pytest.raises(InputError, match="no law"):
        KNG(epsilon=1, **FEW).law(given)


def test_coarse_rounds_leave_records_out_and_the_last_reads_all(monkeypatch):
    read = []
    choose = Fitter.choose

    def noting(self, records, *rest, **more):
        read.append(len(records.outcome))
        return choose(self, records, *rest, **more)

    monkeypatch.setattr(Fitter, "choose", noting)
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (4_000, 1))
    units = np.rint(x * UNITS).astype(np.int64)
    outcome = 50 + 20 * x[:, 0] + rng.laplace(0, 1, 4_000)
    records = Records(outcome=outcome, predictors=x, instruments=units, lower=0.0, upper=100.0)
    line = Fitter().search(records, Fraction(1, 2), Fraction(100), Exact(RandomBits(rng), keep=0.1))
    assert read[0] == pytest.approx(400, abs=100)  # 5 standard deviations: once in two million seeds
    assert read[1] == 4_000
    assert line == pytest.approx([50, 20], abs=0.5)
    read.clear()
    Fitter().search(records, Fraction(1, 2), Fraction(1), Exact(RandomBits(rng)))
    assert read == [4_000, 4_000]


@pytest.mark.parametrize("tau", [Fraction(1, 2), Fraction(99, 100), Fraction(1, 10)])
@pytest.mark.parametrize("slope", [False, True])
def test_one_entry_moves_by_its_sensitivity_and_no_more(tau, slope):
    entry, ends = Entry(tau, slope), (-UNITS, 0, UNITS) if slope else (UNITS,)
    a, q = tau.numerator, tau.denominator
    parts = [(q - a) * z if below else -a * z for z in ends for below in (True, False)]
    assert entry.sensitivity("add-remove") == max(map(abs, parts))
    assert entry.sensitivity("replace-one") == max(b - c for b in parts for c in parts)
    below, total = np.array([3 * UNITS]), 5 * UNITS
    assert entry.steps(below, total) == abs(q * 3 * UNITS - a * 5 * UNITS)


@pytest.mark.parametrize("norm", ["hull", "linf", "l1"])
def test_nats_of_a_unit_are_those_of_its_steps(norm):
    gradient = Gradient(Fraction(3, 4), 2, norm)
    below, total = np.array([2, -1, 1]) * UNITS, np.array([3, 0, 1]) * UNITS
    g = np.abs(below - 0.75 * total) / UNITS
    size = {"linf": g.max(), "l1": g.sum(), "hull": g[0] + max(g[1:].max() - g[0], 0) / 1.5}[norm]
    steps, unit = gradient.steps(below[None], total)[0], gradient.unit(Fraction(1), "replace-one")
    assert gradient.nats(Fraction(1), "replace-one") * size == pytest.approx(float(steps * unit))


def test_many_predictors_are_found_one_by_one():
    rng = np.random.default_rng(5)
    names = [f"x{k}" for k in range(6)]
    x = rng.uniform(0, 1, (4_000, 6))
    slopes = np.array([5.0, -4, 3, 2, 0, 6])
    y = 30 + x @ slopes + rng.laplace(0, 1, 4_000)
    columns = {name: {"lower": 0, "upper": 1, "public": True} for name in names} | {"y": {"lower": 0, "upper": 100}}
    frame = pd.DataFrame(dict(zip(names, x.T, strict=True)) | {"y": y})
    made = (
        KNGResidual(epsilon=20).release(Table(frame, Schema.model_validate({"columns": columns})), rng=rng)[0].sets[0]
    )
    design = np.column_stack([np.ones(len(made)), made[names]])
    found = np.linalg.lstsq(design, made["y"], rcond=None)[0]
    assert found[1:] == pytest.approx(slopes, abs=0.6)


def test_a_column_by_itself_has_the_bins_of_the_schema():
    edges = [20, 30, 40, 50, 65]
    schema = Schema.model_validate(
        {"columns": {"age": {"lower": 20, "upper": 65, "integer": True, "bin_edges": edges}}}
    )
    ages = np.repeat([22, 34, 47, 60], [100, 300, 200, 400])
    release, _ = KNGResidual(epsilon=50).release(Table(pd.DataFrame({"age": ages}), schema))
    found = np.histogram(release.sets[0]["age"], [20, 30, 40, 50, 66])[0]
    assert found == pytest.approx([100, 300, 200, 400], abs=20)
    assert release.sets[0]["age"].between(20, 65).all()


def test_joint_quantiles_that_rounding_would_eat_up_are_refused_before_anything_is_spent():
    mechanism = KNG(epsilon="1/400000000", scheme="joint")
    with pytest.raises(InputError, match="too small for scheme = joint"):
        mechanism.spends(SCHEMA)
    assert len(KNG(epsilon="1/1000", scheme="joint").spends(SCHEMA)) == 2
