"""Whether Markov chains agree well enough to be used. What chains that read records say stays inside."""

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from pdips.errors import InputError, RefusedError

if TYPE_CHECKING:
    import xarray as xr

RHAT, ESS = 1.01, 400  # R-hat is to be below, bulk and tail draws above, for every element of every variable
BFMI = 0.3  # Below this a chain's energy moves too little (Betancourt 2016); no release is refused for that

LOG = logging.getLogger("pdips")

ROUNDS = 3  # Chains that disagree are run again, longer each time; refused after so many runs

NOT_CONVERGED = (
    "the sampler did not converge, so its draw is not one of the posterior that the price is proved for, and nothing "
    "is released; the spend stays charged, and withholding is itself an observation of the records that no epsilon "
    "pays for; reparametrise the model on public or synthetic data, or use more tuning and draws"
)

Extended = Annotated[float, BeforeValidator(lambda value: np.inf if value is None else value)]
"""A number that may be infinite, which JSON writes as null."""


@dataclass(frozen=True)
class Convergence:
    """How well chains agree, in numbers: a function of the records where the chains read them, which stays inside.

    By variable: R-hat, the largest over its elements, and effective draws for the centre and the tails, the smallest.
    ``rounds`` says how often chains were run until they agreed like this, each time longer than the time before.
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
        """Effective draws for the centre of the variable that has fewest; infinite if nothing was watched."""
        return min(self.ess_bulk.values(), default=np.inf)

    @property
    def smallest_ess_tail(self) -> float:
        """Effective draws for the tails of the variable that has fewest; infinite if nothing was watched."""
        return min(self.ess_tail.values(), default=np.inf)

    @property
    def passed(self) -> bool:
        """Whether R-hat < 1.01 and both effective sizes > 400 everywhere, and there are no divergences."""
        enough = min(self.smallest_ess_bulk, self.smallest_ess_tail) > ESS
        return enough and self.largest_rhat < RHAT and self.divergences == 0


def converged(tree: "xr.DataTree", watch: Sequence[str] = ()) -> Convergence:
    """Return how well the chains of a posterior agree, in the variables to ``watch`` or in all."""
    az: Any = import_module("arviz_stats")
    posterior = tree["posterior"].to_dataset()
    for name in watch:
        if name not in posterior:
            raise InputError(
                f"the model has no variable {name!r} to watch; it has {', '.join(map(str, posterior.data_vars))}"
            )
    looked_at = posterior[list(watch)] if watch else posterior
    still = looked_at.std(("chain", "draw")) == 0
    with np.errstate(all="ignore"):
        rhat, bulk, tail = az.rhat(looked_at), az.ess(looked_at, method="bulk"), az.ess(looked_at, method="tail")
    told = tree["sample_stats"].data_vars if "sample_stats" in tree else {}
    return Convergence(
        rhat={str(name): _worst(rhat[name], still[name], np.inf, np.max) for name in looked_at},
        ess_bulk={str(name): _worst(bulk[name], still[name], 0, np.min) for name in looked_at},
        ess_tail={str(name): _worst(tail[name], still[name], 0, np.min) for name in looked_at},
        divergences=int(told["diverging"].sum()) if "diverging" in told else 0,  # none where no gradients are followed
    )


def _worst(found: "xr.DataArray", still: "xr.DataArray", unknown: float, worst: Any) -> float:
    """Return the worst of some elements; those that never move are constants of the model, not chains that hang."""
    moving = found.to_numpy()[~still.to_numpy()]
    moving = np.where(np.isnan(moving), unknown, moving)
    return float(worst(moving)) if moving.size else (1.0 if unknown else np.inf)


def announce(round_: int, *, confidential: bool) -> None:
    """Tell the curator, in the log of ``pdips``, that chains disagreed and are run again."""
    said = f"Chains disagreed; running them again, longer (round {round_} of {ROUNDS})."
    if confidential:
        LOG.warning("%s This decision is not covered by the privacy guarantee.", said)
    else:
        LOG.info("%s They read noisy statistics only, so this costs nothing.", said)


def require(convergence: Convergence) -> None:
    """Refuse to go on with chains that don't agree."""
    if not convergence.passed:
        raise RefusedError(NOT_CONVERGED)
