"""What a mechanism hands over of its model, for the tree of its release."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:  # a release without a model does without xarray
    import xarray as xr


# Attributes of the posterior group: how often noisy answers would contradict the model
# as much, if it were right, and by what; and the share below which it is said that they
# do
MISFIT = "misfit"
MISFIT_BY = "misfit_by"
CONTRADICTED = 0.05
# How far scores were taken last from the parameters that all answers make most
# probable, in standard deviations of one record; and from where on it is said
REFERENCE_APART = "reference_apart"
REFERENCE_FAR = 2.0
# What noisy answers may say against a model
Misfit = Literal["spread", "tails", "skew", "sizes"]
REASONS: Mapping[str, str] = {
    "spread": "records are spread otherwise than it says",
    "tails": "more records lie far from what it expects than it says",
    "skew": "records lie on one side of what it expects more often than it says",
    "sizes": (
        "effects of groups go with their sizes (of small groups read the direct "
        "intervals)"
    ),
}


# Prior standard deviations between the means of prior and posterior from which on it is
# said that the prior holds back what the noisy numbers say
HELD_BACK = 3.0
MOST_ENTRIES = 50  # of a variable that is looked at: effects of groups aren't
# What may be published of the steps of chains: no time, for it tells of a machine, and
# no seed
OF_STEPS = ("diverging", "n_steps", "step_size", "logp", "energy")


# Numbers of posterior draws in the file; of more, every second draw, third, ...
MOST_POSTERIOR_NUMBERS = 2_000_000


def kept_every(tree: Any) -> int:
    """Return which draws of a tree are published: all, every second one, third, ..."""
    dataset = tree["posterior"].to_dataset()
    n_numbers = sum(int(array.size) for array in dataset.data_vars.values())
    return -(-n_numbers // MOST_POSTERIOR_NUMBERS)


def sample_stats(tree: Any) -> "xr.Dataset | None":
    """Return what a sampler told of its steps, of every draw that is published; None
    where no chain ran.
    """
    if "sample_stats" not in tree.children:
        return None
    told = tree["sample_stats"].to_dataset()
    kept = told[[name for name in OF_STEPS if name in told]]
    kept = kept.isel(draw=slice(None, None, kept_every(tree))).drop_attrs()
    numbered = {dim: range(size) for dim, size in kept.sizes.items()}
    published: xr.Dataset = kept.assign_coords(numbered)
    return published


@dataclass(frozen=True, eq=False)
class PublicDraws:
    """What a mechanism publishes of its model: made of noisy answers and public facts
    alone, so that it costs nothing.

    Parameters
    ----------
    posterior : xarray.Dataset
        Draws, dims chain and draw first.
    sampler : str
        What made them.
    others : callable
        Makes the other groups, by path in the tree, when they are first asked for. It
        mustn't fail: the release is paid for.
    """

    posterior: "xr.Dataset"
    sampler: str
    others: Callable[[], Mapping[str, "xr.Dataset"]]

    @cached_property
    def groups(self) -> Mapping[str, "xr.Dataset"]:
        """All groups, by path."""
        return {"posterior": self.posterior, **self.others()}


@dataclass(frozen=True)
class Contradiction:
    """What noisy answers say against a model."""

    share: float  # how often they would be so far off, if the model were right
    reason: str  # a clause, of "it", the model


def contradiction(attributes: Mapping[Any, Any]) -> Contradiction | None:
    """Return what noisy answers say against the model, by the attributes of the
    posterior group; None where they don't contradict it, or nobody looked.
    """
    share = attributes.get(MISFIT)
    if share is None or share >= CONTRADICTED:
        return None
    by = attributes.get(MISFIT_BY)
    return Contradiction(float(share), REASONS.get(str(by), REASONS["spread"]))


def held_back_by_priors(tree: "xr.DataTree | None") -> list[str]:
    """Return the variables of which an entry lies far from what its prior expects.

    Parameters
    ----------
    tree : xarray.DataTree, optional
        With the groups ``prior`` and ``posterior``.
    """
    if tree is None or "prior" not in tree.children:
        return []
    priors = tree["prior"].to_dataset()
    names = []
    for name, posterior in tree["posterior"].to_dataset().items():
        n_entries = posterior.isel(chain=0, draw=0).size
        if name not in priors or n_entries > MOST_ENTRIES:
            continue
        prior = priors[name].to_numpy()
        with np.errstate(all="ignore"):  # priors without a mean, or of one value
            apart = posterior.to_numpy().mean(axis=(0, 1)) - prior.mean(axis=(0, 1))
            spread = prior.std(axis=(0, 1))
        if np.any((np.abs(apart) > HELD_BACK * spread) & (spread > 0)):
            names.append(str(name))
    return names
