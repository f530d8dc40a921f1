"""What the studies of paper 003 say about MODIPS, and how its targets fare. The figures come from the table."""

import math
from collections.abc import Sequence

import numpy as np

from pdips.privacy.loss import positive
from pdips_papers.harness.epsilon_curves import Figures, Method, short
from pdips_papers.harness.framework import Finding

MODIPS = {
    "modips-published": Method(label="MODIPS plug-in, a fifth of epsilon a set (published)", colour=8, dashed=True),
    "modips-plug-in": Method(label="modips, plug-in, sanitized once", colour=4),
    "modips-aware": Method(label="modips, noise-aware, 5 sets", colour=6),
    "modips-aware-many": Method(label="modips, noise-aware, 100 sets", colour=7),
    "modips-posterior": Method(label="modips, noise-aware, published posterior", colour=5),
}
"""Rows of both simulations."""

SHORT = {
    "modips-published": "MODIPS as published",
    "modips-plug-in": "plug-in, sanitized once",
    "modips-aware": "noise-aware with 5 sets",
    "modips-aware-many": "with 100 sets",
    "modips-posterior": "published posterior",
    "modips-test": "test inverted",
}

LOW, HIGH = 0.93, 0.97
SMALLEST = math.exp(-2) - 1e-6


def coverage_target(seen: Figures, cases: Sequence[str], names: Sequence[str]) -> Finding:
    """Say where noise-aware intervals cover 93 to 97 %, for epsilon from e^-2 on, and what plug-in covers there."""
    epsilons = [epsilon for epsilon in seen.epsilons if positive(epsilon, "epsilon") >= SMALLEST]
    epsilons = epsilons or seen.epsilons[-1:]
    parts, met = [], False
    for name in names:
        values = np.array(seen.over([name], cases, "coverage", epsilons))
        low, high = int((values < LOW).sum()), int((values > HIGH).sum())
        parts.append(
            f"{SHORT[name]}: {values.size - low - high} of {values.size} within, {low} below (lowest "
            f"{100 * values.min():.1f} %), {high} above"
        )
        met = met or low + high == 0
    plug_in = np.array(seen.over(["modips-plug-in"], cases, "coverage", epsilons))
    return Finding(
        claim="(ours) Intervals of 95 % from a noise-aware release cover 93 to 97 % in every case with epsilon from "
        "1/e² on, where plug-in covers less.",
        found=f"{'; '.join(parts)}. Plug-in with all of epsilon at once covers {100 * plug_in.min():.1f} % at worst. "
        "A posterior covers 95 % on average over its prior: where noise leaves little but the prior, a fixed truth is "
        "covered nearly always, or less often if it lies where the prior has little. With few records shares are "
        "lumpy besides.",
        verdict="holds" if met else "holds in part",
    )


def error_target(seen: Figures, cases: Sequence[str]) -> Finding:
    """Compare the errors of noise-aware rows with those of plug-in rows at the same true epsilon."""
    parts = []
    for title, name, other in (
        ("five sets", "modips-aware", "modips-plug-in"),
        ("100 sets against five of plug-in", "modips-aware-many", "modips-plug-in"),
        ("published posterior against MODIPS as published", "modips-posterior", "modips-published"),
    ):
        ratio = np.array(seen.over([name], cases, "rmse", seen.epsilons))
        ratio = ratio / np.array(seen.over([other], cases, "rmse", seen.epsilons))
        parts.append((title, float(np.exp(np.log(ratio).mean())), float(ratio.max()), float((ratio <= 1.02).mean())))
    text = "; ".join(
        f"{title} {mean:.2f} on average, {top:.2f} at most, {100 * share:.0f} % of cases not above 1.02"
        for title, mean, top, share in parts
    )
    return Finding(
        claim="(ours) The RMSE of noise-aware sets is never above that of plug-in sets at the same true epsilon.",
        found=f"RMSE over that of plug-in, all cases and epsilons: {text}.",
        verdict="holds" if min(share for *_, share in parts[1:]) == 1 else "holds in part",
    )


def published_and_once(seen: Figures, cases: Sequence[str]) -> Finding:
    """Say what splitting epsilon over sets costs, and what plug-in covers when it isn't split."""
    small = seen.below(1) or seen.epsilons[:1]
    names = ("modips-published", "modips-plug-in", "modips-posterior")
    error = {name: float(np.mean(seen.over([name], cases, "rmse", small))) for name in names}
    cover = {name: float(np.min(seen.over([name], cases, "coverage", small))) for name in names}
    text = ", ".join(f"{SHORT[name]} {error[name]:.3f} and {100 * cover[name]:.0f} %" for name in names)
    return Finding(
        claim="(ours) Sanitizing once is better than a fifth of epsilon for each set, but then B doesn't see the noise "
        "and W + B / m is too small, unless the posterior allows for it.",
        found=f"Mean RMSE and lowest coverage over all cases and the epsilons below 1: {text}.",
        verdict="holds"
        if cover["modips-plug-in"] < 0.8 and error["modips-plug-in"] < error["modips-published"]
        else "holds in part",
    )


def alike(seen: Figures, cases: Sequence[str]) -> str:
    """Return how far the published rows of MODIPS and the Laplace sanitizer are apart."""
    ratio = np.array(seen.over(["modips-published"], cases, "rmse", seen.epsilons))
    ratio = ratio / np.array(seen.over(["laplace-one-count"], cases, "rmse", seen.epsilons))
    return f"MODIPS as published {ratio.min():.2f} to {ratio.max():.2f} times the Laplace sanitizer's"


def modips_coverage(seen: Figures, cases: Sequence[str]) -> str:
    """Return the lowest coverage of MODIPS as published, below and from epsilon 1 on."""
    small = seen.below(1) or seen.epsilons[:1]
    rest = [epsilon for epsilon in seen.epsilons if epsilon not in small]
    parts = [
        f"{100 * min(seen.over(['modips-published'], cases, 'coverage', chosen)):.1f} % at least {where}"
        for chosen, where in ((small, "below epsilon 1"), (rest, f"from {short(rest[0])} on" if rest else ""))
        if chosen
    ]
    return ", ".join(parts)
