"""Where each mechanism and its audit live, by name. Imports none of them until it is asked for one."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from pdips.privacy import choice

Home = str | type[Any] | Callable[..., Any]

MECHANISMS: dict[str, Home] = {
    "censored-posterior": "pdips.bayes.posterior:CensoredPosterior",
    "kng": "pdips.mechanisms.quantile:KNG",
    "kng-residual": "pdips.mechanisms.residual:KNGResidual",
    "laplace-sanitizer": "pdips.mechanisms.sanitizer:LaplaceSanitizer",
    "mcclure-reiter": "pdips.mechanisms.dirichlet:McClureReiter",
    "modips": "pdips.bayes.modips:Modips",
    "multinomial-dirichlet": "pdips.mechanisms.dirichlet:MultinomialDirichlet",
    "perturbed-histogram": "pdips.mechanisms.histograms:PerturbedHistogram",
    "privbayes": "pdips.mechanisms.privbayes:PrivBayes",
    "pseudo-posterior": "pdips.bayes.pseudo:PseudoPosterior",
    "smoothed-histogram": "pdips.mechanisms.histograms:SmoothedHistogram",
    "steps": "pdips.mechanisms.tree:Steps",
    "universal-histogram": "pdips.mechanisms.universal:UniversalHistogram",
}

AUDITS: dict[str, Home] = {
    "censored-posterior": "pdips.bayes.audits:censored",
    "kng": "pdips.mechanisms.audit_quantile:quantile",
    "kng-residual": "pdips.mechanisms.audit_quantile:residual",
    "laplace-sanitizer": "pdips.mechanisms.audits:sanitizer",
    "mcclure-reiter": "pdips.mechanisms.audit_histograms:mcclure_reiter",
    "modips": "pdips.bayes.audit_modips:modips",
    "multinomial-dirichlet": "pdips.mechanisms.audit_histograms:multinomial_dirichlet",
    "perturbed-histogram": "pdips.mechanisms.audit_histograms:perturbed",
    "privbayes": "pdips.mechanisms.audit_privbayes:privbayes",
    "pseudo-posterior": "pdips.bayes.audits:pseudo",
    "smoothed-histogram": "pdips.mechanisms.audit_histograms:smoothed",
    "steps": "pdips.mechanisms.audits:steps",
    "universal-histogram": "pdips.mechanisms.audit_universal:universal",
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
        Takes a function that builds the mechanism with given settings; returns the :class:`pdips.pairs.Case` to run.
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
