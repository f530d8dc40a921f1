"""The combining rules: the law of each, its test of several coefficients, and which
release it fits.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import (
    chdtrc,
    fdtrc,
    gammainc,
    gammaincinv,
    ndtr,
    ndtri,
    stdtr,
    stdtrit,
)

from pdips.arrays import BoolArray, FloatArray
from pdips.errors import InputError, hint
from pdips.registry import MECHANISMS, find, load
from pdips.release.certificate import Certificate
from pdips.release.documents import read_bytes, read_json
from pdips.release.offers import SetsShare
from pdips.release.public_draws import Contradiction, contradiction
from pdips.release.release import TREE_FILE, Release

BY_WHAT_SETS_SHARE: dict[SetsShare, "Rule"] = {
    "own noise": "sanitized",
    "fresh noise": "between",
    "posterior": "posterior-predictive",
}
"""The rule by what sets share; of those that share their noise none is right."""
# Under which name facts hold how often noisy answers would be so far from the model
CONTRADICTED_BY = "contradicted"
# Imports xarray, which a release without a model does without
READ_TREE = "pdips.release.tree:read_tree"
# How much of the tail below zero goes to a variance of exactly zero; the rest is spread
# over the others
AT_ZERO = 0.8

_legendre = cache(np.polynomial.legendre.leggauss)
_TAIL = 1e-16
_NEWTON_STEPS = 200


@dataclass(frozen=True, eq=False)
class Student:
    """Student's t times the root of a variance; normal for infinite degrees of
    freedom.
    """

    variance: FloatArray
    degrees: FloatArray

    def half_width(self, level: float) -> FloatArray:
        """Return the quantile at (1 + level) / 2, for each coefficient."""
        return np.asarray(
            stdtrit(self.degrees, (1 + level) / 2) * np.sqrt(self.variance)
        )

    def two_sided(self, distance: FloatArray) -> FloatArray:
        """Return twice the tail beyond each distance; 0 or 1 without variance."""
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.abs(distance) / np.sqrt(self.variance)
        ratio = np.where(distance == 0, 0.0, far)
        tails = 2 * stdtr(self.degrees, -ratio)
        return np.where(np.isnan(self.variance), np.nan, tails)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of centred normals: standard deviations and weights, of shape (...,
    components).
    """

    deviations: FloatArray
    weights: FloatArray

    def two_sided(self, distance: FloatArray) -> FloatArray:
        """Return the weighted sum of both tails beyond each distance."""
        far = np.abs(distance)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(far == 0, 0.0, far / self.deviations)
        return np.asarray((2 * ndtr(-ratio) * self.weights).sum(axis=-1))

    def half_width(self, level: float) -> FloatArray:
        """Return where both tails together are 1 - level, by Newton's method.

        Both tails are convex beyond 0, so steps from below never overshoot and the
        iteration can't fail.
        """
        used = np.where(self.weights > 0, self.deviations, np.inf)
        least = np.nanmin(used, axis=-1, initial=np.inf)
        half = np.asarray(ndtri((1 + level) / 2) * least)
        for _ in range(_NEWTON_STEPS):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = half[..., None] / self.deviations
                density = np.exp(-0.5 * ratio**2) / self.deviations
                slope = 2 / np.sqrt(2 * np.pi) * np.nansum(density * self.weights, -1)
                ahead = (self.two_sided(half) - (1 - level)) / slope
            step = np.where(slope > 0, ahead, 0.0)
            half = half + np.maximum(step, 0)
            if not (step > 1e-12 * half).any():
                break
        return np.where(np.isnan(self.weights).any(axis=-1), np.nan, half)


def inverse_chi2(
    sum_of_squares: FloatArray,
    degrees: float,
    floor: FloatArray,
    *,
    at_floor: float = AT_ZERO,
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of ``sum_of_squares / chi2``; of what falls below a
    floor, ``at_floor`` moves onto it.

    Nodes have one axis more, whose last place is the floor; weights add up to 1, and
    are NaN where an input is. Gauss-Legendre over the root of the chi-square variable,
    in which all integrands here are smooth, between its quantiles 1e-16 and 1 - 1e-16
    within the values that the floor leaves.
    """
    half = degrees / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(floor > 0, sum_of_squares / floor / 2, np.inf)
        above = gammainc(half, most)
        # there the law of chi2 / most is beta(half, 1), to machine precision
        tiny = (above < 1e-250)[..., None]
        roots, weights = _roots_of_chi2(degrees, most, above, tiny)
        numerator = np.where(tiny, floor[..., None], sum_of_squares[..., None])
        nodes = numerator / roots**2
    missing = np.isnan(sum_of_squares + floor)
    onto = np.where(missing, np.nan, at_floor * (1 - above))[..., None]
    last = floor[..., None]
    nodes = np.concatenate([np.maximum(nodes, last), last], axis=-1)
    return nodes, np.concatenate([(1 - onto) * weights, onto], axis=-1)


def _roots_of_chi2(
    degrees: float, most: FloatArray, above: FloatArray, tiny: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of the root of a chi-square variable that is at most
    twice ``most``, which has probability ``above``; where that is ``tiny`` of the root
    over its largest value.
    """
    half = degrees / 2
    tails = np.array([_TAIL, 1 - _TAIL]).reshape(2, *[1] * above.ndim)
    lowest, highest = gammaincinv(half, above * tails)
    points, parts = _legendre(200)
    shares = (points + 1) / 2
    first = np.sqrt(2 * lowest)[..., None]
    last = np.sqrt(2 * np.minimum(highest, most))[..., None]
    least = _TAIL ** (1 / degrees)
    relative = least + (1 - least) * shares
    roots = np.where(tiny, relative, first + (last - first) * shares)
    half_squares = np.where(tiny, 0, roots**2 / 2)
    log_density = (degrees - 1) * np.log(roots) - half_squares
    weights = parts * np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    return roots, weights / weights.sum(axis=-1, keepdims=True)


type Rule = Literal[
    "sanitized",
    "partial",
    "between",
    "posterior-predictive",
    "fully-synthetic",
    "raab-nowok-dibben",
    "rubin",
]

RULES: tuple[str, ...] = get_args(Rule.__value__)
ONE_STANDARD_DEVIATION = 0.682689492137086  # of a normal law


def check_rule(rule: str, n_sets: int) -> None:
    """Refuse a rule that there isn't, and one that needs more sets."""
    if rule not in RULES:
        raise InputError(
            f"rule must be one of {', '.join(RULES)}, not {rule!r}{hint(rule, RULES)}"
        )
    if n_sets < 1:
        raise InputError("combining needs at least one set")
    if n_sets < 2 and rule != "raab-nowok-dibben":
        raise InputError(
            f"rule {rule!r} compares sets with each other and needs at least 2 of "
            f"them; with one set only "
            "'raab-nowok-dibben' gives an interval, and it knows of no privacy "
            "noise: ask for more sets"
        )


def total_variance(
    rule: str, between: FloatArray, within: FloatArray, m: int, ratio: float
) -> FloatArray:
    """Return ``T`` of a rule whose law is Student's, from ``B`` and ``W`` as variances
    or as matrices.
    """
    if rule == "raab-nowok-dibben":
        return within * (ratio + (1 + ratio) / m)
    if rule == "rubin":
        return within + (1 + 1 / m) * between
    if rule == "between":
        return (1 + 1 / m) * between
    if rule == "fully-synthetic":
        return (1 + 1 / m) * between - within
    return within + between / m


def law_of(
    rule: str, between: FloatArray, within: FloatArray, m: int, ratio: float
) -> Student | Mixture:
    """Return the law of estimand minus estimate, symmetric about 0, for each
    coefficient, from ``B`` and ``W``.
    """
    if rule == "posterior-predictive":
        return predictive_law(between, within, m)
    variance = total_variance(rule, between, within, m, ratio)
    if rule == "raab-nowok-dibben":
        return Student(variance, np.where(np.isnan(variance), np.nan, np.inf))
    if rule == "between":
        return Student(variance, np.where(np.isnan(variance), np.nan, m - 1))
    extra = (1 + 1 / m) * between
    if rule in ("sanitized", "partial"):
        extra = between / m
    sign = 1
    is_normal = extra == 0
    if rule == "fully-synthetic":
        sign = -1
        is_normal = ~(extra > within)
        variance = np.where(is_normal, ratio * within, variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = (m - 1) * (1 + sign * within / extra) ** 2
    degrees = np.where(is_normal, np.inf, degrees)
    missing = np.isnan(within + extra)
    return Student(
        np.where(missing, np.nan, variance), np.where(missing, np.nan, degrees)
    )


def predictive_law(
    between: FloatArray, within: FloatArray, m: int, *, at_zero: float = AT_ZERO
) -> Mixture:
    """Return the mixture of normals of the rule for posterior predictive sets."""
    total, weights = inverse_chi2((m - 1) * between, m - 1, within, at_floor=at_zero)
    known = within[..., None]
    variance = (1 + 1 / m) * (total - known) + known / m
    return Mixture(np.sqrt(variance), weights)


@dataclass(frozen=True, kw_only=True)
class Wald:
    """A test that several coefficients have the values of a null hypothesis.

    Attributes
    ----------
    statistic : float
        Of F's scale: a quadratic form over its number of coefficients.
    degrees_of_freedom : tuple of float
        Of F: above, below. Below NaN for ``"posterior-predictive"``, whose law is a
        mixture of chi-squares.
    p_value : float

    Examples
    --------
    >>> from pdips.inference import combine
    >>> estimates, covariances = (
    ...     [[1.0, 0.2], [1.2, 0.1], [0.8, 0.0]],
    ...     [np.eye(2) / 10] * 3,
    ... )
    >>> combine(estimates, covariances, rule="sanitized").wald().p_value < 0.05
    True
    """

    statistic: float
    degrees_of_freedom: tuple[float, float]
    p_value: float


def f_test(
    rule: str,
    off: FloatArray,
    between: FloatArray,
    within: FloatArray,
    m: int,
    ratio: float,
) -> Wald:
    """Test that a vector of differences from the null is zero, with ``B`` and ``W`` as
    matrices.
    """
    k = len(off)
    if rule == "between" and m <= k:
        raise InputError(
            f"rule 'between' tests at most {m - 1} coefficients with "
            f"{m} sets: ask for more sets"
        )
    metric = between if rule == "between" else within
    try:
        form = float(off @ np.linalg.solve(metric, off)) / k
        trace = float(np.trace(np.linalg.solve(within, between))) / k
    except np.linalg.LinAlgError:
        raise InputError(
            "the mean covariance of these coefficients is singular: test fewer of them"
        ) from None
    if rule == "between":
        return _hotelling(form, k, m)
    if rule == "posterior-predictive":
        return _averaged_test(form, trace, k, m)
    factor = float(total_variance(rule, np.array(trace), np.array(1.0), m, ratio))
    if factor <= 0:
        raise InputError(
            f"rule {rule!r} finds no variance to test with here; "
            f"'posterior-predictive' always does"
        )
    statistic = form / factor
    sign = -1 if rule == "fully-synthetic" else 1
    r = factor - sign
    if rule == "raab-nowok-dibben" or r == 0:
        below = math.inf
        p = float(chdtrc(k, k * statistic))
    else:
        below = _degrees_below(k, k * (m - 1), sign, r)
        p = float(fdtrc(k, below, statistic))
    return Wald(statistic=statistic, degrees_of_freedom=(k, below), p_value=p)


def _hotelling(form: float, k: int, m: int) -> Wald:
    """Return Hotelling's test, from off' B^-1 off / k."""
    statistic = form / (1 + 1 / m) * (m - k) / (m - 1)
    p = float(fdtrc(k, m - k, statistic))
    return Wald(statistic=statistic, degrees_of_freedom=(k, m - k), p_value=p)


def _averaged_test(form: float, trace: float, k: int, m: int) -> Wald:
    """Return a test that averages chi-square tails over the share of B + W in W, one
    number for all k.
    """
    t = k * (m - 1)
    nodes, weights = inverse_chi2(np.array(t * trace), t, np.array(1.0))
    factors = (1 + 1 / m) * (nodes - 1) + 1 / m
    p = float(weights @ chdtrc(k, k * form / factors))
    below = np.cumsum(weights[::-1])
    middle = float(np.interp(0.5, below, factors[::-1]))
    statistic = form / middle
    return Wald(statistic=statistic, degrees_of_freedom=(k, math.nan), p_value=p)


def _degrees_below(k: int, t: int, sign: int, r: float) -> float:
    """Return F's degrees of freedom below; where t <= 4 those of Li, Raghunathan and
    Rubin (1991) for few sets.
    """
    if t > 4:
        return 4 + (t - 4) * (1 + sign * (1 - 2 / t) / r) ** 2
    return t * (1 + 1 / k) * (1 + sign / r) ** 2 / 2


def rule_for(release: Release | Mapping[str, Any] | str | Path) -> Rule:
    """Say which combining rule fits a release.

    Parameters
    ----------
    release : Release, dict, or path
        The release, the contents of its ``privacy.json``, that file, or the folder it
        lies in.

    Returns
    -------
    str
        ``"posterior-predictive"`` for ``scores`` and for ``modips`` with
        ``split="once"``, whose sets are posterior draws given one noisy release;
        ``"between"`` for ``margins`` with ``sets="posterior"``, the default of several
        sets, where each comes from a fit with fresh noise;
        ``"sanitized"`` for sets with noise of their own (``split="per-set"``).

    Warns
    -----
    UserWarning
        Where no rule is right and the nearest is returned: ``modips`` with the plug-in
        likelihood and ``split="once"``, whose posterior takes noisy statistics as
        exact; other mechanisms with ``split="once"``, whose sets share their noise (or
        one draw of the parameters), so that the variance between them doesn't show it.
        The interval is then too short. And where the noisy answers contradict the
        model: sets are drawn of it, so no rule gives what it states.

    Raises
    ------
    InputError
        If there is one set only, the release doesn't say how it was made, or its
        certificate (``pdips certify``) shows that intervals of levels or pairs don't
        hold.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Margins(epsilon=1, n_sets=2, split="per-set").release(table)
    >>> rule_for(release)
    'sanitized'
    """
    rule, note = nearest_rule(release)
    if note:
        warnings.warn(note, UserWarning, stacklevel=2)
    return rule


def nearest_rule(
    release: Release | Mapping[str, Any] | str | Path,
) -> tuple[Rule, str | None]:
    """Return the rule of :func:`rule_for`, and what it warns of where none is right."""
    facts = _facts(release)
    name = str(facts["mechanism"])
    settings = facts["settings"]
    shared = facts["sets_share"]
    if facts["n_sets"] < 2:
        splits: tuple[str, ...] = find(name).splits if name in MECHANISMS else ()
        advice = 'with split="per-set"'
        if shared in ("posterior", "fresh noise") or settings.get("sets"):
            advice = f"for {name} more sets cost nothing"
        elif name in MECHANISMS and "per-set" not in splits:
            advice = f"of a mechanism with split='per-set'; {name} hasn't"
        raise InputError(
            "one synthetic set can't show how uncertain its estimates are, so no "
            "rule fits it: ask for a release of "
            f"two sets or more ({advice}), or combine it by 'raab-nowok-dibben', "
            f"which knows of no privacy noise: too "
            "short an interval"
        )
    if shared in BY_WHAT_SETS_SHARE:
        return BY_WHAT_SETS_SHARE[shared], _contradiction(facts)
    if facts["posterior_of"] == "answers":
        return "posterior-predictive", (
            "the plug-in likelihood takes noisy statistics as exact, so sets made "
            "from them once don't show the noise: "
            "no rule is right, 'posterior-predictive' is the nearest, and its "
            "intervals are too short"
        )
    note = (
        f"the sets of {name} share their noise (split='once'), so the variance "
        f"between them doesn't show it: "
        f"'sanitized' is the nearest rule and its intervals are too short"
    )
    if settings.get("sets"):
        note += "; sets made with sets='posterior' show it"
    return "sanitized", note


def _contradiction(facts: Mapping[str, Any]) -> str | None:
    """Return what is wrong with sets of a model that noisy answers contradict."""
    against = facts.get(CONTRADICTED_BY)
    if against is None:
        return None
    return (
        f"the noisy answers contradict the model from which the sets of "
        f"{facts['mechanism']} are drawn: {against.reason} (so far off in "
        f"{100 * against.share:.2g} % of releases, if it were right). Their intervals "
        f"hold what they state only of what the model is right about"
    )


def _of_model(release: Release) -> Contradiction | None:
    draws = release.posterior_draws
    return contradiction(draws.posterior.attrs) if draws is not None else None


def _facts(release: Release | Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(release, Release):
        return {
            "mechanism": release.mechanism,
            "settings": release.settings,
            "n_sets": release.n_sets,
            "sets_share": release.offers.sets_share,
            "posterior_of": release.offers.posterior_of,
            CONTRADICTED_BY: _of_model(release),
        }
    facts = release if isinstance(release, Mapping) else _read_facts(Path(release))
    n_sets = facts.get("n_sets")
    is_whole = isinstance(n_sets, int) and not isinstance(n_sets, bool)
    has_settings = isinstance(facts.get("settings"), Mapping)
    if not has_settings or not is_whole or "mechanism" not in facts:
        raise InputError("privacy.json must hold mechanism, settings and n_sets")
    offers = facts.get("offers")
    kept = offers if isinstance(offers, Mapping) else {}
    if kept.get("sets_share") not in get_args(SetsShare):
        raise InputError(
            f"privacy.json doesn't say what the sets of {facts['mechanism']} share: "
            f"name the rule yourself"
        )
    shared = {name: kept.get(name) for name in ("sets_share", "posterior_of")}
    return {**facts, **shared}


def _read_facts(path: Path) -> Mapping[str, Any]:
    """Read ``privacy.json``, or the one in a folder, unless its certificate shows that
    no rule holds.
    """
    places = (path, path / "privacy.json", path / "public" / "privacy.json")
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise InputError(f"there is no privacy.json in {path}")
    facts = dict(read_json(file))
    certificate = Certificate.beside(file.parent)
    if certificate is not None and certificate.refusal:
        raise InputError(
            f"{certificate.refusal}; name a rule yourself to use it all the same"
        )
    tree = file.parent / TREE_FILE
    if tree.is_file():
        posterior = load(READ_TREE)(read_bytes(tree))["posterior"]
        facts[CONTRADICTED_BY] = contradiction(posterior.attrs)
    return facts
