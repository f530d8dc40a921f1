"""Samplers made for posteriors that NUTS draws slowly: each for the models whose built form it recognises.

A model is read, never written twice: a sampler takes its constants from the built ``pm.Model`` and checks by the
model's own graphs that the laws it assumes are those that the model states. Where it doesn't recognise them, NUTS
draws.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.transforms import _default_transform
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors

from pdips.arrays import FloatArray
from pdips.convergence import ROUNDS, Convergence
from pdips.errors import InputError
from pdips.statistics.exact_counts import draw_shares
from pdips.statistics.general_location import draw_cells
from pdips.statistics.laws import evenly, factor_of
from pdips.statistics.logistic import Logistic
from pdips.statistics.noisy_model import Evidence, StatisticLaw
from pdips.statistics.plan import LEAST_VARIANCE
from pdips.statistics.regression import NoisyMoments, Regression, noise_aware, plug_in

Draws = Mapping[str, NDArray[Any]]

LAWS = {
    type(pm.Normal.rv_op): "normal",
    type(pm.HalfNormal.rv_op): "half-normal",
    type(pm.Gamma.rv_op): "gamma",
    type(pm.Beta.rv_op): "beta",
    type(pm.Dirichlet.rv_op): "dirichlet",
}

POINTS = 4  # Draws from the prior at which two graphs are compared
CLOSE = 1e-6


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior of a free variable.

    ``law`` and ``constants``, each of the shape of the variable: "normal" (mean, standard deviation), "half-normal"
    (location, scale), "gamma" (shape, rate), "beta" (a, b) or "dirichlet" (alpha).
    """

    variable: Any
    law: str
    constants: tuple[FloatArray, ...]

    @property
    def name(self) -> str:
        return str(self.variable.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.constants[0])


@dataclass(frozen=True, eq=False)
class ModelLaws:
    """A model that is made of known priors and of laws stated by :class:`Evidence`, and nothing else."""

    model: pm.Model
    given: Evidence
    priors: Mapping[str, Prior]

    @property
    def n(self) -> int | None:
        """The public number of records."""
        return self.given.measured.n_records

    @property
    def laws(self) -> list[StatisticLaw]:
        """The laws that the model states, but for ridge fits, whose coefficients are drawn after all else."""
        return [each for each in self.given.stated if each.law != "ridge_fit"]

    def stated(self, *laws: str) -> list[StatisticLaw] | None:
        """Return the laws that the model states, but for ridge fits, if they are these in any order."""
        found = {each.law: each for each in self.laws}
        if len(found) != len(self.laws) or sorted(found) != sorted(laws):
            return None
        return [found[law] for law in laws]

    def same(self, *pairs: tuple[Any, Any]) -> bool:
        """Whether the graphs of each pair have equal values at draws from the prior."""
        inputs = list(self.model.free_RVs)
        outputs = [pt.as_tensor(each) for pair in pairs for each in pair]
        compiled = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
        for point in zip(*pm.draw(inputs, draws=POINTS, random_seed=0, mode="FAST_COMPILE"), strict=True):
            found = compiled(*point)
            for one, other in zip(found[::2], found[1::2], strict=True):
                if one.shape != other.shape or not np.allclose(one, other, rtol=CLOSE, atol=CLOSE):
                    return False
        return True


def read(model: pm.Model, given: Evidence) -> ModelLaws | None:
    """Return a model as samplers read it; None where it holds anything that they couldn't know of.

    Readable are models whose free variables are unknown statistics or noise of ``given``, or have a known distribution
    with constant parameters and PyMC's own transform, and whose other terms were all made by ``given``. The density of
    such a model is that of its priors and of the stated laws.
    """
    own = {id(term) for term in given.terms}
    of_fits = {id(each.arguments["coefficients"]) for each in given.laws("ridge_fit")}
    if model.observed_RVs or len(model.potentials) != len(own) or any(id(each) not in own for each in model.potentials):
        return None
    priors = {}
    for variable in model.free_RVs:
        if variable.name in given.latents or id(variable) in of_fits:
            continue
        found = prior_of(variable)
        known = variable.owner.op, variable
        if found is None or type(model.rvs_to_transforms[variable]) is not type(_default_transform(*known)):
            return None
        priors[str(variable.name)] = found
    return ModelLaws(model, given, priors)


def prior_of(variable: Any) -> Prior | None:
    """Return the law of a variable with its constants; None if it isn't known or they aren't constant."""
    law = LAWS.get(type(variable.owner.op))
    parameters = variable.owner.op.dist_params(variable.owner)
    roots = [each for each in ancestors(parameters) if each.owner is None]  # random variables have their generator
    if law is None or not all(isinstance(each, Constant) for each in roots):
        return None
    values = [np.asarray(each.eval(mode="FAST_COMPILE"), dtype=np.float64) for each in parameters]
    shape = tuple(variable.shape.eval(mode="FAST_COMPILE"))
    constants = [np.broadcast_to(each, shape) for each in values]
    if law == "gamma":  # PyTensor keeps the scale
        constants[1] = 1 / constants[1]
    return Prior(variable, law, tuple(constants))


def priors_of_fits(given: Evidence, name: str) -> list[tuple[str, float]]:
    """Return the name of each ridge fit's coefficients and the standard deviation of their prior.

    A model, called ``name``, whose coefficients have no single normal prior about 0, or with a predictor that isn't one
    of the population's columns, is refused.
    """
    columns, found = list(given.population_columns), []
    for each in given.laws("ridge_fit"):
        fit = given.measured.part(each.names[0]).statistic
        prior = prior_of(each.arguments["coefficients"])
        if prior is None or prior.law != "normal" or np.any(prior.constants[0]) or np.ptp(prior.constants[1]):
            raise InputError(
                f"{name}: {each.names[0]!r} has a law without density (given.ridge_fit): its coefficients must be a "
                "free variable with one normal prior about 0"
            )
        if not isinstance(fit, Logistic) or not set(fit.predictors) <= set(columns):
            raise InputError(
                f"{name}: {each.names[0]!r} must be a logistic regression on columns of given.population and on the "
                "outcomes of ridge fits before it"
            )
        columns.append(fit.outcome)
        found.append((prior.name, float(np.ravel(prior.constants[1])[0])))
    return found


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How much is drawn; ``tune``, ``chains`` and ``rounds`` are of samplers that run chains."""

    draws: int  # independent draws, or draws of each chain
    tune: int = 1_000
    chains: int = 4
    rounds: int = ROUNDS  # how often chains that disagree run again, longer


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplerDraws:
    """Draws, shape (draws, ...), by the names that :class:`Sampler` gives in ``drawn``."""

    values: Draws  # independent, or of all chains one after the other
    chains: int = 1
    convergence: Convergence | None = None  # how well chains agree; None where draws are independent


Draw = Callable[[Evidence, Lengths, np.random.Generator], SamplerDraws | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """A sampler that recognised a model; where ``draw`` returns None, it can't, and NUTS draws."""

    name: str  # what it does, for people
    draw: Draw
    drawn: Mapping[str, Any]  # the free variables that it draws, and exact statistics by any other names
    options: tuple[str, ...] = ("draws",)  # those of a release that it takes
    completed: Callable[[Draws], Draws] = dict  # works the model's deterministic variables out at draws


def recognise(model: pm.Model, given: Evidence) -> Sampler | None:
    """Return the sampler made for a model; None where there is none, and NUTS draws."""
    reading = read(model, given)
    if reading is None:
        return None
    for of in (shares, normal, regression, cells):
        found = of(reading)
        if found is not None:
            completed = deterministics(reading, found.drawn)
            return None if completed is None else replace(found, completed=completed)
    return None


def shares(reading: ModelLaws) -> Sampler | None:
    """Return exact draws of shares with a Dirichlet or a beta prior given noisy multinomial counts."""
    if len(reading.priors) != 1:
        return None
    [prior] = reading.priors.values()
    if prior.law not in ("dirichlet", "beta") or len(prior.shape) != (prior.law == "dirichlet"):
        return None
    alpha = prior.constants[0] if prior.law == "dirichlet" else np.array(prior.constants)
    name = _counted(reading, prior, len(alpha))
    if name is None and reading.laws:
        return None

    def draw(given: Evidence, lengths: Lengths, rng: np.random.Generator) -> SamplerDraws:
        # Where no statistic says anything of them, shares have their prior.
        found = draw_shares(given, name, alpha, lengths.draws, rng) if name else rng.dirichlet(alpha, lengths.draws)
        return SamplerDraws(values={prior.name: found if prior.law == "dirichlet" else found[:, 0]})

    return Sampler(name="independent exact draws", draw=draw, drawn={prior.name: prior.variable})


def _counted(reading: ModelLaws, prior: Prior, cells: int) -> str | None:
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


def normal(reading: ModelLaws) -> Sampler | None:
    """Return draws of a normal law's mean and standard deviation given its noisy sum and sum of squares.

    It is the regression on a constant: the mean is its one coefficient.
    """
    stated, priors = reading.stated("normal", "wishart"), {each.law: each for each in reading.priors.values()}
    if stated is None or len(reading.priors) != 2 or sorted(priors) != ["half-normal", "normal"]:
        return None
    mean, sd, n = priors["normal"], priors["half-normal"], reading.n
    of_sums, of_squares = (each.arguments for each in stated)
    [sums, *more], [squares, *others] = (each.names for each in stated)
    if mean.shape or sd.shape or n is None or n < 3 or sd.constants[0]:
        return None
    if more or others or len(reading.given[sums]) != 1 or of_sums["between"] is not None:
        return None
    ones, total = np.ones((1, 1)), stated[0].exact.reshape((1,))
    if not reading.same(
        (of_sums["mean"], float(n) * mean.variable * ones),
        (of_sums["chol"], sd.variable * ones),
        (of_sums["times"], np.array([float(n)])),
        (of_squares["df"], float(n) - 1),
        (of_squares["chol"], sd.variable * ones),
        (of_squares["about"], total[0] ** 2 / float(n) * ones),
    ):
        return None
    centre, width, spread = (float(each) for each in (*mean.constants, sd.constants[1]))
    constants = {"width": width, "spread": spread, "centre": centre}

    def draw(given: Evidence, lengths: Lengths, rng: np.random.Generator) -> SamplerDraws | None:
        size = np.full((1, 1), float(given.n))
        model = Regression(gram=size, covariance=1 / size, df=given.n - 1, **constants)
        found = _draw_regression(given, model, {sums: size}, squares, given[sums] / size[0], lengths.draws, rng)
        return None if found is None else SamplerDraws(values={mean.name: found[0][:, 0], sd.name: found[1]})

    return Sampler(name="many short chains", draw=draw, drawn={each.name: each.variable for each in (mean, sd)})


def regression(reading: ModelLaws) -> Sampler | None:
    """Return draws of a regression's coefficients given noisy sums of products."""
    stated, data = reading.stated("solved", "prior", "wishart"), reading.model.named_vars
    kinds = {name: prior.law for name, prior in reading.priors.items()}
    if stated is None or kinds != {"sd": "half-normal", "error": "normal"} or "beta" not in data or reading.n is None:
        return None
    solved, prior, squares = stated
    sd, error, width = reading.priors["sd"], reading.priors["error"], prior_of(prior.arguments["of"])
    root, gram = (reading.given.data.get(name, np.zeros((0, 0))) for name in ("root", "gram"))
    df = reading.n - len(gram)
    if width is None or width.law != "normal" or np.ptp(width.constants[1]) or np.any(width.constants[0]):
        return None
    if df < 2 or sd.constants[0] or np.any(error.constants[0]) or np.any(error.constants[1] != 1):
        return None
    explained = solved.exact @ (gram @ solved.exact)
    if not reading.given.aware:
        explained = pt.minimum(explained, reading.given[squares.names[0]][0] - LEAST_VARIANCE * reading.n)
    if not reading.same(
        (prior.arguments["quantity"], solved.exact + sd.variable * (root @ error.variable)),
        (data["beta"], prior.arguments["quantity"]),
        (squares.arguments["df"], df),
        (squares.arguments["chol"], sd.variable * np.ones((1, 1))),
        (squares.arguments["about"], explained * np.ones((1, 1))),
    ):
        return None
    constants = {"width": float(np.ravel(width.constants[1])[0]), "spread": float(sd.constants[1])}

    def draw(given: Evidence, lengths: Lengths, rng: np.random.Generator) -> SamplerDraws | None:
        loads: Mapping[str, FloatArray] = given.law("solved").arguments["loads"]
        root, gram = given.data["root"], given.data["gram"]
        model = Regression(gram=gram, covariance=root @ root.T, df=given.n - len(gram), **constants)
        fitted = None if given.aware else given.least_squares(loads, model.width)[0]
        found = _draw_regression(given, model, loads, squares.names[0], fitted, lengths.draws, rng)
        return None if found is None else SamplerDraws(values={"beta": found[0], "sd": found[1]})

    return Sampler(name="many short chains", draw=draw, drawn={"beta": data["beta"], "sd": sd.variable})


def _draw_regression(
    given: Evidence,
    model: Regression,
    loads: Mapping[str, FloatArray],
    squares: str,
    fitted: FloatArray | None,
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray] | None:
    """Draw coefficients and standard deviations; ``fitted`` are the coefficients that noisy statistics give."""
    if not given.aware and fitted is not None:
        scatter = given[squares][0] - fitted @ model.gram @ fitted
        return plug_in(model, fitted, max(scatter, LEAST_VARIANCE * given.n), n_draws, rng)
    noisy = NoisyMoments(
        loads=np.vstack(list(loads.values())),
        sums=np.concatenate([given.noisy(name) for name in loads]),
        scales=np.repeat([given.measured.scale(name) for name in loads], [len(each) for each in loads.values()]),
        squares=float(given.noisy(squares)[0]),
        scale=given.measured.scale(squares),
        law=given.measured.part(squares).law,
    )
    return noise_aware(model, noisy, n_draws, rng)


def cells(reading: ModelLaws) -> Sampler | None:
    """Return chains for normal columns within cells, or in one cell of all records, if a model describes these.

    Priors must be called m (normal), tau and sd (gamma) and, for several columns, correlation, evenly distributed;
    their constants are taken from the model. Noise-aware, with a public number of records.
    """
    priors, n, stated = reading.priors, reading.n, reading.stated("normal", "wishart")
    stated = stated or reading.stated("dirichlet_multinomial", "normal", "wishart")
    d = len(priors["m"].constants[0]) if "m" in priors and priors["m"].shape else 0
    kinds = {"m": "normal", "tau": "gamma", "sd": "gamma"} | ({"correlation": "beta"} if d > 1 else {})
    if {name: prior.law for name, prior in priors.items()} != kinds:
        return None
    if stated is None or n is None or not reading.given.aware:
        return None
    m, tau, sd = (priors[name] for name in ("m", "tau", "sd"))
    *shared, sums, products = stated
    counted = shared[0] if shared else None
    if {m.shape, tau.shape, sd.shape} != {(d,)} or len(sums.names) != d or sums.arguments["between"] is None:
        return None
    if d > 1 and any(not np.allclose(each, evenly(d)) for each in priors["correlation"].constants):
        return None
    counts = np.array([float(n)]) if counted is None else counted.exact
    df = max(n - (1 if counted is None else len(reading.given[counted.names[0]])), d)
    chol = sd.variable[:, None] * (factor_of(priors["correlation"].variable, d) if d > 1 else pt.ones((1, 1)))
    if not reading.same(
        (sums.arguments["mean"], counts[:, None] * m.variable),
        (sums.arguments["chol"], chol),
        (sums.arguments["times"], counts),
        (sums.arguments["between"], tau.variable),
        (products.arguments["df"], df),
        (products.arguments["chol"], chol),
        (products.arguments["about"], sums.exact.T @ (sums.exact / counts[:, None])),
    ):
        return None
    constants = np.array([each for prior in (m, tau, sd) for each in prior.constants])

    def draw(given: Evidence, lengths: Lengths, rng: np.random.Generator) -> SamplerDraws:
        run = (lengths.draws, lengths.tune, lengths.chains, lengths.rounds)
        values, found = draw_cells(given, counted, sums.names, products.names, float(df), constants, run, rng)
        return SamplerDraws(values=values, chains=lengths.chains, convergence=found)

    exact = {"sums": sums.exact} if counted is None else {"sums": sums.exact, "counts": counted.exact}
    drawn = {name: prior.variable for name, prior in priors.items()} | exact
    return Sampler(name="chains of moves made for it", draw=draw, drawn=drawn, options=("draws", "tune", "n_chains"))


def deterministics(reading: ModelLaws, known: Mapping[str, Any]) -> Callable[[Draws], Draws] | None:
    """Return a function that works a model's deterministic variables out at draws of what they are made of.

    ``known`` says what there will be draws of, by any names: free variables, and exact statistics that stated laws
    returned. The function takes and returns draws by name, shape (draws, ...); there is none where a variable needs
    what isn't drawn.
    """
    model = reading.model
    stands = {name: variable.type() for name, variable in known.items()}
    swapped = {known[name]: stand for name, stand in stands.items()}
    graphs = clone_replace(list(model.deterministics), swapped, rebuild_strict=False)
    if set(model.free_RVs) & set(ancestors(graphs)):
        return None
    many = {name: pt.tensor(dtype=each.dtype, shape=(None, *each.type.shape)) for name, each in stands.items()}
    batched = vectorize_graph(graphs, {stands[name]: many[name] for name in stands}) if graphs else []
    compiled = pytensor.function(list(many.values()), batched, mode="FAST_COMPILE", on_unused_input="ignore")
    names = [str(each.name) for each in model.deterministics]

    def worked_out(draws: Draws) -> Draws:
        n = len(next(iter(draws.values())))
        found = compiled(*(np.asarray(draws[name], dtype=stands[name].dtype) for name in stands))
        return {
            name: each if each.ndim and len(each) == n else np.broadcast_to(each, (n, *each.shape))
            for name, each in zip(names, found, strict=True)
        }

    return worked_out
