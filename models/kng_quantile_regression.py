"""Several quantile regressions at once by the K-norm gradient density, no line crossing
another.

Reimherr & Awan, KNG: the K-norm gradient mechanism, NeurIPS (2019); Tran, Reimherr &
Slavkovic, Differentially private synthetic heavy-tailed data (2023), algorithms 1 and 2
with chains that agree.

    density of b_1, ..., b_m  ~  prod_j base(b_j) exp(-scale norm(sum_i x_i (1{y_i <=
    x_i'b_j} - tau_j))) where x'b_1 <= ... <= x'b_m for all x in [-1, 1]^(p - 1)

Not for --model: the density has no term for each record. `lines_model` is the pm.Model,
`sample_lines` draws from it, and `release_lines` prices, draws and rounds one set of
lines.

Schema: a numeric outcome and numeric predictors, moved to [-1, 1] by their bounds.
"""

from fractions import Fraction

import numpy as np
import pymc as pm

from pdips.convergence import converged, require
from pdips.errors import InputError
from pdips.posterior.columns import record_values
from pdips.privacy.account import Request
from pdips.privacy.loss import PrivacyLoss, Spend, positive
from pdips.quantile.pymc_step import KNormGradientStep, knorm_gradient

FORMS = ("joint", "stepwise", "sandwich")
# released coefficients are whole multiples of about this part of the outcome's range
FINEST = 2**20
STATEMENT = (
    "{n} quantile regression lines from the K-norm gradient density ({form}). "
    "Epsilon is that of exact draws. The "
    "lines are rounded last states of Markov chains, whose distance from that law "
    "nothing bounds; they were released "
    "because chains agreed, which is itself an observation of the records that no "
    "epsilon pays for. Predictors, "
    "bounds, quantiles and settings must not have been chosen from the records."
)


def lines_model(
    x,
    y,
    taus,
    scale,
    lower,
    upper,
    *,
    floor=None,
    ceiling=None,
    spread=None,
    norm="hull",
):
    """The lines at increasing `taus` as a pm.Model: a variable of shape (p,) for each,
    in a public box.

    x, shape (records, p), has a first column of ones and values in [-1, 1]; y has the
    shape (records,). `scale` is in nats a unit of the norm: half of a line's epsilon
    for one exchanged record under the hull norm. `floor` and `ceiling` are lines that
    are public already. The base measure is even, or normal about 0 with standard
    deviation `spread`: 224 in the paper, whose c is 1 / (2 spread^2) = .00001.
    """
    if not len(taus) or list(taus) != sorted(set(taus)):
        raise InputError("taus must increase")
    with pm.Model() as model:
        below = floor
        for tau in taus:
            box = {
                "lower": lower,
                "upper": upper,
                "shape": np.shape(x)[1],
                "default_transform": None,
            }
            name = name_of(tau)
            if spread is None:
                beta = pm.Uniform(name, **box)
            else:
                beta = pm.TruncatedNormal(name, 0, spread, **box)
            knorm_gradient(
                f"density of {name}",
                beta,
                x,
                y,
                tau=float(tau),
                scale=scale,
                norm=norm,
                floors=below,
                ceilings=ceiling if tau == taus[-1] else None,
            )
            below = beta
    return model


def name_of(tau):
    return f"line {float(tau):g}"


def sample_lines(model, starts, *, draws=1000, tune=500, rng=None, **settings):
    """Draw lines by hit-and-run, each between its neighbours as they are: a DataTree,
    which is confidential.
    """
    with model:
        steps = [KNormGradientStep([variable]) for variable in model.free_RVs]
        quiet = {
            "progressbar": False,
            "quiet": True,
            "compute_convergence_checks": False,
            "cores": 1,
        }
        common = {"chains": len(starts), "initvals": starts, "random_seed": rng}
        return pm.sample(draws, tune=tune, step=steps, **common, **(quiet | settings))


def public_starts(taus, lower, upper, rng, *, chains=4, floor=None, ceiling=None):
    """Starts apart from each other that no record is read for: lines at random heights
    between the public ones.
    """
    lower = np.asarray(lower, dtype=float)
    upper = np.asarray(upper, dtype=float)
    middle = (lower + upper) / 2
    low = middle if floor is None else np.asarray(floor)
    high = middle if ceiling is None else np.asarray(ceiling)
    if floor is None:
        low = np.concatenate([lower[:1], high[1:]])
    if ceiling is None:
        high = np.concatenate([upper[:1], low[1:]])
    names = [name_of(tau) for tau in taus]
    starts = []
    for heights in np.sort(rng.random((chains, len(taus))), axis=1):
        lines = low + heights[:, None] * (high - low)
        starts.append(dict(zip(names, lines, strict=True)))
    return starts


def stages_of(taus, form, main=()):
    """Which lines are drawn together, and when: all at once; from the median outwards;
    or the main ones first.
    """
    if form not in FORMS:
        raise InputError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "joint":
        return [list(taus)]
    outwards = sorted(taus, key=lambda tau: abs(tau - Fraction(1, 2)))
    first = []
    if form == "sandwich":
        first = [tau for tau in outwards if tau in {*main, outwards[0]}]
    rest = [tau for tau in outwards if tau not in first]
    return [[tau] for tau in (*first, *rest)]


def release_lines(
    table,
    outcome,
    predictors,
    taus,
    epsilon,
    *,
    form="joint",
    main=(),
    spread=None,
    ledger=None,
    **settings,
):
    """One set of lines as {tau: coefficients}, its price, and the confidential chains
    of each stage.

    Each line costs epsilon / m for an exchanged record; lines of one stage are drawn
    together, and stages compose. The ledger pays before a record is read. Coefficients
    are for predictors in [-1, 1], in the outcome's unit. Further settings are those of
    `sample_lines`.
    """
    taus = sorted({Fraction(str(tau)) for tau in taus})
    stages = stages_of(taus, form, {Fraction(str(tau)) for tau in main})
    check(table.schema, [outcome, *predictors], taus)
    epsilon = positive(epsilon, "epsilon")
    loss = paid(table, taus, epsilon, form, ledger)
    scale = np.nextafter(float(epsilon / len(taus) / 2), 0)  # never more than was paid
    box = box_of(table.schema.columns[outcome], len(predictors))
    step = step_of(table.schema.columns[outcome])
    x = design(table, predictors)
    y = record_values(table, [outcome])[outcome]
    rng = np.random.default_rng()
    lines = {}
    trees = []
    for stage in stages:
        around = between(lines, stage)
        model = lines_model(x, y, stage, scale, *box, spread=spread, **around)
        starts = public_starts(stage, *box, rng, **around)
        tree = sample_lines(model, starts, rng=rng, **settings)
        trees.append(tree)
        require(converged(tree))
        last = tree["posterior"].isel(chain=rng.integers(4), draw=-1)
        below = around["floor"]
        for tau in stage:
            below = rounded(last[name_of(tau)], step, below, around["ceiling"])
            lines[tau] = below
    return lines, loss, trees


def paid(table, taus, epsilon, form, ledger):
    """The price of the lines, charged to a ledger if there is one."""
    loss = PrivacyLoss(
        epsilon=epsilon,
        neighbours="replace-one",
        kind="pure",
        sampling="mcmc",
        statement=STATEMENT.format(n=len(taus), form=form),
    )
    if ledger is None:
        return loss
    each = epsilon / len(taus)
    request = Request(
        mechanism="kng_quantile_regression",
        schema=table.schema,
        loss=loss,
        spends=tuple(Spend(step=name_of(tau), epsilon=each) for tau in taus),
    )
    ledger.charge(request, fingerprint=table.fingerprint)
    return loss


def box_of(column, n_predictors):
    """The public box of a line's coefficients, by the bounds of its outcome."""
    lower = float(column.lower)
    span = float(column.upper - column.lower)
    slopes = np.full(n_predictors, span)
    return np.array([lower, *-slopes]), np.array([lower + span, *slopes])


def step_of(column):
    """The power of two that released coefficients are multiples of."""
    span = float(column.upper - column.lower)
    return 2.0 ** np.ceil(np.log2(span / FINEST))


def between(lines, stage):
    """The nearest lines that are public already, below and above those of a stage."""
    under = [tau for tau in lines if tau < stage[0]]
    over = [tau for tau in lines if tau > stage[0]]
    return {
        "floor": lines[max(under)] if under else None,
        "ceiling": lines[min(over)] if over else None,
    }


def check(schema, names, taus):
    """Refuse columns that aren't complete numbers, and quantiles out of range."""
    columns = schema.columns
    for name in names:
        fits = name in columns and not columns[name].is_categorical
        if not fits or columns[name].missing:
            raise InputError(
                f"{name!r} must be a numeric column of the schema "
                f"without missing values"
            )
    if not taus or not 0 < taus[0] <= taus[-1] < 1:
        raise InputError("taus must be quantiles inside of (0, 1)")
    if schema.records.max_per_person != 1:
        raise InputError(
            "the price is that of one exchanged record, and the schema "
            "allows a person several"
        )


def design(table, predictors):
    """A column of ones, and predictors moved to [-1, 1] by their public bounds."""
    values = record_values(table, predictors)
    x = np.ones((table.n_records, 1 + len(predictors)))
    for j, name in enumerate(predictors, start=1):
        low = float(table.schema.columns[name].lower)
        high = float(table.schema.columns[name].upper)
        x[:, j] = np.clip((2 * values[name] - low - high) / (high - low), -1, 1)
    return x


def rounded(line, step, floor, ceiling):
    """A line on the public grid; where rounding makes it cross a public line it becomes
    that line.
    """
    on_grid = step * np.rint(np.asarray(line) / step)
    for sign, public in ((1, floor), (-1, ceiling)):
        if public is None:
            continue
        away = on_grid - public
        if sign * away[0] < np.abs(away[1:]).sum():
            return public
    return on_grid
