"""Several quantile regressions at once by the K-norm gradient density, no line crossing another.

Reimherr & Awan, KNG: the K-norm gradient mechanism, NeurIPS (2019); Tran, Reimherr & Slavkovic, Differentially private
synthetic heavy-tailed data (2023), algorithms 1 and 2 with chains that agree.

    density of b_1, ..., b_m  ~  prod_j base(b_j) exp(-scale norm(sum_i x_i (1{y_i <= x_i'b_j} - tau_j)))
    where x'b_1 <= ... <= x'b_m for all x in [-1, 1]^(p - 1)

Not for --model: the density has no term for each record. `lines_model` is the pm.Model, `sample_lines` draws from it,
and `release_lines` prices, draws and rounds one set of lines.

Schema: a numeric outcome and numeric predictors, moved to [-1, 1] by their bounds.
"""

from fractions import Fraction

import numpy as np
import pymc as pm

from pdips.convergence import converged, require
from pdips.errors import InputError
from pdips.posterior.columns import record_values
from pdips.privacy.loss import PrivacyLoss, Spend, positive
from pdips.quantile.pymc_step import KNormGradientStep, knorm_gradient

FORMS = ("joint", "stepwise", "sandwich")
FINEST = 2**20  # released coefficients are whole multiples of about this part of the outcome's range
STATEMENT = (
    "{n} quantile regression lines from the K-norm gradient density ({form}). Epsilon is that of exact draws. The "
    "lines are rounded last states of Markov chains, whose distance from that law nothing bounds; they were released "
    "because chains agreed, which is itself an observation of the records that no epsilon pays for. Predictors, "
    "bounds, quantiles and settings must not have been chosen from the records."
)


def lines_model(x, y, taus, scale, lower, upper, *, floor=None, ceiling=None, spread=None, norm="hull"):
    """The lines at increasing `taus` as a pm.Model: a variable of shape (p,) for each, in a public box.

    x, shape (records, p), has a first column of ones and values in [-1, 1]; y has the shape (records,). `scale` is in
    nats a unit of the norm: half of a line's epsilon for one exchanged record under the hull norm. `floor` and
    `ceiling` are lines that are public already. The base measure is even, or normal about 0 with standard deviation
    `spread`: 224 in the paper, whose c is 1 / (2 spread^2) = .00001.
    """
    if not len(taus) or list(taus) != sorted(set(taus)):
        raise InputError("taus must increase")
    with pm.Model() as model:
        below = floor
        for tau in taus:
            box = {"lower": lower, "upper": upper, "shape": np.shape(x)[1], "default_transform": None}
            name = name_of(tau)
            beta = pm.Uniform(name, **box) if spread is None else pm.TruncatedNormal(name, 0, spread, **box)
            last = {"ceilings": ceiling} if tau == taus[-1] else {}
            settings = {"tau": float(tau), "scale": scale, "norm": norm, "floors": below, **last}
            knorm_gradient(f"density of {name}", beta, x, y, **settings)
            below = beta
    return model


def name_of(tau):
    return f"line {float(tau):g}"


def sample_lines(model, starts, *, draws=1000, tune=500, rng=None, **settings):
    """Draw lines by hit-and-run, each between its neighbours as they are: a DataTree, which is confidential."""
    with model:
        steps = [KNormGradientStep([variable]) for variable in model.free_RVs]
        quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}
        common = {"chains": len(starts), "initvals": starts, "random_seed": rng}
        return pm.sample(draws, tune=tune, step=steps, **common, **(quiet | settings))


def public_starts(taus, lower, upper, rng, *, chains=4, floor=None, ceiling=None):
    """Starts apart from each other that no record is read for: lines at random heights between the public ones."""
    lower, upper = np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)
    low, high = ((lower + upper) / 2 if line is None else np.asarray(line) for line in (floor, ceiling))
    if floor is None:
        low = np.concatenate([lower[:1], high[1:]])
    if ceiling is None:
        high = np.concatenate([upper[:1], low[1:]])
    heights = np.sort(rng.random((chains, len(taus))), axis=1)
    return [{name_of(tau): low + h * (high - low) for tau, h in zip(taus, each, strict=True)} for each in heights]


def stages_of(taus, form, main=()):
    """Which lines are drawn together, and when: all at once; from the median outwards; or the main ones first."""
    if form not in FORMS:
        raise InputError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "joint":
        return [list(taus)]
    outwards = sorted(taus, key=lambda tau: abs(tau - Fraction(1, 2)))
    first = [tau for tau in outwards if form == "sandwich" and (tau in main or tau == outwards[0])]
    return [[tau] for tau in (*first, *(tau for tau in outwards if tau not in first))]


def release_lines(
    table, outcome, predictors, taus, epsilon, *, form="joint", main=(), spread=None, ledger=None, **settings
):
    """One set of lines as {tau: coefficients}, its price, and the confidential chains of each stage.

    Each line costs epsilon / m for an exchanged record; lines of one stage are drawn together, and stages compose. The
    ledger pays before a record is read. Coefficients are for predictors in [-1, 1], in the outcome's unit. Further
    settings are those of `sample_lines`.
    """
    taus = sorted({Fraction(str(tau)) for tau in taus})
    stages = stages_of(taus, form, {Fraction(str(tau)) for tau in main})
    names, columns = [outcome, *predictors], table.schema.columns
    if unfit := [
        name for name in names if name not in columns or columns[name].is_categorical or columns[name].missing
    ]:
        raise InputError(f"{unfit[0]!r} must be a numeric column of the schema without missing values")
    if not taus or not 0 < taus[0] <= taus[-1] < 1:
        raise InputError("taus must be quantiles inside of (0, 1)")
    if table.schema.records.max_per_person != 1:
        raise InputError("the price is that of one exchanged record, and the schema allows a person several")
    lower, span = float(columns[outcome].lower), float(columns[outcome].upper - columns[outcome].lower)
    p, step = 1 + len(predictors), 2.0 ** np.ceil(np.log2(span / FINEST))
    box = np.array([lower, *[-span] * (p - 1)]), np.array([lower + span, *[span] * (p - 1)])
    epsilon = positive(epsilon, "epsilon")
    scale = np.nextafter(float(epsilon / len(taus) / 2), 0)  # never more than was paid
    loss = PrivacyLoss(
        epsilon=epsilon,
        neighbours="replace-one",
        kind="pure",
        sampling="mcmc",
        statement=STATEMENT.format(n=len(taus), form=form),
    )
    if ledger is not None:
        spends = [Spend(step=name_of(tau), epsilon=epsilon / len(taus)) for tau in taus]
        ledger.charge(
            loss, spends, mechanism="kng_quantile_regression", schema=table.schema, fingerprint=table.fingerprint
        )
    values, rng, lines, trees = record_values(table, names), np.random.default_rng(), {}, []
    x = np.ones((table.n_records, p))
    for j, name in enumerate(predictors, start=1):
        low, high = float(columns[name].lower), float(columns[name].upper)
        x[:, j] = np.clip((2 * values[name] - low - high) / (high - low), -1, 1)
    for stage in stages:
        under, over = ([tau for tau in lines if (tau < stage[0]) == side] for side in (True, False))
        around = {
            "floor": lines[max(under)] if under else None,
            "ceiling": lines[min(over)] if over else None,
        }
        model = lines_model(x, values[outcome], stage, scale, *box, spread=spread, **around)
        trees.append(sample_lines(model, public_starts(stage, *box, rng, **around), rng=rng, **settings))
        require(converged(trees[-1]))
        last = trees[-1]["posterior"].isel(chain=rng.integers(4), draw=-1)
        below = around["floor"]
        for tau in stage:
            lines[tau] = rounded(last[name_of(tau)].to_numpy(), step, below, around["ceiling"])
            below = lines[tau]
    return lines, loss, trees


def rounded(line, step, floor, ceiling):
    """A line on the public grid; where rounding makes it cross a public line it becomes that line."""
    found = step * np.rint(line / step)
    for sign, public in ((1, floor), (-1, ceiling)):
        if public is not None and sign * (found - public)[0] < np.abs((found - public)[1:]).sum():
            return public
    return found
