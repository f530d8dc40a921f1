"""Samplers made for posteriors that NUTS draws slowly: each for the models whose built form it recognises.

A sampler takes its constants from the built ``pm.Model`` (``reading.py``) and checks by the model's own
graphs that the laws it assumes are those that the model states. Where it doesn't recognise them, NUTS draws.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.arrays import FloatArray
from pdips.convergence import ROUNDS, Convergence
from pdips.statistics.noisy_model import Given, Stated
from pdips.statistics.post_processing import LEAST_VARIANCE
from pdips.statistics.reading import Draws, Prior, Reading, deterministics, prior_of, read
from pdips.statistics.shares import draw_shares


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How much is drawn.

    Parameters
    ----------
    draws : int
        Independent draws, or draws of each chain.
    tune, chains : int
        Of samplers that run chains.
    rounds : int
        How often chains that disagree run again, longer.
    """

    draws: int
    tune: int = 1_000
    chains: int = 4
    rounds: int = ROUNDS


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """Draws, by the names that :class:`Sampler` gives in ``drawn``.

    Parameters
    ----------
    values : mapping of str to ndarray
        Shape (draws, ...): independent, or of all chains one after the other.
    chains : int
        Number of chains.
    convergence : Convergence, optional
        How well chains agree; None where draws are independent.
    """

    values: Draws
    chains: int = 1
    convergence: Convergence | None = None


Draw = Callable[[Given, Lengths, np.random.Generator], Drawn | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """A sampler that recognised a model.

    Parameters
    ----------
    name : str
        What it does, for people.
    draw : callable
        Takes noisy statistics, lengths and a Generator; returns draws, or None where it can't: then NUTS draws.
    drawn : mapping of str to TensorVariable
        What it draws: free variables by their names, and exact statistics by any others.
    options : tuple of str
        The options of a release that it takes.
    completed : callable
        Works the model's deterministic variables out at draws.
    """

    name: str
    draw: Draw
    drawn: Mapping[str, Any]
    options: tuple[str, ...] = ("draws",)
    completed: Callable[[Draws], Draws] = dict


def recognise(model: pm.Model, given: Given) -> Sampler | None:
    """Return the sampler made for a model; None where there is none, and NUTS draws."""
    from pdips.statistics.normal_cells import cells
    from pdips.statistics.ridge_posterior import sequence

    reading = read(model, given)
    if reading is None:
        return None
    for of in (shares, normal, regression, cells, sequence):
        found = of(reading)
        if found is not None:
            completed = deterministics(reading, found.drawn)
            return None if completed is None else replace(found, completed=completed)
    return None


def shares(reading: Reading) -> Sampler | None:
    """Return exact draws of shares with a Dirichlet or a beta prior given noisy multinomial counts."""
    if len(reading.priors) != 1:
        return None
    [prior] = reading.priors.values()
    if prior.law not in ("dirichlet", "beta") or len(prior.shape) != (prior.law == "dirichlet"):
        return None
    alpha = prior.constants[0] if prior.law == "dirichlet" else np.array(prior.constants)
    name = _counted(reading, prior, len(alpha))
    if name is None and reading.given.stated:
        return None

    def draw(given: Given, lengths: Lengths, rng: np.random.Generator) -> Drawn:
        if name is None:  # no statistic says anything of them
            found = rng.dirichlet(alpha, lengths.draws)
        else:
            found = draw_shares(given, name, alpha, lengths.draws, rng)
        return Drawn(values={prior.name: found if prior.law == "dirichlet" else found[:, 0]})

    return Sampler(name="independent exact draws", draw=draw, drawn={prior.name: prior.variable})


def _counted(reading: Reading, prior: Prior, cells: int) -> str | None:
    """Return the counts that a model states to be multinomial with these shares, and nothing else."""
    whole = prior.variable if prior.law == "dirichlet" else pt.stack([prior.variable, 1 - prior.variable])
    stated = reading.stated("multinomial")
    if stated is not None:
        return stated[0].names[0] if reading.same((stated[0].arguments["p"], whole)) else None
    stated = reading.stated("observe")
    if stated is None or cells != 2 or len(reading.given[stated[0].names[0]]) != 2:
        return None
    law, n = stated[0].arguments["of"], stated[0].arguments["n"]
    if not isinstance(law.owner.op, pm.Binomial.rv_type) or n != reading.n:
        return None
    number, share = law.owner.op.dist_params(law.owner)
    return stated[0].names[0] if reading.same((number, n), (share, whole[0])) else None


def normal(reading: Reading) -> Sampler | None:
    """Return draws of a normal law's mean and standard deviation given its noisy sum and sum of squares."""
    stated, priors = reading.stated("normal", "wishart"), {each.law: each for each in reading.priors.values()}
    if stated is None or len(reading.priors) != 2 or sorted(priors) != ["half-normal", "normal"]:
        return None
    mean, sd, n = priors["normal"], priors["half-normal"], reading.n
    if mean.shape or sd.shape or n is None or n < 3 or sd.constants[0]:
        return None
    if not all(len(each.names) == 1 for each in stated) or not _is_normal(
        reading, (stated[0], stated[1]), mean, sd, float(n)
    ):
        return None
    names = (stated[0].names[0], stated[1].names[0])
    centre, *widths = (float(each) for each in (*mean.constants, sd.constants[1]))

    def draw(given: Given, lengths: Lengths, rng: np.random.Generator) -> Drawn | None:
        found = _normal_draws(given, names, np.array(widths), centre, lengths.draws, rng)
        return None if found is None else Drawn(values={mean.name: found[:, 0], sd.name: found[:, 1]})

    drawn = {each.name: each.variable for each in (mean, sd)}
    return Sampler(name="independent draws by importance sampling", draw=draw, drawn=drawn)


def _is_normal(reading: Reading, stated: tuple[Stated, Stated], mean: Prior, sd: Prior, n: float) -> bool:
    sums, squares = stated
    ones, total = np.ones((1, 1)), sums.exact.reshape((1,))
    return len(reading.given[sums.names[0]]) == 1 and reading.same(
        (sums.arguments["mean"], n * mean.variable * ones),
        (sums.arguments["chol"], sd.variable * ones),
        (sums.arguments["times"], np.array([n])),
        (0.0 if sums.arguments["between"] is None else 1.0, 0.0),
        (squares.arguments["df"], n - 1),
        (squares.arguments["chol"], sd.variable * ones),
        (squares.arguments["about"], total[0] ** 2 / n * ones),
    )


def _normal_draws(
    given: Given, names: tuple[str, str], widths: FloatArray, centre: float, n_draws: int, rng: np.random.Generator
) -> FloatArray | None:
    from pdips.statistics.exact_moments import noise_aware, plug_in

    n = float(given.n)
    if not given.aware:
        total, squares = (given[name] for name in names)
        [found] = plug_in(total, squares - total**2 / n, n, widths, n_draws, rng, centre)
        return np.asarray(found)
    noisy = np.stack([given.noisy(name) for name in names], axis=1)
    scales = np.array([given.measured.scale(name) for name in names])
    gaussian = given.measured.part(names[0]).law == "gaussian"
    lengths = (n_draws, 64 * n_draws, 2.0 * n_draws)
    [found], [worth] = noise_aware(noisy, scales, n, widths, *lengths, rng, gaussian, centre)
    return None if worth < n_draws else np.asarray(found)


def regression(reading: Reading) -> Sampler | None:
    """Return draws of a regression's coefficients given noisy sums of products with Laplace noise."""
    stated, data = reading.stated("solved", "prior", "wishart"), reading.model.named_vars
    priors = reading.of_law(sd="half-normal", error="normal")
    if stated is None or priors is None or "beta" not in data or reading.n is None:
        return None
    solved, prior, squares = stated
    [sd, error], width = priors, prior_of(prior.arguments["of"])
    root, gram = (reading.given.data.get(name, np.zeros((0, 0))) for name in ("root", "gram"))
    df = reading.n - len(gram)
    laplace = all(part.law == "laplace" for each in (solved, squares) for part in reading.parts(each))
    if width is None or width.law != "normal" or np.ptp(width.constants[1]) or np.any(width.constants[0]):
        return None
    if not laplace or df < 2 or sd.constants[0] or np.any(error.constants[0]) or np.any(error.constants[1] != 1):
        return None
    explained = solved.exact @ (gram @ solved.exact)
    if not reading.given.aware:
        most = reading.given[squares.names[0]][0] - LEAST_VARIANCE * reading.n
        explained = pt.minimum(explained, most)
    if not reading.same(
        (prior.arguments["quantity"], solved.exact + sd.variable * (root @ error.variable)),
        (data["beta"], prior.arguments["quantity"]),
        (squares.arguments["df"], df),
        (squares.arguments["chol"], sd.variable * np.ones((1, 1))),
        (squares.arguments["about"], explained * np.ones((1, 1))),
    ):
        return None
    constants = {"width": float(np.ravel(width.constants[1])[0]), "spread": float(sd.constants[1])}

    def draw(given: Given, lengths: Lengths, rng: np.random.Generator) -> Drawn | None:
        return _regression_draws(given, squares.names[0], constants, lengths.draws, rng)

    return Sampler(name="many short chains", draw=draw, drawn={"beta": data["beta"], "sd": sd.variable})


def _regression_draws(
    given: Given, squares: str, constants: Mapping[str, float], n_draws: int, rng: np.random.Generator
) -> Drawn | None:
    from pdips.statistics.centring import least_squares
    from pdips.statistics.regression_draws import Regression, noise_aware, plug_in

    loads: Mapping[str, FloatArray] = given.law("solved").arguments["loads"]
    root, gram = given.data["root"], given.data["gram"]
    model = Regression(gram=gram, covariance=root @ root.T, df=given.n - len(gram), **constants)
    stacked, entries = np.vstack(list(loads.values())), [len(each) for each in loads.values()]
    if given.aware:
        noisy = {"sums": np.concatenate([given.noisy(name) for name in loads]), "squares": given.noisy(squares)}
        scales = np.repeat([given.measured.scale(name) for name in loads], entries)
        of_noise = {"sums": scales, "squares": np.array([given.measured.scale(squares)])}
        found = noise_aware(model, stacked, noisy, of_noise, n_draws, rng)
    else:
        deviations = np.repeat([max(given.measured.deviation(name), 1e-9) for name in loads], entries)
        used = np.concatenate([given[name] for name in loads])
        b, _ = least_squares(stacked / deviations[:, None], used / deviations, constants["width"])
        scatter = max(given[squares][0] - b @ gram @ b, LEAST_VARIANCE * given.n)
        found = plug_in(model, b, scatter, n_draws, rng)
    if found is None:
        return None
    beta, sd = found
    return Drawn(values={"beta": beta, "sd": sd})
