"""Samplers made for posteriors that NUTS draws slowly: each for the models whose built
form it recognises.

A model is read, never written twice: a sampler takes its constants from the built
``pm.Model`` and checks by the model's own graphs that the laws it assumes are those
that the model states. Where it doesn't recognise them, NUTS draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

    ``law`` and ``constants``, each of the shape of the variable: "normal" (mean,
    standard deviation), "half-normal" (location, scale), "gamma" (shape, rate), "beta"
    (a, b) or "dirichlet" (alpha).
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
    """A model that is made of known priors and of laws stated by :class:`Evidence`, and
    nothing else.
    """

    model: pm.Model
    given: Evidence
    priors: Mapping[str, Prior]

    @property
    def n(self) -> int | None:
        """The public number of records."""
        return self.given.measured.n_records

    @property
    def laws(self) -> list[StatisticLaw]:
        """The laws that the model states, but for ridge fits, whose coefficients are
        drawn after all else.
        """
        return [each for each in self.given.stated if each.law != "ridge_fit"]

    def stated(self, *laws: str) -> list[StatisticLaw] | None:
        """Return the laws that the model states, but for ridge fits, if they are these
        in any order.
        """
        stated = {each.law: each for each in self.laws}
        if len(stated) != len(self.laws) or sorted(stated) != sorted(laws):
            return None
        return [stated[law] for law in laws]

    def same(self, pairs: Sequence[tuple[Any, Any]]) -> bool:
        """Whether the graphs of each pair have equal values at draws from the prior."""
        inputs = list(self.model.free_RVs)
        outputs = [pt.as_tensor(each) for pair in pairs for each in pair]
        evaluate = pytensor.function(
            inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore"
        )
        drawn = pm.draw(inputs, draws=POINTS, random_seed=0, mode="FAST_COMPILE")
        for point in zip(*drawn, strict=True):
            values = evaluate(*point)
            for one, other in zip(values[::2], values[1::2], strict=True):
                if one.shape != other.shape:
                    return False
                if not np.allclose(one, other, rtol=CLOSE, atol=CLOSE):
                    return False
        return True


def read(model: pm.Model, given: Evidence) -> ModelLaws | None:
    """Return a model as samplers read it; None where it holds anything that they
    couldn't know of.

    Readable are models whose free variables are unknown statistics or noise of
    ``given``, or have a known distribution with constant parameters and PyMC's own
    transform, and whose other terms were all made by ``given``. The density of such a
    model is that of its priors and of the stated laws.
    """
    own = {id(term) for term in given.terms}
    if model.observed_RVs or {id(term) for term in model.potentials} != own:
        return None
    of_fits = {id(law.arguments["coefficients"]) for law in given.laws("ridge_fit")}
    priors = {}
    for variable in model.free_RVs:
        if variable.name in given.latents or id(variable) in of_fits:
            continue
        prior = prior_of(variable)
        usual = _default_transform(variable.owner.op, variable)
        if prior is None or type(model.rvs_to_transforms[variable]) is not type(usual):
            return None
        priors[prior.name] = prior
    return ModelLaws(model, given, priors)


def prior_of(variable: Any) -> Prior | None:
    """Return the law of a variable with its constants; None if it isn't known or they
    aren't constant.
    """
    law = LAWS.get(type(variable.owner.op))
    parameters = variable.owner.op.dist_params(variable.owner)
    # random variables have their generator
    roots = [node for node in ancestors(parameters) if node.owner is None]
    if law is None or not all(isinstance(root, Constant) for root in roots):
        return None
    shape = tuple(variable.shape.eval(mode="FAST_COMPILE"))
    constants = []
    for parameter in parameters:
        value = np.asarray(parameter.eval(mode="FAST_COMPILE"), dtype=np.float64)
        constants.append(np.broadcast_to(value, shape))
    if law == "gamma":  # PyTensor keeps the scale
        constants[1] = 1 / constants[1]
    return Prior(variable, law, tuple(constants))


def priors_of_fits(given: Evidence, name: str) -> list[tuple[str, float]]:
    """Return the name of each ridge fit's coefficients and the standard deviation of
    their prior.

    A model, called ``name``, whose coefficients have no single normal prior about 0, or
    with a predictor that isn't one of the population's columns, is refused.
    """
    columns = list(given.population_columns)
    priors = []
    for law in given.laws("ridge_fit"):
        statistic = law.names[0]
        fit = given.measured.part(statistic).statistic
        prior = prior_of(law.arguments["coefficients"])
        if prior is None or not _is_about_zero(prior):
            raise InputError(
                f"{name}: {statistic!r} has a law without density "
                f"(given.ridge_fit): its coefficients must be a "
                "free variable with one normal prior about 0"
            )
        if not isinstance(fit, Logistic) or not set(fit.predictors) <= set(columns):
            raise InputError(
                f"{name}: {statistic!r} must be a logistic regression on columns "
                f"of given.population and on the "
                "outcomes of ridge fits before it"
            )
        columns.append(fit.outcome)
        priors.append((prior.name, _only(prior.constants[1])))
    return priors


def _is_about_zero(prior: Prior) -> bool:
    """Whether a prior is normal about 0, with one standard deviation for all."""
    mean, sd = prior.constants if prior.law == "normal" else (1.0, 1.0)
    return not np.any(mean) and not np.ptp(sd)


def _only(constants: FloatArray) -> float:
    """Return the one value that all constants have."""
    return float(np.ravel(constants)[0])


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How much is drawn; ``tune``, ``chains`` and ``rounds`` are of samplers that run
    chains.
    """

    draws: int  # independent draws, or draws of each chain
    tune: int = 1_000
    chains: int = 4
    rounds: int = ROUNDS  # how often chains that disagree run again, longer


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplerDraws:
    """Draws, shape (draws, ...), by the names that :class:`Sampler` gives in
    ``drawn``.
    """

    values: Draws  # independent, or of all chains one after the other
    chains: int = 1
    # how well chains agree; None where draws are independent
    convergence: Convergence | None = None


Draw = Callable[[Evidence, Lengths, np.random.Generator], SamplerDraws | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """A sampler that recognised a model; where ``draw`` returns None, it can't, and
    NUTS draws.
    """

    name: str  # what it does, for people
    draw: Draw
    # the free variables that it draws, and exact statistics by any other names
    drawn: Mapping[str, Any]
    options: tuple[str, ...] = ("draws",)  # those of a release that it takes
    # works the model's deterministic variables out at draws
    completed: Callable[[Draws], Draws] = dict


def recognise(model: pm.Model, given: Evidence) -> Sampler | None:
    """Return the sampler made for a model; None where there is none, and NUTS draws."""
    reading = read(model, given)
    if reading is None:
        return None
    for recognised in (shares, normal, regression, cells):
        sampler = recognised(reading)
        if sampler is None:
            continue
        completed = deterministics(reading, sampler.drawn)
        if completed is None:
            return None
        return replace(sampler, completed=completed)
    return None


def shares(reading: ModelLaws) -> Sampler | None:
    """Return exact draws of shares with a Dirichlet or a beta prior given noisy
    multinomial counts.
    """
    if len(reading.priors) != 1:
        return None
    [prior] = reading.priors.values()
    kind = (prior.law, len(prior.shape))
    if kind not in (("dirichlet", 1), ("beta", 0)):
        return None
    several = prior.law == "dirichlet"
    alpha = prior.constants[0] if several else np.array(prior.constants)
    name = _counted(reading, prior, len(alpha))
    if name is None and reading.laws:
        return None

    def draw(
        given: Evidence, lengths: Lengths, rng: np.random.Generator
    ) -> SamplerDraws:
        # Where no statistic says anything of them, shares have their prior.
        if name is None:
            drawn = rng.dirichlet(alpha, lengths.draws)
        else:
            drawn = draw_shares(given, name, alpha, lengths.draws, rng)
        return SamplerDraws(values={prior.name: drawn if several else drawn[:, 0]})

    return Sampler(
        name="independent exact draws", draw=draw, drawn={prior.name: prior.variable}
    )


def _counted(reading: ModelLaws, prior: Prior, cells: int) -> str | None:
    """Return the counts that a model states to be multinomial with these shares, and
    nothing else.
    """
    share = prior.variable
    all_shares = share
    if prior.law == "beta":
        all_shares = pt.stack([share, 1 - share])
    stated = reading.stated("multinomial")
    if stated is not None:
        same = reading.same([(stated[0].arguments["p"], all_shares)])
        return stated[0].names[0] if same else None
    stated = reading.stated("observe")
    if stated is None or cells != 2:
        return None
    [name] = stated[0].names
    law = stated[0].arguments["of"]
    n = stated[0].arguments["n"]
    if len(reading.given[name]) != 2 or n != reading.n:
        return None
    if not isinstance(law.owner.op, pm.Binomial.rv_type):
        return None
    number, probability = law.owner.op.dist_params(law.owner)
    same = reading.same([(number, n), (probability, all_shares[0])])
    return name if same else None


def normal(reading: ModelLaws) -> Sampler | None:
    """Return draws of a normal law's mean and standard deviation given its noisy sum
    and sum of squares.

    It is the regression on a constant: the mean is its one coefficient.
    """
    stated = reading.stated("normal", "wishart")
    priors = {prior.law: prior for prior in reading.priors.values()}
    kinds = sorted(prior.law for prior in reading.priors.values())
    n = reading.n
    if stated is None or kinds != ["half-normal", "normal"] or n is None or n < 3:
        return None
    mean = priors["normal"]
    sd = priors["half-normal"]
    if mean.shape or sd.shape or sd.constants[0]:
        return None
    if not _is_of_one_column(reading, stated, mean.variable, sd.variable):
        return None
    [sums], [squares] = (law.names for law in stated)
    constants = {
        "centre": float(mean.constants[0]),
        "width": float(mean.constants[1]),
        "spread": float(sd.constants[1]),
    }

    def draw(
        given: Evidence, lengths: Lengths, rng: np.random.Generator
    ) -> SamplerDraws | None:
        size = np.full((1, 1), float(given.n))
        model = Regression(gram=size, covariance=1 / size, df=given.n - 1, **constants)
        statistics = RegressionMoments(given, {sums: size}, squares)
        fitted = given[sums] / size[0]
        drawn = statistics.draw(model, fitted, lengths.draws, rng)
        if drawn is None:
            return None
        return SamplerDraws(values={mean.name: drawn[0][:, 0], sd.name: drawn[1]})

    return Sampler(
        name="many short chains",
        draw=draw,
        drawn={prior.name: prior.variable for prior in (mean, sd)},
    )


def _is_of_one_column(
    reading: ModelLaws, stated: list[StatisticLaw], mean: Any, sd: Any
) -> bool:
    """Whether the sum and the squares of all records are stated to be those of a
    normal law with this mean and standard deviation.
    """
    of_sums, of_squares = (law.arguments for law in stated)
    sums, squares = (law.names for law in stated)
    if len(sums) != 1 or len(squares) != 1 or of_sums["between"] is not None:
        return False
    if len(reading.given[sums[0]]) != 1:
        return False
    n = float(reading.n or 0)
    ones = np.ones((1, 1))
    total = stated[0].exact.reshape((1,))[0]
    return reading.same(
        [
            (of_sums["mean"], n * mean * ones),
            (of_sums["chol"], sd * ones),
            (of_sums["times"], np.array([n])),
            (of_squares["df"], n - 1),
            (of_squares["chol"], sd * ones),
            (of_squares["about"], total**2 / n * ones),
        ]
    )


def regression(reading: ModelLaws) -> Sampler | None:
    """Return draws of a regression's coefficients given noisy sums of products."""
    stated = reading.stated("solved", "prior", "wishart")
    kinds = {name: prior.law for name, prior in reading.priors.items()}
    if stated is None or kinds != {"sd": "half-normal", "error": "normal"}:
        return None
    variables = reading.model.named_vars
    if "beta" not in variables or reading.n is None:
        return None
    _, of_coefficients, squares = stated
    sd = reading.priors["sd"]
    standard = reading.priors["error"]
    coefficients = prior_of(of_coefficients.arguments["of"])
    if coefficients is None or not _is_about_zero(coefficients):
        return None
    if not _is_about_zero(standard) or np.any(standard.constants[1] != 1):
        return None
    if sd.constants[0] or not _is_of_least_squares(reading, stated):
        return None
    constants = {
        "width": _only(coefficients.constants[1]),
        "spread": float(sd.constants[1]),
    }

    return Sampler(
        name="many short chains",
        draw=partial(_draw_coefficients, squares.names[0], constants),
        drawn={"beta": variables["beta"], "sd": sd.variable},
    )


def _draw_coefficients(
    squares: str,
    constants: Mapping[str, float],
    given: Evidence,
    lengths: Lengths,
    rng: np.random.Generator,
) -> SamplerDraws | None:
    loads: Mapping[str, FloatArray] = given.law("solved").arguments["loads"]
    root = given.data["root"]
    gram = given.data["gram"]
    df = given.n - len(gram)
    model = Regression(gram=gram, covariance=root @ root.T, df=df, **constants)
    fitted = None
    if not given.aware:
        fitted, _ = given.least_squares(loads, model.width)
    drawn = RegressionMoments(given, loads, squares).draw(
        model, fitted, lengths.draws, rng
    )
    if drawn is None:
        return None
    return SamplerDraws(values={"beta": drawn[0], "sd": drawn[1]})


def _is_of_least_squares(reading: ModelLaws, stated: list[StatisticLaw]) -> bool:
    """Whether coefficients are stated to be about the least-squares ones, and the
    squares to be what these explain and a chi-squared rest.
    """
    solved, of_coefficients, squares = stated
    given = reading.given
    nothing = np.zeros((0, 0))
    root = given.data.get("root", nothing)
    gram = given.data.get("gram", nothing)
    n = reading.n or 0
    df = n - len(gram)
    if df < 2:
        return False
    explained = solved.exact @ (gram @ solved.exact)
    if not given.aware:
        most = given[squares.names[0]][0] - LEAST_VARIANCE * n
        explained = pt.minimum(explained, most)
    sd = reading.priors["sd"].variable
    error = reading.priors["error"].variable
    quantity = of_coefficients.arguments["quantity"]
    return reading.same(
        [
            (quantity, solved.exact + sd * (root @ error)),
            (reading.model.named_vars["beta"], quantity),
            (squares.arguments["df"], df),
            (squares.arguments["chol"], sd * np.ones((1, 1))),
            (squares.arguments["about"], explained * np.ones((1, 1))),
        ]
    )


@dataclass(frozen=True, eq=False)
class RegressionMoments:
    """The noisy statistics of a regression, by the names that its model gives them."""

    given: Evidence
    loads: Mapping[str, FloatArray]  # sums are these times the coefficients
    squares: str

    def draw(
        self,
        model: Regression,
        fitted: FloatArray | None,
        n_draws: int,
        rng: np.random.Generator,
    ) -> tuple[FloatArray, FloatArray] | None:
        """Draw coefficients and standard deviations; plug-in takes ``fitted``, the
        coefficients that noisy statistics give.
        """
        given = self.given
        if not given.aware and fitted is not None:
            explained = fitted @ model.gram @ fitted
            least = LEAST_VARIANCE * given.n
            scatter = max(given[self.squares][0] - explained, least)
            return plug_in(model, fitted, scatter, n_draws, rng)
        measured = given.measured
        loads = list(self.loads.values())
        lengths = [len(load) for load in loads]
        scales = [measured.scale(name) for name in self.loads]
        sums = [given.noisy(name) for name in self.loads]
        [squares] = given.noisy(self.squares)
        part = measured.part(self.squares)
        noisy = NoisyMoments(
            loads=np.vstack(loads),
            sums=np.concatenate(sums),
            scales=np.repeat(scales, lengths),
            squares=float(squares),
            scale=measured.scale(part.name),
            law=part.law,
        )
        return noise_aware(model, noisy, n_draws, rng)


def cells(reading: ModelLaws) -> Sampler | None:
    """Return chains for normal columns within cells, or in one cell of all records, if
    a model describes these.

    Priors must be called m (normal), tau and sd (gamma) and, for several columns,
    correlation, evenly distributed; their constants are taken from the model.
    Noise-aware, with a public number of records.
    """
    priors = reading.priors
    stated = reading.stated("normal", "wishart")
    counted = None
    if stated is None:
        stated = reading.stated("dirichlet_multinomial", "normal", "wishart")
        if stated is None:
            return None
        counted = stated.pop(0)
    sums, products = stated
    d = len(sums.names)
    if not _has_priors_of_cells(priors, d):
        return None
    n = reading.n
    if n is None or not reading.given.aware or sums.arguments["between"] is None:
        return None
    n_cells = 1
    counts = np.array([float(n)])
    exact = {"sums": sums.exact}
    if counted is not None:
        n_cells = len(reading.given[counted.names[0]])
        counts = counted.exact
        exact["counts"] = counts
    df = max(n - n_cells, d)
    if not _is_of_cells(reading, sums, products, counts, df):
        return None
    constants = np.array(
        [values for name in ("m", "tau", "sd") for values in priors[name].constants]
    )

    def draw(
        given: Evidence, lengths: Lengths, rng: np.random.Generator
    ) -> SamplerDraws:
        run = (lengths.draws, lengths.tune, lengths.chains, lengths.rounds)
        names = (sums.names, products.names)
        values, agreement = draw_cells(
            given, counted, *names, float(df), constants, run, rng
        )
        return SamplerDraws(values=values, chains=lengths.chains, convergence=agreement)

    free = {name: prior.variable for name, prior in priors.items()}
    return Sampler(
        name="chains of moves made for it",
        draw=draw,
        drawn=free | exact,
        options=("draws", "tune", "n_chains"),
    )


def _has_priors_of_cells(priors: Mapping[str, Prior], d: int) -> bool:
    """Whether a model of so many columns within cells has the priors that
    :func:`cells` takes.
    """
    kinds = {"m": "normal", "tau": "gamma", "sd": "gamma"}
    if d > 1:
        kinds["correlation"] = "beta"
    if {name: prior.law for name, prior in priors.items()} != kinds:
        return False
    if {priors[name].shape for name in ("m", "tau", "sd")} != {(d,)}:
        return False
    if d == 1:
        return True
    constants = priors["correlation"].constants
    return all(np.allclose(values, evenly(d)) for values in constants)


def _is_of_cells(
    reading: ModelLaws,
    sums: StatisticLaw,
    products: StatisticLaw,
    counts: Any,
    df: int,
) -> bool:
    """Whether sums and products are stated to be those of normal columns in cells of
    so many records.
    """
    m, tau, sd = (reading.priors[name].variable for name in ("m", "tau", "sd"))
    d = len(sums.names)
    factor = pt.ones((1, 1))
    if d > 1:
        factor = factor_of(reading.priors["correlation"].variable, d)
    chol = sd[:, None] * factor
    of_means = sums.exact.T @ (sums.exact / counts[:, None])
    return reading.same(
        [
            (sums.arguments["mean"], counts[:, None] * m),
            (sums.arguments["chol"], chol),
            (sums.arguments["times"], counts),
            (sums.arguments["between"], tau),
            (products.arguments["df"], df),
            (products.arguments["chol"], chol),
            (products.arguments["about"], of_means),
        ]
    )


def deterministics(
    reading: ModelLaws, known: Mapping[str, Any]
) -> Callable[[Draws], Draws] | None:
    """Return a function that works a model's deterministic variables out at draws of
    what they are made of.

    ``known`` says what there will be draws of, by any names: free variables, and exact
    statistics that stated laws returned. The function takes and returns draws by name,
    shape (draws, ...); there is none where a variable needs what isn't drawn.
    """
    model = reading.model
    single = {name: variable.type() for name, variable in known.items()}
    swapped = {known[name]: variable for name, variable in single.items()}
    graphs = clone_replace(list(model.deterministics), swapped, rebuild_strict=False)
    if set(model.free_RVs) & set(ancestors(graphs)):
        return None
    many = {
        name: pt.tensor(dtype=variable.dtype, shape=(None, *variable.type.shape))
        for name, variable in single.items()
    }
    batched = []
    if graphs:
        rows = {single[name]: variable for name, variable in many.items()}
        batched = vectorize_graph(graphs, rows)
    evaluate = pytensor.function(
        list(many.values()), batched, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    names = [str(variable.name) for variable in model.deterministics]

    def worked_out(draws: Draws) -> Draws:
        n = len(next(iter(draws.values())))
        inputs = [
            np.asarray(draws[name], dtype=variable.dtype)
            for name, variable in single.items()
        ]
        values = {}
        for name, value in zip(names, evaluate(*inputs), strict=True):
            depends_on_draws = value.ndim and len(value) == n
            if not depends_on_draws:
                value = np.broadcast_to(value, (n, *value.shape))
            values[name] = value
        return values

    return worked_out
