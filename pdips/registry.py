"""Where each mechanism and its audit live, by name. Imports none of them until it is
asked for one.
"""

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdips.errors import InputError
from pdips.privacy.loss import choice

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Home = str | type[Any] | Callable[..., Any]

HOMES = {
    "censored-posterior": (
        "posterior.censored_posterior:CensoredPosterior",
        "posterior:censored",
    ),
    "group-sums": ("groups.group_sums:GroupSums", "posterior:group_sums"),
    "kng": ("quantile.kng:KNG", "quantile:quantile"),
    "kng-residual": ("quantile.kng:KNGResidual", "quantile:residual"),
    "laplace-sanitizer": ("histogram.laplace:LaplaceSanitizer", "margins:sanitizer"),
    "margins": ("fields.margins:Margins", "margins:margins"),
    "mcclure-reiter": ("histogram.urns:McClureReiter", "margins:urn"),
    "modips": ("statistics.modips:Modips", "statistics:modips"),
    "multinomial-dirichlet": (
        "histogram.urns:MultinomialDirichlet",
        "margins:sized_urn",
    ),
    "perturbed-histogram": (
        "histogram.laplace:PerturbedHistogram",
        "margins:sanitizer",
    ),
    "privbayes": ("bayes_net.privbayes:PrivBayes", "margins:privbayes"),
    "pseudo-posterior": (
        "posterior.pseudo_posterior:PseudoPosterior",
        "posterior:pseudo",
    ),
    "scores": ("scores.scores:Scores", "posterior:scores"),
    "smoothed-histogram": ("histogram.urns:SmoothedHistogram", "margins:sized_urn"),
    "steps": ("margins.steps:Steps", "margins:steps"),
    "universal-histogram": (
        "margins.universal_histogram:UniversalHistogram",
        "margins:universal",
    ),
}
"""For each mechanism its class, in ``pdips``, and its audit, in
``pdips.audit.cases``.
"""

MECHANISMS: dict[str, Home] = {
    name: f"pdips.{home}" for name, (home, _) in HOMES.items()
}
AUDITS: dict[str, Home] = {
    name: f"pdips.audit.cases.{home}" for name, (_, home) in HOMES.items()
}
"""For each mechanism a function that takes a builder and gives the cases to audit it
on.
"""

# For studies and forms as printed
GET_PAPERS = "in a checkout of the source of pdips, pip install ./papers"


def register(
    name: str, mechanism: type[Any], cases: Callable[..., Iterable[Any]]
) -> None:
    """Add a mechanism, together with its audit: none goes without.

    Parameters
    ----------
    name : str
        The name on the command line.
    mechanism : type
        The class.
    cases : callable
        Takes a function that builds the mechanism with given settings; returns the
        cases to run (:class:`pdips.audit.neighbour_pairs.Case`).

    Examples
    --------
    >>> from pdips.audit.cases.margins import sanitizer
    >>> register("my-sanitizer", LaplaceSanitizer, sanitizer)
    >>> "my-sanitizer" in MECHANISMS
    True
    """
    MECHANISMS[name] = mechanism
    AUDITS[name] = cases


def find(name: str) -> type[Any]:
    """Return the class of a mechanism.

    Raises
    ------
    InputError
        If there is no mechanism of this name; the message lists those that there are.

    Examples
    --------
    >>> find("laplace-sanitizer").name
    'laplace-sanitizer'
    """
    home = MECHANISMS[choice(name, tuple(MECHANISMS), "mechanism")]
    mechanism: type[Any] = load(home)
    return mechanism


def with_setting(setting: str) -> tuple[str, ...]:
    """Return the names of all mechanisms that have a setting.

    Examples
    --------
    >>> with_setting("chosen")
    ('margins',)
    """
    settings = {
        name: getattr(find(name), "__dataclass_fields__", {}) for name in MECHANISMS
    }
    return tuple(name for name, own in settings.items() if setting in own)


def published(name: str) -> type[Any]:
    """Return the form of a mechanism as a paper prints it, which claims epsilon and
    guarantees nothing.

    These forms are in the distribution ``pdips-papers``, and are found by its entry
    points of the group ``pdips.published``.
    """
    forms = _published_forms()
    if not forms:
        raise InputError(
            f"forms as printed are in a package of their own: {GET_PAPERS}"
        )
    choice(name, tuple(forms), "mechanism with a published variant")
    form: type[Any] = forms[name].load()
    return form


def variants_of(name: str) -> tuple[str, ...]:
    """Return the variants that a mechanism can be asked for: "sound", and "published"
    if a paper's form is there.
    """
    own: tuple[str, ...] = tuple(find(name).variants)
    if "published" in own or name not in _published_forms():
        return own
    return (*own, "published")


def variant_class(name: str, variant: str) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of a mechanism in a variant, and the settings that choose the
    variant within that class.
    """
    mechanism = find(name)
    if variant == "published" and "published" not in mechanism.variants:
        forms = _published_forms()
        if name in forms or not forms:
            return published(name), {}
    choice(variant, variants_of(name), "variant")
    if any(setting.name == "variant" for setting in fields(mechanism)):
        return mechanism, {"variant": variant}
    return mechanism, {}


def cases_of(name: str, variant: str = "sound") -> Callable[..., Iterable[Any]]:
    """Return the function that gives the audit cases of a mechanism.

    A published form may bring cases of its own, as a function ``audit_cases``;
    otherwise it is audited on those of the sound one.
    """
    home = choice(name, tuple(AUDITS), "mechanism")
    cases: Callable[..., Iterable[Any]] | None = None
    if variant == "published":
        form, _ = variant_class(name, variant)
        cases = getattr(form, "audit_cases", None)
    return cases or load(AUDITS[home])


def _published_forms() -> dict[str, "EntryPoint"]:
    from importlib.metadata import entry_points  # slow to import, and to ask

    return {entry.name: entry for entry in entry_points(group="pdips.published")}


def public_names(
    package: str, file: str
) -> tuple[dict[str, str], Callable[[str], Any]]:
    """Return the module of each name in the stub beside a package's file, and what
    imports a name on its first use.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    # a long line is in brackets
    imports = re.findall(r"from (\S+) import \(?\s*(\w+)", stub)
    homes = {name: module for module, name in imports}

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(f"{homes[name]}:{name}")

    return homes, imported


def load(home: Home) -> Any:
    """Return what an address, ``module:name``, names; anything else as it is."""
    if not isinstance(home, str):
        return home
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)
