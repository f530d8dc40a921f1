"""Draws from the posterior of noisy sums: importance sampling with reweighted records, or NUTS near the mode."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy.linalg import cho_factor, cho_solve, eigh
from scipy.special import logsumexp

from pdips.arrays import FloatArray, finite
from pdips.convergence import ESS, ROUNDS, Convergence, converged
from pdips.posterior.finished_model import draws_by_name
from pdips.posterior.inspection import Draws, Posterior, inspect_statistics, tree_of
from pdips.posterior.model import PUBLIC_SEED, join, most_probable, split, unconstrained
from pdips.posterior.model_file import stored_name
from pdips.posterior.nuts import sample
from pdips.posterior.record_likelihood import log_prior
from pdips.scores.noisy_likelihood import Linearised, Noises, NoisyLikelihood, NoisySums, NormalPrior, Simulator
from pdips.scores.record_score import Clipping

ANCHORS = 16  # Parameters at which records are simulated that are reweighted to others, besides the mode
RECORDS, MORE_RECORDS = 6_000, 100  # That are reweighted, over all anchors; and so many more for each parameter
FREEDOM = 5  # Degrees of freedom, beside one for each parameter, of the t distribution from which draws are proposed
DIFFERENCE, FLAT = 1e-3, 1e-3  # Of slopes, in deviations; and the least curvature, over that under normal priors
MOST_K = 0.7  # Shape of the tail of importance weights up to which they are relied on (Vehtari et al. 2024)
ATTEMPTS = 4  # Proposals that are tried, each fitted to the weighted draws of the one before
SPREAD = 1.1  # How much wider than the weighted draws the next proposal is
FEWEST, FEWEST_WEIGHTS = 2_000, 25  # Draws proposed at least; and finite weights below which their tail has no shape
MIXED, UNUSED, APART, WIDER = 200, 20, 2, 3.0  # Variances of Laplace noise, Gibbs steps before and between, their prior
LEAST_VARIANCE = 1e-6  # Of Laplace noise at a sum, over its own variance
MOST_WEIGHT = 100.0  # Logarithm of the largest weight of a simulated record; squares of such weights are still numbers
UNLEARNED = 0.9  # Share of the prior's spread from which on nothing was learned of a parameter
PREDICTED = 400  # Draws at which noisy sums are simulated, to compare them with those that were published


def attempt[T](make: Callable[..., T], *given: Any, **more: Any) -> T | None:
    """Return what is made of public numbers, or None where nothing can: after the charge no release may fail."""
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
    def near(cls, sums: NoisySums, here: Linearised) -> "Proposal":
        """Return the one about the most probable parameters, by the linear likelihood and the model's own prior."""
        prior, model, start = prior_with_slope(sums.space.model), sums.space.model, here.place + sums.move(here)
        scale = inverse_root(here.curvature + sums.prior.precision)

        def uphill(place: FloatArray) -> tuple[float, FloatArray]:
            move = place - here.place
            value, slope = prior(*(part[0] for part in split(model, place[None])))
            bent = here.curvature @ move
            return float(value + move @ here.slope - move @ bent / 2), slope + here.slope - bent

        def scaled(z: FloatArray) -> tuple[float, FloatArray]:
            value, slope = uphill(start + scale @ z)
            return value, scale.T @ slope

        with np.errstate(all="ignore"):
            mode = start + scale @ most_probable(scaled, np.zeros(len(start)), 300)
            steps = DIFFERENCE * np.sqrt((scale**2).sum(axis=1))
            rows = [(uphill(mode + step)[1] - uphill(mode - step)[1]) / (2 * step.sum()) for step in np.diag(steps)]
        curvature = -(np.array(rows) + np.array(rows).T) / 2
        fine = np.isfinite(curvature).all() and np.linalg.eigvalsh(scale.T @ curvature @ scale).min() > FLAT
        return cls(mode, inverse_root(curvature)) if fine else cls(start, scale)

    @classmethod
    def fitted(cls, places: FloatArray, shares: FloatArray) -> "Proposal":
        """Return the one with the mean and covariance of weighted draws, a little wider."""
        mean = shares @ places
        apart = places - mean
        return cls(mean, SPREAD * inverse_root(np.linalg.pinv((apart * shares[:, None]).T @ apart, hermitian=True)))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return places, shape (n, parameters), and their log densities up to a constant."""
        d = len(self.mean)
        freedom = FREEDOM + d
        steps = rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(freedom, (n, 1)) / freedom)
        return self.mean + steps @ self.root.T, -(freedom + d) / 2 * np.log1p((steps**2).sum(axis=1) / freedom)


@lru_cache(maxsize=16)
def prior_with_slope(model: pm.Model) -> Any:
    """Return what works out the log prior density of the value variables and its slope, shape (parameters,)."""
    value = log_prior(model)
    slopes = pt.grad(value, model.value_vars, disconnected_inputs="ignore")
    flat = pt.concatenate([slope.ravel() for slope in slopes])
    return pytensor.function(model.value_vars, [value, flat], mode="FAST_COMPILE", on_unused_input="ignore")


def inverse_root(precision: FloatArray) -> FloatArray:
    """Return R with R R' the inverse of a positive semi-definite matrix, as far as doubles tell."""
    values, vectors = np.linalg.eigh(precision)
    if not 0 < values.max() < np.inf:
        raise np.linalg.LinAlgError("no precision")
    return np.asarray(vectors / np.sqrt(np.maximum(values, values.max() * 1e-14)))


def noises_of(sums: NoisySums, here: Linearised, rng: np.random.Generator) -> Noises:
    """Return covariances of noise, with the logarithm of each one's share, whose normal laws mixed are the noise's law.

    Gaussian noise has one. The variance of Laplace noise is exponential given its sum: some are drawn by Gibbs steps
    (inverse Gaussian, as in the Bayesian lasso of Park and Casella 2008) under the linear likelihood and a normal prior
    three times as wide as the linear posterior. Each counts in inverse proportion to its evidence there, so that the
    sum of normal densities is right at any parameters, and accurate at probable ones.
    """
    n, found = len(here.noise), list[tuple[FloatArray, float]]()
    as_normal = [(here.noise + np.eye(n) * 1e-12 * np.trace(here.noise), 0.0)]
    if not here.mixed:
        return as_normal
    apart = here.residual - here.slopes @ sums.move(here)
    wide = WIDER * here.slopes @ inverse_root(here.curvature + sums.prior.precision)
    rest = here.sampling + here.other_noise + wide @ wide.T
    values, vectors = np.linalg.eigh(rest)
    root, variances = vectors * np.sqrt(np.maximum(values, 0.0)), here.laplace
    for step in range(-UNUSED, MIXED * APART):
        try:
            factor = cho_factor(rest + np.diag(variances), lower=True)
        except np.linalg.LinAlgError:  # as doubles have it, no covariance
            return as_normal
        if step >= 0 and step % APART == 0:
            evidence = -apart @ cho_solve(factor, apart) / 2 - np.log(np.diag(factor[0])).sum()
            found.append((here.other_noise + np.diag(variances), -float(evidence)))
        made = np.sqrt(variances) * rng.standard_normal(n)
        noise = made + variances * cho_solve(factor, apart - made - root @ rng.standard_normal(n))
        most = np.sqrt(2 * here.laplace) / np.maximum(np.abs(noise), 1e-9 * np.sqrt(here.laplace))
        variances = here.laplace * np.maximum(1 / rng.wald(most, 2.0), LEAST_VARIANCE)
    return found


class Reweighted:
    """The likelihood of noisy sums at any parameters near some: records simulated at several, reweighted to each.

    Expectations are those simulated at the mode plus a difference: the mean over records of what is summed times the
    change of their weight, p(x | theta) over the mean density at the anchors. Where few records carry the weight the
    covariance of the exact sums is multiplied by what that costs, so that far from the anchors little is said.
    """

    def __init__(self, sums: NoisySums, here: Linearised, anchors: FloatArray, noises: Noises) -> None:
        self._sums, self.n = sums, sums.n_records
        each = -(-(RECORDS + MORE_RECORDS * len(here.place)) // (len(anchors) + 1))
        parts, used = [], []
        simulator = Simulator(sums.space, sums.simulator.public, each, seed=sums.simulator.seed)
        for number, anchor in enumerate([here.place, *anchors]):
            try:
                parts.append(simulator(anchor, number))
            except ValueError:  # parameters at which nothing can be drawn
                continue
            used.append(anchor)
        self._drawn, inside = ({n: np.concatenate([p[k][n] for p in parts]) for n in parts[0][k]} for k in (0, 1))
        functions = sums.functions(inside)
        self._functions = functions - functions.mean(axis=0)
        logs = self._log_densities(np.array(used))
        logs = np.where(np.isfinite(logs), logs, -np.inf)
        self._mixture = logsumexp(logs, axis=0) - np.log(len(used))
        self._weights = self._weighed(logs[0].copy())
        self._residual, self._mixed = here.residual, list[tuple[FloatArray, FloatArray, float]]()
        for noise, share in noises:
            values, basis = eigh(here.sampling, noise)
            self._mixed.append((np.maximum(values, 0.0), basis, share + float(np.linalg.slogdet(basis)[1])))

    def _log_densities(self, places: FloatArray) -> FloatArray:
        """Return the log densities of the simulated records, shape (places, records)."""
        space = self._sums.space
        blocks = space.likelihood.blocks(self._drawn, split(space.model, places), mode=None)
        return np.concatenate([found for _, found in blocks])

    def _weighed(self, logs: FloatArray) -> FloatArray:
        """Return the weights of records; one whose density is no number weighs nothing. ``logs`` are used up."""
        with np.errstate(all="ignore"):
            logs -= self._mixture
            np.exp(np.minimum(logs, MOST_WEIGHT, out=logs), out=logs)
            if not np.isfinite(logs.sum()):
                np.nan_to_num(logs, copy=False, nan=0.0)
        return logs

    def __call__(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-likelihoods up to a constant, and the factors by which covariances of the exact sums are wider."""
        likely, wider = np.empty(len(places)), np.empty(len(places))
        at_once = max(500_000 // len(self._mixture), 1)
        for first in range(0, len(places), at_once):
            some = slice(first, first + at_once)
            change = self._weighed(self._log_densities(places[some]))
            change -= self._weights
            shift = change @ self._functions / change.shape[1]
            squares = np.einsum("ij,ij->i", change, change) / change.shape[1]
            wide = 1 + self.n * (squares / change.shape[1] + change.mean(axis=1) ** 2)
            apart, parts = self._residual - self.n * shift, []
            for values, basis, share in self._mixed:
                variance = 1 + wide[:, None] * values
                parts.append(share - ((apart @ basis) ** 2 / variance + np.log(variance)).sum(axis=1) / 2)
            likely[some], wider[some] = logsumexp(parts, axis=0), wide
        return likely, wider


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Draws from a posterior, chosen among proposed ones by Pareto-smoothed weights."""

    places: FloatArray  # shape (draws, parameters), unconstrained
    pareto_k: float  # shape of the weights' tail: above .7 they are not to be relied on
    effective: float  # number of independent draws that the weights are worth
    widening: float  # mean factor by which the covariance of the exact sums was taken as wider

    @property
    def reliable(self) -> bool:
        """Whether the weights carry what is asked of them."""
        return self.pareto_k <= MOST_K and self.effective >= ESS


def importance_draws(
    sums: NoisySums, here: Linearised, rng: np.random.Generator, n: int, *, tried: int = FEWEST
) -> ImportanceDraws:
    """Draw from prior times likelihood, proposals being fitted again to the draws until weights can be relied on."""
    proposal, found, noises = Proposal.near(sums, here), list[ImportanceDraws](), noises_of(sums, here, rng)
    for _ in range(ATTEMPTS):
        anchors, _ = proposal.draw(ANCHORS, rng)
        likelihood = Reweighted(sums, here, anchors, noises)
        places, proposed = proposal.draw(tried, rng)
        likely, wider = likelihood(places)
        with np.errstate(all="ignore"):
            prior = sums.space.likelihood.log_prior(split(sums.space.model, places))
        shares, pareto_k = smoothed(np.where(np.isfinite(prior), prior, -np.inf) + likely - proposed)
        chosen = rng.choice(tried, n, p=tempered(shares))
        effective, widening = float(1 / (shares**2).sum()), float(shares @ wider)
        found.append(ImportanceDraws(places[chosen], pareto_k, effective, widening))
        if found[-1].reliable:
            break
        try:
            proposal = Proposal.fitted(places, shares)
        except np.linalg.LinAlgError:  # draws so far out that they have no covariance
            break
    return max(found, key=lambda each: (each.reliable, each.effective))


def smoothed(weights: FloatArray) -> tuple[FloatArray, float]:
    """Return the shares of draws by log weights, shape (draws,), their tail smoothed, and the shape of that tail."""
    fine, shares = np.isfinite(weights), np.zeros(len(weights))
    equal = np.full(len(weights), 1 / len(weights)), np.inf
    if fine.sum() < FEWEST_WEIGHTS:
        return equal
    try:
        inverse = xr.DataArray(-weights[fine], dims="draw")  # log-likelihoods, whose inverses are weights
        logs, pareto_k = (each.to_numpy() for each in inverse.azstats.psislw(dim="draw"))
    except ValueError:  # a tail of equal weights has no shape
        return equal
    shares[fine] = np.exp(logs - logs.max())
    return shares / shares.sum(), float(pareto_k)


def tempered(shares: FloatArray) -> FloatArray:
    """Return shares, nearer to equal ones by a power below 1 where they are worth few draws: these are too sure."""
    while 1 / (shares**2).sum() < 0.99 * min(ESS, int((shares > 0).sum())):
        shares = shares**0.9 / (shares**0.9).sum()
    return shares


@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Draws from the posterior of noisy sums, all of which may be published, and how they were made."""

    places: FloatArray  # shape (draws, parameters), unconstrained
    tree: xr.DataTree  # group ``posterior``, in the model's own units; ``sample_stats`` of chains
    facts: Mapping[str, Any]


def posterior_draws(
    sums: NoisySums, here: Linearised | None, rng: np.random.Generator, n: int, **nuts: Any
) -> PosteriorDraws:
    """Draw from the posterior by importance sampling, and where its weights can't be relied on by NUTS near the mode.

    Both read public numbers only. Where neither can be done, and where nothing is known near any parameters, draws are
    those of the prior. ``nuts`` are settings of :func:`pdips.posterior.nuts.sample`.
    """
    made, chains, sampler = None, None, "importance"
    if here is not None:
        made = attempt(importance_draws, sums, here, rng, n, tried=max(FEWEST, 2 * n))
        chains = None if made is not None and made.reliable else attempt(by_chains, sums, here, rng, **nuts)
    if made is None:
        prior, sampler = sums.space.prior, "prior"
        made = ImportanceDraws(prior[rng.integers(len(prior), size=n)], np.inf, float(n), 1.0)
    told = asdict(made) | {"pareto_k": finite(made.pareto_k)}
    del told["places"]
    if chains is not None:
        places, tree, found = chains
        facts: dict[str, Any] = {"sampler": "nuts", "convergence": found}
    else:
        places, tree, facts = made.places, tree_of(sums.space.values_of(made.places)), {"sampler": sampler}
        if here is not None:
            tree = attempt(with_deterministics, sums, here, tree) or tree
    return PosteriorDraws(places, tree, facts | {"noisy_sums": told | learned(sums, places)})


def by_chains(
    sums: NoisySums, here: Linearised, rng: np.random.Generator, **nuts: Any
) -> tuple[FloatArray, xr.DataTree, Convergence]:
    """Return draws by NUTS with the linear likelihood, and how well chains agree."""
    noisy, model = NoisyLikelihood.kept(sums.space, here, noises_of(sums, here, rng)), sums.space.model
    start = {v.name: part[0] for v, part in zip(model.value_vars, split(model, here.place[None]), strict=True)}
    for number in range(ROUNDS):
        longer = {key: nuts[key] * 2**number for key in ("draws", "tune")}
        tree = sample(noisy, rng=rng, start=start, **nuts | longer)
        found = replace(converged(tree, ()), rounds=number + 1)
        if found.passed:
            break
    draws = draws_by_name(tree)
    return join(unconstrained(model, {v.name: draws[v.name] for v in model.free_RVs})), tree, found


def learned(sums: NoisySums, places: FloatArray) -> dict[str, Any]:
    """Return what there is to tell of a posterior: all of it is public.

    ``moved``: from the last reference to the posterior's median, root mean square of standard deviations. ``as_prior``:
    how many of the ``parameters`` have quartiles nearly as far apart as before. ``clipped``: the share of simulated
    records that each round pulls into its ball.
    """
    posterior = NormalPrior.of(places)
    moved = (posterior.mean - sums.last_reference) / posterior.deviation
    found = []
    for each in sums.measurements:
        if isinstance(each.question, Clipping):
            _, inside = sums.simulator(each.question.place)
            whitened = each.question.whitened(sums.score.of_public(each.question.place, inside))
            found.append(float((each.question.lengths(whitened) > each.question.radius).mean()))
    return {
        "moved": float(np.sqrt((moved**2).mean())),
        "parameters": len(moved),
        "as_prior": int((posterior.deviation > UNLEARNED * sums.prior.deviation).sum()),
        "clipped": found,
    }


def with_deterministics(sums: NoisySums, here: Linearised, tree: xr.DataTree) -> xr.DataTree:
    """Return draws of the free variables with the model's deterministic ones that read no record."""
    if not sums.space.model.deterministics:
        return tree
    model = NoisyLikelihood.kept(sums.space, here).model
    if not model.deterministics:
        return tree
    found = pm.compute_deterministics(
        tree["posterior"].to_dataset(), model=model, extend_dataset=True, progressbar=False
    )
    return xr.DataTree.from_dict({"posterior": found.drop_attrs()})


def predictive_check(
    sums: NoisySums, here: Linearised, found: PosteriorDraws, chosen: Sequence[Draws]
) -> tuple[dict[str, Any], xr.DataTree]:
    """Simulate noisy sums from the posterior and compare the published ones with them; reads nothing else.

    Returns findings by step of the plan, as :func:`pdips.posterior.inspection.inspect_statistics` has them, and a tree
    with groups ``posterior``, ``prior``, ``posterior_predictive``, ``observed_data`` and ``log_likelihood`` of the
    noisy sums, by step of the plan, each given the steps before.
    """
    rng = np.random.default_rng(PUBLIC_SEED)
    places = found.places[np.linspace(0, len(found.places) - 1, PREDICTED).astype(int)]
    covariance = here.sampling + here.noise
    root = np.linalg.cholesky(covariance + np.eye(len(covariance)) * 1e-12 * np.trace(covariance))
    expected = sums.noisy - here.residual + (places - here.place) @ here.slopes.T
    simulated = expected + rng.standard_normal(expected.shape) @ root.T
    slopes, residual, _ = here.whitened
    residuals = residual - (places - here.place) @ slopes.T
    likely = -(residuals**2) / 2 - np.log(np.diag(root)) - np.log(2 * np.pi) / 2
    ends = np.cumsum([len(each.noisy) for each in sums.measurements])[:-1]
    names = [each.step for each in sums.measurements]
    by_step = dict(zip(names, np.split(simulated, ends, axis=1), strict=True))
    independent = "convergence" not in found.facts
    posterior = Posterior(tree=found.tree, released=chosen, facts=found.facts, independent=independent)
    facts, tree = inspect_statistics(posterior, by_step, {each.step: each.noisy for each in sums.measurements})
    prior = tree_of(sums.space.values_of(sums.space.prior))["posterior"].to_dataset()
    tree["prior"] = xr.DataTree(prior.drop_attrs())
    parts = zip(names, np.split(likely, ends, axis=1), strict=True)
    stored = {stored_name(name): (["chain", "draw", f"{stored_name(name)} entry"], part[None]) for name, part in parts}
    tree["log_likelihood"] = xr.DataTree(xr.Dataset(stored))
    return facts, tree
