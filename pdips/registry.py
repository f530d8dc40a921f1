"""Where each mechanism and its audit live, by name. Imports none of them until it is asked for one."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from pdips.privacy.loss import choice

Home = str | type[Any] | Callable[..., Any]

MECHANISMS: dict[str, Home] = {
    "censored-posterior": "pdips.posterior.censored_posterior:CensoredPosterior",
    "kng": "pdips.quantile.kng:KNG",
    "kng-residual": "pdips.quantile.kng_residual:KNGResidual",
    "laplace-sanitizer": "pdips.histogram.laplace:LaplaceSanitizer",
    "mcclure-reiter": "pdips.histogram.dirichlet:McClureReiter",
    "modips": "pdips.statistics.modips:Modips",
    "multinomial-dirichlet": "pdips.histogram.dirichlet:MultinomialDirichlet",
    "perturbed-histogram": "pdips.histogram.histograms:PerturbedHistogram",
    "privbayes": "pdips.bayes_net.privbayes:PrivBayes",
    "pseudo-posterior": "pdips.posterior.pseudo_posterior:PseudoPosterior",
    "smoothed-histogram": "pdips.histogram.histograms:SmoothedHistogram",
    "steps": "pdips.margins.steps:Steps",
    "universal-histogram": "pdips.margins.universal_histogram:UniversalHistogram",
}

AUDITS: dict[str, Home] = {
    "censored-posterior": "pdips.audit.cases.posterior:censored",
    "kng": "pdips.audit.cases.quantile:quantile",
    "kng-residual": "pdips.audit.cases.quantile:residual",
    "laplace-sanitizer": "pdips.audit.cases.margins:sanitizer",
    "mcclure-reiter": "pdips.audit.cases.histogram:mcclure_reiter",
    "modips": "pdips.audit.cases.statistics:modips",
    "multinomial-dirichlet": "pdips.audit.cases.histogram:multinomial_dirichlet",
    "perturbed-histogram": "pdips.audit.cases.histogram:perturbed",
    "privbayes": "pdips.audit.cases.bayes_net:privbayes",
    "pseudo-posterior": "pdips.audit.cases.posterior:pseudo",
    "smoothed-histogram": "pdips.audit.cases.histogram:smoothed",
    "steps": "pdips.audit.cases.margins:steps",
    "universal-histogram": "pdips.audit.cases.universal:universal",
}
"""For each mechanism a function that takes a builder and gives the cases to audit it on."""


def register(name: str, mechanism: type[Any], cases: Callable[..., Iterable[Any]]) -> None:
    """Add a mechanism, together with its audit: none goes without.

    Parameters
    ----------
    name : str
        The name on the command line.
    mechanism : type
        The class.
    cases : callable
        Takes a function that builds the mechanism with given settings; returns the cases to run
        (:class:`pdips.audit.neighbour_pairs.Case`).
    """
    MECHANISMS[name], AUDITS[name] = mechanism, cases


def find(name: str) -> type[Any]:
    """Return the class of a mechanism.

    Raises
    ------
    InputError
        If there is no mechanism of this name; the message lists those that there are.
    """
    found: type[Any] = _load(MECHANISMS[choice(name, tuple(MECHANISMS), "mechanism")])
    return found


def cases_of(name: str) -> Callable[..., Iterable[Any]]:
    """Return the function that gives the audit cases of a mechanism."""
    found: Callable[..., Iterable[Any]] = _load(AUDITS[choice(name, tuple(AUDITS), "mechanism")])
    return found


def _load(home: Home) -> Any:
    if not isinstance(home, str):
        return home
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)
