"""Draws from the posterior of noisy sums: importance sampling with reweighted records,
or NUTS near the mode.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from pdips.arrays import FloatArray, finite
from pdips.convergence import ESS, ROUNDS, Convergence, converged
from pdips.posterior.columns import Values
from pdips.posterior.inspection import Draws, Posterior, inspect_statistics, tree_of
from pdips.posterior.model import PUBLIC_SEED, join, most_probable, split, unconstrained
from pdips.posterior.nuts import sample
from pdips.posterior.record_likelihood import log_prior
from pdips.posterior.streams import draws_by_name
from pdips.release.public_draws import MISFIT, MISFIT_BY, REFERENCE_APART
from pdips.release.tree import stored_name
from pdips.scores.noisy_likelihood import NoisyLikelihood, NoisySums
from pdips.scores.sums import Linearised, MeasuredSums, Noises, NormalPrior, regular

# Parameters at which records are simulated that are reweighted to others, besides the
# mode
ANCHORS = 16
# Degrees of freedom, beside one for each parameter, of the t distribution from which
# draws are proposed
FREEDOM = 5
# Of slopes, in deviations; and the least curvature, over that under normal priors
DIFFERENCE = 1e-3
FLAT = 1e-3
# Draws of chains at which sums are simulated; and how much less than the linear
# log-likelihood theirs may be, beside half of one for each parameter
FOLLOWED = 15
LOST = 3.0
# Shape of the tail of importance weights up to which they are relied on (Vehtari et al.
# 2024)
MOST_K = 0.7
# Proposals that are tried, each fitted to the weighted draws of all before
ATTEMPTS = 12
SPREAD = 1.1  # How much wider than the weighted draws the next proposal is
# Draws for each parameter that weighted draws must be worth until their covariance
# counts as much as that of the proposal before
DRAWS_EACH = 4
# Draws proposed at least; and finite weights below which their tail has no shape
FEWEST = 2_000
FEWEST_WEIGHTS = 25
# Variances of Laplace noise, Gibbs steps before and between, their prior
MIXED = 200
UNUSED = 20
APART = 2
WIDER = 3.0
LEAST_NOISE = 1e-9  # Of Laplace noise at a sum, in its standard deviations
LEAST_EIGENVALUE = 1e-14  # Over the largest: below it doubles don't tell
LEAST_VARIANCE = 1e-6  # Of Laplace noise at a sum, over its own variance
# Share of the prior's spread from which on nothing was learned of a parameter
UNLEARNED = 0.9
# Draws at which noisy sums are simulated, to compare them with those that were
# published
PREDICTED = 400


def attempt[T](make: Callable[..., T], *given: Any, **more: Any) -> T | None:
    """Return what is made of public numbers, or None where nothing can: after the
    charge no release may fail.
    """
    try:
        return make(*given, **more)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever simulation, linear algebra or a sampler raises
        return None


@dataclass(frozen=True, eq=False)
class Proposal:
    """A multivariate t distribution from which parameters are proposed."""

    mean: FloatArray
    root: FloatArray  # of the covariance: shape (parameters, parameters)

    @classmethod
    def near(cls, sums: MeasuredSums, here: Linearised) -> "Proposal":
        """Return the one about the most probable parameters, by the linear likelihood
        and the model's own prior.
        """
        start = here.place + sums.move(here)
        scale = inverse_root(here.curvature + sums.prior.precision)
        uphill = _log_posterior(sums.space.model, here)

        def scaled(z: FloatArray) -> tuple[float, FloatArray]:
            value, slope = uphill(start + scale @ z)
            return value, scale.T @ slope

        with np.errstate(all="ignore"):
            mode = start + scale @ most_probable(scaled, np.zeros(len(start)), 300)
            steps = DIFFERENCE * np.sqrt((scale**2).sum(axis=1))
            rows = []
            for step in np.diag(steps):
                bent = uphill(mode + step)[1] - uphill(mode - step)[1]
                rows.append(bent / (2 * step.sum()))
        curvature = -(np.array(rows) + np.array(rows).T) / 2
        if not np.isfinite(curvature).all():
            return cls(start, scale)
        least = np.linalg.eigvalsh(scale.T @ curvature @ scale).min()
        if least > FLAT:
            return cls(mode, inverse_root(curvature))
        return cls(start, scale)

    def fitted(self, places: FloatArray, shares: FloatArray) -> "Proposal":
        """Return the one with the mean and covariance of weighted draws, a little
        wider: near this one as far as few draws count.
        """
        mean = shares @ places
        apart = places - mean
        covariance = (apart * shares[:, None]).T @ apart
        effective = 1 / (shares**2).sum()
        trust = effective / (effective + DRAWS_EACH * len(mean))
        covariance = trust * covariance + (1 - trust) * self.root @ self.root.T
        precision = np.linalg.pinv(covariance, hermitian=True)
        return Proposal(mean, SPREAD * inverse_root(precision))

    def log_density(self, places: FloatArray) -> FloatArray:
        """Return log densities, shape (places,), up to a constant that all proposals
        of as many parameters share.
        """
        d = len(self.mean)
        freedom = FREEDOM + d
        squares = (np.linalg.solve(self.root, (places - self.mean).T) ** 2).sum(axis=0)
        size = np.linalg.slogdet(self.root)[1]
        return np.asarray(-(freedom + d) / 2 * np.log1p(squares / freedom) - size)

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return places, shape (n, parameters)."""
        d = len(self.mean)
        freedom = FREEDOM + d
        chi = np.sqrt(rng.chisquare(freedom, (n, 1)) / freedom)
        steps = rng.standard_normal((n, d)) / chi
        return np.asarray(self.mean + steps @ self.root.T)


def _log_posterior(
    model: pm.Model, here: Linearised
) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """Return the log density of the model's own prior times the linear likelihood, and
    its slope.
    """
    prior = prior_with_slope(model)

    def uphill(place: FloatArray) -> tuple[float, FloatArray]:
        move = place - here.place
        value, slope = prior(*(part[0] for part in split(model, place[None])))
        bent = here.curvature @ move
        likely = move @ here.slope - move @ bent / 2
        return float(value + likely), slope + here.slope - bent

    return uphill


@lru_cache(maxsize=16)
def prior_with_slope(model: pm.Model) -> Any:
    """Return what works out the log prior density of the value variables and its slope,
    shape (parameters,).
    """
    value = log_prior(model)
    slopes = pt.grad(value, model.value_vars, disconnected_inputs="ignore")
    flat = pt.concatenate([slope.ravel() for slope in slopes])
    return pytensor.function(
        model.value_vars, [value, flat], mode="FAST_COMPILE", on_unused_input="ignore"
    )


def inverse_root(precision: FloatArray) -> FloatArray:
    """Return R with R R' the inverse of a positive semi-definite matrix, as far as
    doubles tell.
    """
    values, vectors = np.linalg.eigh(precision)
    if not 0 < values.max() < np.inf:
        raise np.linalg.LinAlgError("no precision")
    values = np.maximum(values, values.max() * LEAST_EIGENVALUE)
    return np.asarray(vectors / np.sqrt(values))


def noises_of(sums: MeasuredSums, here: Linearised, rng: np.random.Generator) -> Noises:
    """Return covariances of noise, with the logarithm of each one's share, whose normal
    laws mixed are the noise's law.

    Gaussian noise has one. The variance of Laplace noise is exponential given its sum:
    some are drawn by Gibbs steps (inverse Gaussian, as in the Bayesian lasso of Park
    and Casella 2008) under the linear likelihood and a normal prior three times as wide
    as the linear posterior. Each counts in inverse proportion to its evidence there, so
    that the sum of normal densities is right at any parameters, and accurate at
    probable ones.
    """
    as_normal = [(regular(here.noise), 0.0)]
    if not here.mixed:
        return as_normal
    apart = here.residual - here.slopes @ sums.move(here)
    wide = WIDER * here.slopes @ inverse_root(here.curvature + sums.prior.precision)
    rest = here.sampling + here.other_noise + wide @ wide.T
    values, vectors = np.linalg.eigh(rest)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    noises = list[tuple[FloatArray, float]]()
    variances = here.laplace
    for step in range(-UNUSED, MIXED * APART):
        try:
            factor = cho_factor(rest + np.diag(variances), lower=True)
        except np.linalg.LinAlgError:  # as doubles have it, no covariance
            return as_normal
        if step >= 0 and step % APART == 0:
            share = -_log_evidence(factor, apart)
            noises.append((here.other_noise + np.diag(variances), share))
        # noise given its variances and the sums, by a draw of both that is corrected
        drawn = np.sqrt(variances) * rng.standard_normal(len(variances))
        missing = apart - drawn - root @ rng.standard_normal(len(variances))
        noise = drawn + variances * cho_solve(factor, missing)
        variances = _variances_given(noise, here.laplace, rng)
    return noises


def _log_evidence(factor: tuple[FloatArray, bool], apart: FloatArray) -> float:
    """Return the log density of a normal vector, up to a constant, by the factor of its
    covariance.
    """
    log_root = np.log(np.diag(factor[0])).sum()
    return float(-apart @ cho_solve(factor, apart) / 2 - log_root)


def _variances_given(
    noise: FloatArray, laplace: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return draws of the variances of Laplace noise given what it is."""
    size = np.maximum(np.abs(noise), LEAST_NOISE * np.sqrt(laplace))
    inverse = rng.wald(np.sqrt(2 * laplace) / size, 2.0)
    return np.asarray(laplace * np.maximum(1 / inverse, LEAST_VARIANCE))


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Draws from a posterior, chosen among proposed ones by Pareto-smoothed weights."""

    places: FloatArray  # shape (draws, parameters), unconstrained
    pareto_k: float  # shape of the weights' tail: above .7 they are not to be relied on
    effective: float  # number of independent draws that the weights are worth
    # mean factor by which the covariance of the exact sums was taken as wider
    widening: float

    @property
    def reliable(self) -> bool:
        """Whether the weights carry what is asked of them."""
        return self.pareto_k <= MOST_K and self.effective >= ESS


def importance_draws(
    sums: MeasuredSums,
    here: Linearised,
    rng: np.random.Generator,
    n: int,
    *,
    tried: int = FEWEST,
    attempts: int = ATTEMPTS,
) -> ImportanceDraws:
    """Draw from prior times likelihood, proposals being fitted again to the draws until
    weights can be relied on.

    All draws count, whatever proposal they are from, with weights over the mixture of
    proposals (Cornuet et al. 2012): noise on the curvature gives a posterior tails that
    no single proposal has.
    """
    proposals = [Proposal.near(sums, here)]
    rounds = list[ImportanceDraws]()
    noises = noises_of(sums, here, rng)
    places = np.empty((0, len(here.place)))
    logs = np.empty(0)
    widenings = np.empty(0)
    for _ in range(attempts):
        anchors = proposals[-1].draw(ANCHORS, rng)
        likelihood = sums.density(here, anchors, noises)
        new = proposals[-1].draw(tried, rng)
        likely, wider = likelihood(new)
        with np.errstate(all="ignore"):
            prior = sums.space.likelihood.log_prior(split(sums.space.model, new))
        prior = np.where(np.isfinite(prior), prior, -np.inf)
        places = np.concatenate([places, new])
        logs = np.concatenate([logs, prior + likely])
        widenings = np.concatenate([widenings, wider])
        proposed = logsumexp([each.log_density(places) for each in proposals], axis=0)
        shares, pareto_k = smoothed(logs - proposed)
        chosen = rng.choice(len(places), n, p=tempered(shares))
        drawn = ImportanceDraws(
            places=places[chosen],
            pareto_k=pareto_k,
            effective=float(1 / (shares**2).sum()),
            widening=float(shares @ widenings),
        )
        rounds.append(drawn)
        if drawn.reliable:
            break
        try:
            proposals.append(proposals[-1].fitted(places, shares))
        except np.linalg.LinAlgError:  # draws so far out that they have no covariance
            break
    return max(rounds, key=lambda drawn: (drawn.reliable, drawn.effective))


def smoothed(weights: FloatArray) -> tuple[FloatArray, float]:
    """Return the shares of draws by log weights, shape (draws,), their tail smoothed,
    and the shape of that tail.
    """
    fine = np.isfinite(weights)
    shares = np.zeros(len(weights))
    equal = np.full(len(weights), 1 / len(weights)), np.inf
    if fine.sum() < FEWEST_WEIGHTS:
        return equal
    try:
        # log-likelihoods, whose inverses are weights
        inverse = xr.DataArray(-weights[fine], dims="draw")
        smooth, pareto_k = inverse.azstats.psislw(dim="draw")
    except ValueError:  # a tail of equal weights has no shape
        return equal
    logs = smooth.to_numpy()
    shares[fine] = np.exp(logs - logs.max())
    return shares / shares.sum(), float(pareto_k)


def tempered(shares: FloatArray) -> FloatArray:
    """Return shares, nearer to equal ones by a power below 1 where they are worth few
    draws: these are too sure.
    """
    wanted = 0.99 * min(ESS, int((shares > 0).sum()))
    while 1 / (shares**2).sum() < wanted:
        shares = shares**0.9 / (shares**0.9).sum()
    return shares


@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Draws from the posterior of noisy sums, all of which may be published, and how
    they were made.
    """

    places: FloatArray  # shape (draws, parameters), unconstrained
    # group ``posterior``, in the model's own units; ``sample_stats`` of chains
    tree: xr.DataTree
    facts: Mapping[str, Any]


def posterior_draws(
    sums: MeasuredSums,
    here: Linearised | None,
    rng: np.random.Generator,
    n: int,
    **nuts: Any,
) -> PosteriorDraws:
    """Draw from the posterior by importance sampling, and where its weights can't be
    relied on by NUTS near the mode, as long as it stays where sums are as it says.

    Both read public numbers only, the last sums of scores alone. Where neither can be
    done, and where nothing is known near any parameters, draws are those of the prior.
    ``nuts`` are settings of :func:`pdips.posterior.nuts.sample`.
    """
    last = sums.last_scores
    weighted = None
    chains = None
    if here is not None:
        tried = max(FEWEST, 2 * n)
        weighted = attempt(importance_draws, last, here, rng, n, tried=tried)
        if weighted is None or not weighted.reliable:
            chains = attempt(by_chains, last, here, rng, **nuts)
            if chains is not None and not attempt(is_followed, last, here, chains[0]):
                chains = None
    sampler = "importance"
    if weighted is None:
        sampler = "prior"
        prior = sums.space.prior
        drawn = prior[rng.integers(len(prior), size=n)]
        weighted = ImportanceDraws(drawn, np.inf, float(n), 1.0)
    facts: dict[str, Any]
    if chains is not None:
        places, tree, convergence = chains
        facts = {"sampler": "nuts", "convergence": convergence}
    else:
        places = weighted.places
        tree = tree_of(sums.space.values_of(places))
        facts = {"sampler": sampler}
        if here is not None:
            tree = attempt(with_deterministics, sums, here, tree) or tree
    told = asdict(weighted) | {"pareto_k": finite(weighted.pareto_k)}
    del told["places"]
    misfit = here and attempt(sums.misfit, here.place)
    against: dict[str, Any] = dict(
        zip((MISFIT, MISFIT_BY), misfit or (None, None), strict=True)
    )
    facts["noisy_sums"] = told | learned(sums, places) | against
    return PosteriorDraws(places, tree, facts)


def by_chains(
    sums: MeasuredSums, here: Linearised, rng: np.random.Generator, **nuts: Any
) -> tuple[FloatArray, xr.DataTree, Convergence]:
    """Return draws by NUTS with the linear likelihood, and how well chains agree."""
    noisy = sums.likelihood(here, noises_of(sums, here, rng))
    model = sums.space.model
    parts = split(model, here.place[None])
    start = {
        value.name: part[0] for value, part in zip(model.value_vars, parts, strict=True)
    }
    for number in range(ROUNDS):
        longer = {key: nuts[key] * 2**number for key in ("draws", "tune")}
        tree = sample(noisy, rng=rng, start=start, **nuts | longer)
        convergence = replace(converged(tree, ()), rounds=number + 1)
        if convergence.passed:
            break
    draws = draws_by_name(tree)
    free = {variable.name: draws[variable.name] for variable in model.free_RVs}
    return join(unconstrained(model, free)), tree, convergence


def is_followed(sums: MeasuredSums, here: Linearised, places: FloatArray) -> bool:
    """Whether sums simulated at draws are about as probable there as the linear
    likelihood says that they are drawn from.

    Along a bent ridge, as of an effect times shares that add up to 1, it is flat where
    the likelihood is not, and chains run far along it, sure of themselves.
    """
    start = sums.linearised(here.place)
    lost = []
    for place in places[np.linspace(0, len(places) - 1, FOLLOWED).astype(int)]:
        slopes, residual, _ = start.whitened
        residual = residual - slopes @ (place - here.place)
        told = float(residual @ residual - start.whitened[1] @ start.whitened[1]) / -2
        there = sums.linearised(place).log_likelihood - start.log_likelihood
        lost.append(told - there)
    return float(np.median(lost)) <= LOST + len(here.place) / 2


def learned(sums: MeasuredSums, places: FloatArray) -> dict[str, Any]:
    """Return what there is to tell of a posterior: all of it is public.

    ``moved``: from the last reference to the posterior's median, root mean square of
    standard deviations. ``as_prior``: how many of the ``parameters`` have quartiles
    nearly as far apart as before. ``clipped``: the share of simulated records that each
    round pulls into its ball. ``reference_apart``: from the last reference to the
    parameters that all sums make most probable, in standard deviations of one record.
    """
    posterior = NormalPrior.of(places)
    moved = (posterior.mean - sums.last_reference) / posterior.deviation
    as_prior = posterior.deviation > UNLEARNED * sums.prior.deviation
    return {
        "moved": float(np.sqrt((moved**2).mean())),
        "parameters": len(moved),
        "as_prior": int(as_prior.sum()),
        "clipped": sums.clipped,
        REFERENCE_APART: attempt(lambda: sums.apart),
    }


def with_deterministics(
    sums: MeasuredSums, here: Linearised, tree: xr.DataTree
) -> xr.DataTree:
    """Return draws of the free variables with the model's deterministic ones that read
    no record.
    """
    if not sums.space.model.deterministics:
        return tree
    model = NoisyLikelihood.kept(sums.space, here).model
    if not model.deterministics:
        return tree
    found = pm.compute_deterministics(
        tree["posterior"].to_dataset(),
        model=model,
        extend_dataset=True,
        progressbar=False,
    )
    return xr.DataTree.from_dict({"posterior": found.drop_attrs()})


def predictive_check(
    sums: NoisySums, here: Linearised, found: PosteriorDraws, chosen: Sequence[Draws]
) -> tuple[dict[str, Any], xr.DataTree]:
    """Simulate noisy sums from the posterior and compare the published ones with them;
    reads nothing else.

    Returns findings by step of the plan, as
    :func:`pdips.posterior.inspection.inspect_statistics` has them, and a tree with
    groups ``posterior``, ``prior``, ``posterior_predictive``, ``observed_data`` and
    ``log_likelihood`` of the noisy sums, by step of the plan, each given the steps
    before.
    """
    last = len(found.places) - 1
    places = found.places[np.linspace(0, last, PREDICTED).astype(int)]
    simulated, likely = _predicted(sums, here, places)
    ends = np.cumsum([len(measured.noisy) for measured in sums.measurements])[:-1]
    names = [measured.step for measured in sums.measurements]
    posterior = Posterior(
        tree=found.tree,
        released=chosen,
        facts=found.facts,
        independent="convergence" not in found.facts,
    )
    by_name = dict(zip(names, np.split(simulated, ends, axis=1), strict=True))
    noisy = {measured.step: measured.noisy for measured in sums.measurements}
    facts, tree = inspect_statistics(posterior, by_name, noisy)
    prior = tree_of(sums.space.values_of(sums.space.prior))["posterior"].to_dataset()
    tree["prior"] = xr.DataTree(prior.drop_attrs())
    by_step = {}
    for name, part in zip(names, np.split(likely, ends, axis=1), strict=True):
        stored = stored_name(name)
        by_step[stored] = (["chain", "draw", f"{stored} entry"], part[None])
    tree["log_likelihood"] = xr.DataTree(xr.Dataset(by_step))
    return facts, tree


def _predicted(
    sums: NoisySums, here: Linearised, places: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return noisy sums simulated at posterior draws, and the log-likelihoods of the
    published ones there, each given those before: shape (draws, sums).
    """
    rng = np.random.default_rng(PUBLIC_SEED)
    root = np.linalg.cholesky(regular(here.sampling + here.noise))
    moves = places - here.place
    expected = sums.noisy - here.residual + moves @ here.slopes.T
    simulated = expected + rng.standard_normal(expected.shape) @ root.T
    slopes, residual, _ = here.whitened
    residuals = residual - moves @ slopes.T
    log_scale = np.log(np.diag(root)) + np.log(2 * np.pi) / 2
    return simulated, -(residuals**2) / 2 - log_scale


def climb(sums: NoisySums, values: Values, start: FloatArray) -> FloatArray:
    """Return the parameters at which made-up records are most probable, searched from a
    start.
    """

    def log_density(place: FloatArray) -> tuple[float, FloatArray]:
        value, slope = sums.score.mean_of_public(place, values)
        pull = sums.prior.precision @ (sums.prior.mean - place)
        value = sums.n_records * value + sums.prior.log_density(place)
        return value, sums.n_records * slope + pull

    return most_probable(log_density, start, 150)
