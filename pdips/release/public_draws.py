"""What a mechanism hands over of its model, for the tree of its release."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a release without a model does without xarray
    import xarray as xr


# Attribute of the posterior group: how often noisy answers would contradict the model
# as much, if it were right; and the share below which it is said that they do
MISFIT = "misfit"
CONTRADICTED = 0.05


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


def contradiction(attributes: Mapping[Any, Any]) -> float | None:
    """Return how often noisy answers would contradict the model as much as they do, if
    it were right, by the attributes of the posterior group; None where they don't, or
    nobody looked.
    """
    share = attributes.get(MISFIT)
    return float(share) if share is not None and share < CONTRADICTED else None
