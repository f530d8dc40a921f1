"""The K-norm gradient density of quantile regression in a PyMC model, and a step method
that samples it.

The gradient of this density is 0 wherever it exists, so NUTS can't move along it; the
step draws whole lines exactly (:mod:`pdips.quantile.hit_and_run`), and ``pm.sample``
assigns it by itself. Everything in the DataTree is confidential but the one draw that
is paid for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.traversal import ancestors

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.quantile.gradient import DensityNorm, KNormGradient
from pdips.quantile.hit_and_run import HitAndRun

LEAST_TO_LEARN = 20  # Draws for each parameter from which directions are learnt
RECORDS_A_STEP = 20_000
LEAST_MOVES = 10
"""A step makes so many moves at least, and passes over so many records, before PyMC's
loop gets its turn (about 40 microseconds): that is what keeps the loop below a tenth of
the time.
"""

NOT_IN_A_BOX = (
    "KNormGradientStep draws lines of the K-norm gradient density alone, so its "
    "parameter must be a pm.Uniform or a "
    "pm.TruncatedNormal with default_transform=None and numbers as parameters, in "
    "one potential made by knorm_gradient "
    "and in no other term of the model, but as floor or ceiling of other lines on "
    "the same box of covariates"
)

NO_GRADIENT = (
    "the K-norm gradient density has a gradient of 0 wherever it has one, so samplers "
    "that follow gradients can't move: leave step and nuts_sampler out of pm.sample, "
    "which then takes KNormGradientStep for its line"
)


def knorm_gradient(
    name: str,
    beta: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    tau: float,
    scale: float,
    norm: DensityNorm = "hull",
    floors: Any = None,
    ceilings: Any = None,
    covariates: tuple[ArrayLike, ArrayLike] = (-1.0, 1.0),
) -> Any:
    """Register the log density of the K-norm gradient mechanism for quantile regression
    as a ``pm.Potential``.

    Parameters
    ----------
    name : str
        Of the potential.
    beta : TensorVariable, shape (p,)
        The regression's parameters, the intercept first.
    x : array_like, shape (records, p)
        Covariates, the first column all ones. Confidential.
    y : array_like, shape (records,)
        Outcomes. Confidential.
    tau : float
        The quantile, inside of (0, 1).
    scale : float
        Nats for each unit of the norm: epsilon / (2 * sensitivity).
    norm : {"hull", "linf", "l1", "l2"}
        ``"hull"`` is abs(g_0) + max_j max(abs(g_j) - abs(g_0), 0) / (2 max(tau, 1 -
        tau)): one exchanged record with covariates in [-1, 1] changes it by 1 at most.
    floors, ceilings : array_like, shape (lines, p) or (p,), or TensorVariable, optional
        Coefficients of lines that x'beta may touch but not cross anywhere on the box of
        covariates: public numbers, or another free variable of the model, such as the
        line of the quantile below.
    covariates : pair of array_like, shape (p - 1,) or ()
        The public box of covariates without the intercept, for ``floors`` and
        ``ceilings``.

    Returns
    -------
    TensorVariable
        The potential, a scalar, minus infinity across a floor or a ceiling.
        ``pm.sample`` draws ``beta`` by :class:`KNormGradientStep`, and other variables
        by their own steps. The gradient is declared undefined: samplers that need one,
        such as NUTS asked for by name, end with an error that says so, instead of
        standing still on a gradient of 0.

    Raises
    ------
    InputError
        If a setting isn't what it should be, ``beta`` has not one element for each
        column of ``x``, or a floor or ceiling is a variable but not a free one, of the
        same shape and without a transform.

    Examples
    --------
    >>> import pymc as pm
    >>> x, y = (
    ...     np.column_stack([np.ones(50), np.linspace(-1, 1, 50)]),
    ...     np.linspace(0, 4, 50),
    ... )
    >>> with pm.Model() as model:
    ...     beta = pm.Uniform("beta", -10, 10, shape=2, default_transform=None)
    ...     density = knorm_gradient("kng", beta, x, y, tau=0.5, scale=0.25)
    >>> [potential.name for potential in model.potentials]
    ['kng']
    """
    fixed_floors = None if isinstance(floors, pt.Variable) else floors
    fixed_ceilings = None if isinstance(ceilings, pt.Variable) else ceilings
    density = KNormGradient(
        np.asarray(x),
        np.asarray(y),
        tau=tau,
        scale=scale,
        norm=norm,
        floors=fixed_floors,
        ceilings=fixed_ceilings,
        covariates=covariates,
    )
    if beta.ndim != 1 or beta.type.shape not in ((None,), (density.p,)):
        raise InputError(
            f"{beta.name} must be a vector with one element for each "
            f"column of x; use shape={density.p}"
        )
    model = pm.modelcontext(None)
    beside = []
    for side, line, sign in (("floors", floors, 1.0), ("ceilings", ceilings, -1.0)):
        if not isinstance(line, pt.Variable):
            continue
        free = any(line is variable for variable in model.free_RVs)
        untransformed = free and model.rvs_to_transforms[line] is None
        same_shape = line is not beta and line.type.shape == beta.type.shape
        if not untransformed or not same_shape:
            raise InputError(
                f"{side} must be public numbers, or another free variable of the "
                f"model of the shape of {beta.name} "
                "with default_transform=None"
            )
        beside.append((line, sign))
    lines = [(_without_gradient(line), sign) for line, sign in beside]
    log_density = _log_density(_without_gradient(beta), density, lines)
    potential = pm.Potential(name, log_density)
    potential.tag.knorm_gradient = density
    potential.tag.line = beta
    potential.tag.beside = beside
    beta.tag.knorm_line = KNormLine()
    return potential


class KNormLine:
    """What a variable carries whose steps are :class:`KNormGradientStep`. Of this
    module, so that a model that is unpickled elsewhere brings the step along.
    """


def _log_density(
    beta: Any, density: KNormGradient, beside: Sequence[tuple[Any, float]]
) -> Any:
    # shared and not pm.Data: the records don't get into the DataTree
    x = pytensor.shared(density.x)
    y = pytensor.shared(density.y)
    below = pt.le(y, pt.dot(x, beta))
    sizes = pt.abs(pt.dot(x.T, below - density.tau))
    beyond = pt.max(pt.maximum(sizes - sizes[0], 0.0))
    hull = sizes[0] + beyond / density.width
    norms = {
        "l1": pt.sum(sizes),
        "l2": pt.sqrt(pt.sum(sizes**2)),
        "linf": pt.max(sizes),
        "hull": hull,
    }
    log_density = -density.scale * norms[density.norm]
    lines, signs = density.lines
    if not len(signs) and not beside:
        return log_density
    low, high = (np.asarray(side) for side in density.covariates)
    apart = [*zip(lines, signs, strict=True), *beside]
    differences = pt.stack([sign * (beta - line) for line, sign in apart])
    slopes = differences[:, 1:]
    lowest = pt.minimum(slopes * low, slopes * high)
    heights = differences[:, 0] + pt.sum(lowest, axis=1)
    return pt.switch(pt.all(heights >= 0), log_density, -np.inf)


def _without_gradient(line: Any) -> Any:
    """Return a line whose gradient nobody can take: that of its density is 0 almost
    everywhere, and would mislead samplers without a word.

    A graph of its own, as PyMC simplifies views away before it takes gradients.
    """
    inside = line.type()
    return OpFromGraph([inside], [inside.copy()], pullback=_refuse_gradient)(line)


def _refuse_gradient(*_: Any) -> Any:
    # the class by which PyMC is told that there is no gradient
    raise NotImplementedError(NO_GRADIENT)


@dataclass_state
class KNormGradientState(StepMethodState):  # type: ignore[misc]
    """What a trace keeps of the step, to go on from."""

    tune: bool
    started: bool
    warm_steps: int
    seen: list[Any]
    shape: Any


class KNormGradientStep(BlockedStep):  # type: ignore[misc]
    """Hit-and-run on a potential made by :func:`knorm_gradient`, as a step of
    ``pm.sample``, which assigns it by itself.

    Parameters
    ----------
    vars : sequence of TensorVariable
        Of several variables each gets a step of its own. A variable is the parameters
        of a regression: a ``pm.Uniform``, or for a normal base measure a
        ``pm.TruncatedNormal``, with ``default_transform=None`` and numbers as
        parameters, in one such potential and in no other term of the model but as floor
        or ceiling of other lines, which are kept where they are. Other variables get
        their own steps.
    moves : int, optional
        Moves for each draw; by default as many as pass over 20,000 records, and at
        least 10.
    model : pymc.Model, optional
        By default the one whose context this is.
    rng : optional
        What PyMC makes a generator of; ``pm.sample(random_seed=...)`` replaces it for
        each chain.
    initial_point, compile_kwargs : optional
        What PyMC hands to each step that it assigns; not used.

    Raises
    ------
    InputError
        If the model isn't one whose lines can be drawn exactly, ``moves`` is below 1,
        or a chain starts outside of the box or across a line.

    Notes
    -----
    There is no step size: proposals are exact draws along a line of coefficients, all
    accepted if the base measure is even, else by Metropolis' rule for the ratio of base
    measures. The first half of tuning is under the l2 norm at the same scale, as other
    norms have ridges that keep a far chain for thousands of moves; the second half
    learns which directions suit, and then nothing changes any more. All chains start in
    the middle of the box, which R-hat can't see through, unless ``initval="prior"``
    draws each start from the box; a start that depends on the records is not private.
    Statistics: ``knorm``, the gradient's norm at each draw, and ``tune``. A chain of
    any length is an approximation whose error nothing here certifies: what is released
    from it is ``sampling: "mcmc"``, with the price of the exact law.

    PyMC asks each class in ``pymc.step_methods.STEP_METHODS`` how well it suits a
    variable, and takes the best. This one is among them as soon as its module is
    imported, and answers "ideal" for the variables that :func:`knorm_gradient` was
    given, "incompatible" for all others. So ``pm.sample()`` needs no ``step``, and
    ``pm.sample(knorm_gradient={"moves": 20})`` sets an option.

    Examples
    --------
    >>> import pymc as pm
    >>> x, y = (
    ...     np.column_stack([np.ones(50), np.linspace(-1, 1, 50)]),
    ...     np.linspace(0, 4, 50),
    ... )
    >>> with pm.Model():
    ...     beta = pm.Uniform("beta", -10, 10, shape=2, default_transform=None)
    ...     density = knorm_gradient("kng", beta, x, y, tau=0.5, scale=0.25)
    ...     step = KNormGradientStep([beta], moves=20)
    """

    name = "knorm_gradient"
    default_blocked = False
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {
        "knorm": (np.float64, []),
        "tune": (bool, []),
    }
    _state_class = KNormGradientState

    def __init__(
        self,
        vars: Sequence[Any],
        *,
        moves: int | None = None,
        model: pm.Model | None = None,
        blocked: bool = False,
        rng: Any = None,
        initial_point: Any = None,
        compile_kwargs: Any = None,
    ) -> None:
        model = pm.modelcontext(model)
        known = [model.rvs_to_values.get(each, each) for each in vars]
        if len(known) != 1 or known[0] not in model.values_to_rvs:
            raise InputError(
                f"KNormGradientStep takes one free variable of the "
                f"model, got {len(known)}"
            )
        density, box, beside = _found(model, model.values_to_rvs[known[0]])
        self.sampler = HitAndRun(density, *box)
        self.beside = [line for line, _ in beside]
        self.signs = np.array([sign for _, sign in beside])
        if moves is None:
            moves = max(LEAST_MOVES, math.ceil(RECORDS_A_STEP / len(density.y)))
        self.moves = moves
        if self.moves < 1:
            raise InputError(f"moves must be at least 1, got {moves}")
        self.vars = known
        self.blocked = blocked
        self.rng = get_random_generator(rng)
        self._begin(tune=0)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Get ready for a chain."""
        super().setup_chain(rng, tune, draws)
        self._begin(tune)

    def _begin(self, tune: int) -> None:
        self.tune = tune > 0
        self.started = False
        self.warm_steps = tune // 2
        self.seen: list[Any] = []
        self.shape = np.empty((0, len(self.sampler.lower)))

    def stop_tuning(self) -> None:
        """Learn directions from the second half of tuning; from here on nothing
        changes.
        """
        super().stop_tuning()
        if self.seen:
            self.shape = learn_directions(np.array(self.seen))
            self.seen = []

    def step(
        self, point: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Move on from a point."""
        name = self.vars[0].name
        theta = np.array(point[name], dtype=np.float64)
        if not self.started:
            theta = self.sampler.check_start(theta)
            self.started = True
        smooth = self.warm_steps > 0
        self.warm_steps = max(0, self.warm_steps - 1)
        beside = None
        if self.beside:
            lines = np.array([point[line] for line in self.beside])
            beside = (lines, self.signs)
        (drawn,) = self.sampler.draw(
            theta,
            1,
            self.moves,
            self.rng,
            smooth=smooth,
            shape=self.shape,
            beside=beside,
        )
        if self.tune and not smooth:
            self.seen.append(drawn)
        statistics = {"knorm": self.sampler.norm_at(drawn), "tune": self.tune}
        return {**point, name: drawn}, [statistics]

    @staticmethod
    def competence(var: Any, has_grad: Any) -> Any:
        """Return that this step is ideal for lines of :func:`knorm_gradient`, and for
        nothing else.
        """
        is_line = isinstance(getattr(var.tag, "knorm_line", None), KNormLine)
        return Competence.IDEAL if is_line else Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(
        n_chains: int = 1,
    ) -> tuple[list[Any], dict[str, list[float]]]:
        from rich.progress import TextColumn
        from rich.table import Column

        columns = [
            TextColumn(
                "{task.fields[knorm]:0.1f}", table_column=Column("K-norm", ratio=1)
            )
        ]
        return columns, {"knorm": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any, ...]:
        return (lambda stats: {"knorm": stats["knorm"]},)


STEP_METHODS.append(KNormGradientStep)


def learn_directions(draws: FloatArray) -> FloatArray:
    """Return a root of the covariance of draws, shape (draws, p), to spread directions
    by; shape (0, p) if there are few or they don't move. No draw that is kept may be
    used: the moves would no longer leave the density as it is.
    """
    n, p = draws.shape
    if p == 1 or n < LEAST_TO_LEARN * p:
        return np.empty((0, p))
    values, vectors = np.linalg.eigh(np.cov(draws.T))
    if not values[-1] > 0:
        return np.empty((0, p))
    return np.ascontiguousarray(vectors * np.sqrt(np.maximum(values, 0)))


def _found(
    model: pm.Model, beta: Any
) -> tuple[KNormGradient, tuple[Any, ...], list[tuple[str, float]]]:
    """Return the density of a variable, its box and base measure, and which lines of
    the model it mustn't cross.

    Nothing else in the model may depend on the variable.
    """
    kinds = (pm.Uniform.rv_type, pm.TruncatedNormal.rv_type)
    is_transformed = model.rvs_to_transforms.get(beta) is not None
    if is_transformed or not isinstance(beta.owner.op, kinds):
        raise InputError(NOT_IN_A_BOX)
    mine = [each.tag for each in model.potentials if beta in ancestors([each])]
    own = [tag for tag in mine if getattr(tag, "line", None) is beta]
    rest = [tag for tag in mine if getattr(tag, "line", beta) is not beta]
    others = [
        each
        for each in model.basic_RVs
        if each is not beta and beta in ancestors([each])
    ]
    if len(own) != 1 or len(own) + len(rest) != len(mine) or others:
        raise InputError(NOT_IN_A_BOX)
    density = own[0].knorm_gradient
    same = all(
        np.array_equal(tag.knorm_gradient.covariates, density.covariates)
        for tag in rest
    )
    parameters = beta.owner.op.dist_params(beta.owner)
    if not same or any(each in ancestors(parameters) for each in model.basic_RVs):
        raise InputError(NOT_IN_A_BOX)
    beside = [
        *own[0].beside,
        *(
            (tag.line, -sign)
            for tag in rest
            for line, sign in tag.beside
            if line is beta
        ),
    ]
    *base, lower, upper = (each.eval() for each in parameters)
    box = (lower, upper, tuple(base)) if base else (lower, upper)
    return density, box, [(line.name, sign) for line, sign in beside]
