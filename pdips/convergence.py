"""Whether Markov chains agree well enough to be used. What chains that read records say
stays inside.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from pdips.errors import InputError, NotConvergedError

if TYPE_CHECKING:
    import xarray as xr

# R-hat is to be below, bulk and tail draws above, for every element of every variable
RHAT = 1.01
ESS = 400
# Below this a chain's energy moves too little (Betancourt 2016); no release is refused
# for that
BFMI = 0.3

LOG = logging.getLogger("pdips")

# Chains that disagree are run again, longer each time; refused after so many runs
ROUNDS = 3

NOT_CONVERGED = (
    "the sampler did not converge, so its draw is not one of the posterior that the "
    "price is proved for, and nothing "
    "is released; the spend stays charged, and withholding is itself an observation "
    "of the records that no epsilon "
    "pays for; reparametrise the model on public or synthetic data, or use more "
    "tuning and draws"
)

Extended = Annotated[
    float, BeforeValidator(lambda value: np.inf if value is None else value)
]
"""A number that may be infinite, which JSON writes as null."""


@dataclass(frozen=True)
class Convergence:
    """How well chains agree, in numbers: a function of the records where the chains
    read them, which stays inside.

    By variable: R-hat, the largest over its elements, and effective draws for the
    centre and the tails, the smallest. ``rounds`` says how often chains were run until
    they agreed like this, each time longer than the time before.
    """

    rhat: Mapping[str, Extended]
    ess_bulk: Mapping[str, Extended]
    ess_tail: Mapping[str, Extended]
    divergences: int
    rounds: int = 1

    @property
    def largest_rhat(self) -> float:
        """R-hat of the variable whose chains agree least; 1 if nothing was watched."""
        return max(self.rhat.values(), default=1.0)

    @property
    def smallest_ess_bulk(self) -> float:
        """Effective draws for the centre of the variable that has fewest; infinite if
        nothing was watched.
        """
        return min(self.ess_bulk.values(), default=np.inf)

    @property
    def smallest_ess_tail(self) -> float:
        """Effective draws for the tails of the variable that has fewest; infinite if
        nothing was watched.
        """
        return min(self.ess_tail.values(), default=np.inf)

    @property
    def passed(self) -> bool:
        """Whether R-hat < 1.01 and both effective sizes > 400 everywhere, and there are
        no divergences.
        """
        enough = min(self.smallest_ess_bulk, self.smallest_ess_tail) > ESS
        return enough and self.largest_rhat < RHAT and self.divergences == 0


def converged(tree: "xr.DataTree", watch: Sequence[str] = ()) -> Convergence:
    """Return how well the chains of a posterior agree, in the variables to ``watch`` or
    in all.
    """
    az: Any = import_module("arviz_stats")
    posterior = tree["posterior"].to_dataset()
    for name in watch:
        if name not in posterior:
            raise InputError(
                f"the model has no variable {name!r} to watch; it has "
                f"{', '.join(map(str, posterior.data_vars))}"
            )
    looked_at = posterior[list(watch)] if watch else posterior
    still = looked_at.std(("chain", "draw")) == 0
    with np.errstate(all="ignore"):
        rhat = az.rhat(looked_at)
        bulk = az.ess(looked_at, method="bulk")
        tail = az.ess(looked_at, method="tail")
    # none where no gradients are followed
    divergences = 0
    if "sample_stats" in tree and "diverging" in tree["sample_stats"].data_vars:
        divergences = int(tree["sample_stats"]["diverging"].sum())
    return Convergence(
        rhat=_by_name(rhat, still, np.inf, np.max),
        ess_bulk=_by_name(bulk, still, 0, np.min),
        ess_tail=_by_name(tail, still, 0, np.min),
        divergences=divergences,
    )


def _by_name(
    values: Any, still: Any, unknown: float, worst: Callable[[Any], Any]
) -> dict[str, float]:
    return {
        str(name): _worst(values[name], still[name], unknown, worst) for name in values
    }


def _worst(
    found: "xr.DataArray", still: "xr.DataArray", unknown: float, worst: Any
) -> float:
    """Return the worst of some elements; those that never move are constants of the
    model, not chains that hang.
    """
    moving = found.to_numpy()[~still.to_numpy()]
    moving = np.where(np.isnan(moving), unknown, moving)
    if moving.size:
        return float(worst(moving))
    return 1.0 if unknown else np.inf


def announce(round_: int, *, confidential: bool) -> None:
    """Tell the curator, in the log of ``pdips``, that chains disagreed and are run
    again.
    """
    said = f"Chains disagreed; running them again, longer (round {round_} of {ROUNDS})."
    if confidential:
        LOG.warning("%s This decision is not covered by the privacy guarantee.", said)
    else:
        LOG.info("%s They read noisy statistics only, so this costs nothing.", said)


def require(convergence: Convergence) -> None:
    """Refuse to go on with chains that don't agree."""
    if not convergence.passed:
        raise NotConvergedError(NOT_CONVERGED)
