"""What is drawn for each mechanism: what its schemas may have, and its options."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from benchmarks.campaign.chance import Chance
from benchmarks.campaign.schemas import Content, Wishes, cut, with_levels

type Options = dict[str, Any]

FEW_CELLS = Wishes(most_columns=4, most_levels=5)
WISHES = {
    "kng": Wishes(plain_numbers=0.7, most_columns=4, most_levels=4),
    "kng-residual": Wishes(plain_numbers=0.7, most_columns=4, most_levels=4),
    "margins": Wishes(0.5, totals=0.2, households=0.15, weights=0.2),
    "steps": Wishes(),
    "privbayes": Wishes(),
    "universal-histogram": Wishes(),
}
"""Of mechanisms that don't hold all cells."""

COUNTING = (
    "kng",
    "kng-residual",
    "laplace-sanitizer",
    "mcclure-reiter",
    "multinomial-dirichlet",
    "margins",
    "perturbed-histogram",
    "privbayes",
    "smoothed-histogram",
    "steps",
    "universal-histogram",
)
OFTEN = ("margins", "steps")  # They have most options
SHARES = ("1/10", 0.25, Fraction(1, 3), "0.9")


def wishes_of(mechanism: str) -> Wishes:
    """Return what schemas for a mechanism may have."""
    return WISHES.get(mechanism, FEW_CELLS)


def random_options(chance: Chance, mechanism: str, content: Content) -> Options:
    """Return the settings of a mechanism for a schema, epsilon among them."""
    options: Options = {"epsilon": random_epsilon(chance)}
    is_public = any(column.get("public") for column in content["columns"].values())
    if chance.maybe(0.05 if is_public else 0.5):
        options["neighbours"] = "add-remove"
    if chance.maybe(0.6):
        options["n_sets"] = chance.one([1, 2, 2, 3, 5])
    draw = _DRAWN.get(mechanism)
    if draw is not None:
        draw(chance, options, content)
    return options


def random_epsilon(chance: Chance) -> Any:
    """Return an epsilon from .001 to a million, in one of its forms."""
    epsilon = float(f"{10 ** chance.between(-3, 6):.3g}")
    if chance.maybe(0.2):
        epsilon = chance.one([0.001, 0.5, 1.0, 10.0, 10_000.0, 1_000_000.0])
    forms = (epsilon, str(epsilon), Fraction(str(epsilon)), int(epsilon) or 1)
    return chance.one(forms)


def _law(chance: Chance, options: Options) -> None:
    if chance.maybe(0.4):
        deltas = ("1e-6", "1e-9", 0.01, "1/1000", 1e-15)
        options["delta"] = chance.one(deltas)


def _margins(chance: Chance, options: Options, content: Content) -> None:
    _law(chance, options)
    chance.option(options, "measure", "pairs", "views")
    if options.get("measure") == "views" and chance.maybe(0.2):
        options["split"] = "per-set"
        return
    chance.option(options, "sets", "fitted", "posterior")
    if options.get("measure") == "pairs":
        _pairs(chance, options, content)


def _pairs(chance: Chance, options: Options, content: Content) -> None:
    names, leveled = list(content["columns"]), cut(content)
    chance.option(options, "intervals", 2, 3, 17, 100)
    chance.option(options, "single_share", *SHARES)
    if len(leveled) > 2 and chance.maybe(0.2):
        options["also"] = tuple(chance.some(leveled, 3, 3))
    weight = content["columns"].get("weight", {"bins": 1})
    if not {"bins", "public"} & {*weight} and chance.maybe(0.5):
        options["weighted"] = tuple(chance.some(leveled, 1, 2)) or ("weight",)
    if len(names) > 1 and chance.maybe(0.25):
        options["products"] = tuple(chance.some(names, 2, 4))
    if len(names) > 3 and chance.maybe(0.15):
        options["chosen"] = chance.whole(1, len(names))
        options["sets"] = "fitted"
        options.pop("also", None)
    else:
        chance.option(options, "second_share", 0, *SHARES)


def _steps(chance: Chance, options: Options, content: Content) -> None:
    names = cut(content)
    if chance.maybe(0.4):
        order: list[Any] = chance.some(names, 1, len(names))
        if len(order) > 2 and chance.maybe(0.3):
            order = [tuple(order[:2]), *order[2:]]
        options["order"] = tuple(order)
    else:
        chance.option(options, "elect", "node", "layer", "groups")
        chance.option(options, "utility", "aic", "bic")
        chance.option(options, "election_share", *SHARES)
        chance.option(options, "layers", 1, 2, 3)
    chance.option(options, "below", "cells", "views")
    chance.option(options, "stop", 0, 1.5, "6")
    chance.option(options, "budget", "equal", "half-to-leaves")
    chance.option(options, "split", "once", "per-set")


def _split(chance: Chance, options: Options, content: Content) -> None:
    chance.option(options, "split", "once", "per-set")


def _sized(chance: Chance, options: Options, content: Content) -> None:
    options.pop("n_sets", None)
    if options.get("neighbours") == "add-remove":
        options["n_records"] = chance.one([1, 10, 300])


def _own_sets(chance: Chance, options: Options, content: Content) -> None:
    n_sets = options.get("n_sets", 1)
    _sized(chance, options, content)
    options["n_sets"] = n_sets


def _urn(chance: Chance, options: Options, content: Content) -> None:
    options.pop("n_sets", None)
    options.pop("neighbours", None)


def _privbayes(chance: Chance, options: Options, content: Content) -> None:
    options.pop("neighbours", None)
    chance.option(options, "degree", 1, 3, 5)
    chance.option(options, "network_share", *SHARES)
    chance.option(options, "usefulness", 0, 1, "10")
    _split(chance, options, content)


def _universal(chance: Chance, options: Options, content: Content) -> None:
    names = cut(content)
    if names and chance.maybe(0.5):
        options["attribute"] = chance.one(names)
        chance.option(options, "fan_out", 2, 5, 16)
    else:
        chance.option(options, "layers", 1, 2, 3)
    _split(chance, options, content)


def _by_column(chance: Chance, options: Options, content: Content) -> None:
    names = list(content["columns"])
    if options.get("neighbours") == "add-remove":
        options["n_records"] = chance.one([10, 300])
    if chance.maybe(0.3):
        options["order"] = tuple(chance.some(names, len(names), len(names)))
    if chance.maybe(0.2) and with_levels(content):
        options["by"] = (chance.one(with_levels(content)),)
    options["n_candidates"] = chance.one([2, 50, 200])


def _kng(chance: Chance, options: Options, content: Content) -> None:
    _by_column(chance, options, content)
    quantiles = (("1/2",), ("1/4", "1/2", "3/4"), 5, 1)
    options["quantiles"] = chance.one(quantiles)
    chance.option(options, "scheme", "plain", "stepwise", "sandwich")
    chance.option(options, "slopes", "fixed", "varying")
    chance.option(options, "norm", "hull", "linf", "l1")
    chance.option(options, "base", "log", "uniform")
    chance.option(options, "between", "interpolate", "quantile")
    chance.option(options, "median_share", *SHARES)


def _residual(chance: Chance, options: Options, content: Content) -> None:
    _by_column(chance, options, content)
    chance.option(options, "continuers", "growth", "line")
    chance.option(options, "line_share", *SHARES)
    chance.option(options, "bins", 2, 7, 100)


_DRAWN: dict[str, Callable[[Chance, Options, Content], None]] = {
    "kng": _kng,
    "kng-residual": _residual,
    "laplace-sanitizer": _split,
    "mcclure-reiter": _urn,
    "multinomial-dirichlet": _own_sets,
    "margins": _margins,
    "perturbed-histogram": _split,
    "privbayes": _privbayes,
    "smoothed-histogram": _sized,
    "steps": _steps,
    "universal-histogram": _universal,
}
