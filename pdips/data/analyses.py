"""Analyses that are named before a release: part of its budget is kept for them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pdips.errors import InputError


class DeclaredAnalysis(BaseModel):
    """A regression that a release is to answer by itself.

    Parameters
    ----------
    formula : str
        As Bambi reads it: ``"log(wage) ~ educ + exper"``.
    family : str, optional
        Of the outcome's distribution, as Bambi names it. Left out it is normal, or of
        an outcome with two levels the logit of the second one.
    link : str, optional
        Of the mean.
    priors : dict of str to str
        By term or by parameter of the family, such as
        ``{"age": "Normal(mu=0, sigma=2)"}``.

    Examples
    --------
    >>> DeclaredAnalysis(formula="ill ~ age", family="bernoulli").settings
    {'family': 'bernoulli'}
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    formula: Annotated[str, Field(pattern="~")]
    family: str | None = None
    link: str | None = None
    priors: dict[str, str] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """What stands beside the formula, as Bambi takes it."""
        given: dict[str, Any] = {}
        if self.family is not None:
            given["family"] = self.family
        if self.link is not None:
            given["link"] = self.link
        if self.priors:
            given["priors"] = dict(self.priors)
        return given


def as_list(analyses: Any) -> list[Any]:
    """Return analyses as a list, or refuse one that stands alone.

    Examples
    --------
    >>> as_list(("ill ~ age",))
    ['ill ~ age']
    """
    if isinstance(analyses, (str, Mapping)) or not isinstance(analyses, Sequence):
        raise InputError(
            "analyses are a list, of one too: analyses=['y ~ x'], [bmb.Model(...)] or "
            "[make]"
        )
    return list(analyses)
